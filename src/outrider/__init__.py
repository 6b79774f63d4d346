"""Outrider: speculative decoding for any Hugging Face causal language model. Faster, and exactly the model's own words.

import outrider

llm = outrider.load("demo", drafter="suffix")
print(llm.generate("Once upon a time", max_new_tokens=40).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import Output, Outrider, Piece, load
    from .config import load_config
    from .drop_in import generate_with
    from .errors import OutriderError, UsageError
    from .outputs import Segment, Transcript
    from .sampling import Sampling
    from .stats import Stats
    from .types import Budget, Draft, Round, Scores, Tree

_HOMES = {
    "Outrider": "api",
    "Output": "api",
    "Piece": "api",
    "load": "api",
    "load_config": "config",
    "generate_with": "drop_in",
    "OutriderError": "errors",
    "UsageError": "errors",
    "Segment": "outputs",
    "Transcript": "outputs",
    "Sampling": "sampling",
    "Stats": "stats",
    "Budget": "types",
    "Draft": "types",
    "Round": "types",
    "Scores": "types",
    "Tree": "types",
}

__all__ = [
    "Budget",
    "Draft",
    "Output",
    "Outrider",
    "OutriderError",
    "Piece",
    "Round",
    "Sampling",
    "Scores",
    "Segment",
    "Stats",
    "Transcript",
    "Tree",
    "UsageError",
    "generate_with",
    "load",
    "load_config",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package must not load torch for `outrider --help`."""
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
