"""What was found, as the options of `vllm serve` say it, where vLLM has the method or runs a class of ours. Knows no
vLLM code.

Keys as of vLLM 0.32 (`vllm/config/speculative.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import verify
from ..drafters import DRAFTERS
from ..drafters.lookup import Lookup
from ..drafters.options import split_specs
from ..drafters.suffix import Suffix
from ..loading import DEMO, demo_folder
from ..measure.results import PLAIN
from ..policy import DEFAULT
from ..vllm import PROPOSERS, path_of
from .search import Prediction, Setting

OWN_CLASS = "custom_class"
_TRAINED = ("eagle", "eagle3", "medusa", "dflash", "mtp")  # our names are vLLM's
_TEXT = ("suffix", "lookup")  # of a cascade's drafters those that follow from texts alone and ask for nothing else
_INSTALL = (
    "vLLM drafts with a class of outrider's, so outrider is installed beside it, without its requirements: "
    "pip install --no-deps outrider."
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The configuration, or why there is none.

    Attributes:
        config: for `--speculative-config`; None where vLLM has no such method or none is needed.
        notes: what else to know, a sentence each.
        told: what a class of ours is told by `--additional-config`, beyond what it does anyway.
    """

    config: dict[str, Any] | None
    notes: tuple[str, ...]
    told: dict[str, str] = field(default_factory=dict)

    @property
    def additional(self) -> dict[str, Any] | None:
        """For `--additional-config`; None where nothing is to be said."""
        return {"outrider": self.told} if self.told else None

    @property
    def arguments(self) -> list[str]:
        """All of it as options of `vllm serve`."""
        given = {"--speculative-config": self.config, "--additional-config": self.additional}
        return [word for name, value in given.items() if value is not None for word in (name, json.dumps(value))]


def deployment(setting: Setting, verifier: str, predictions: Sequence[Prediction]) -> Deployment:
    """vLLM's configuration for what was chosen.

    Args:
        setting: it.
        verifier: spec of the rule.
        predictions: of all settings, for the lengths: vLLM drafts chains of a fixed length.
    """
    if setting.drafter == PLAIN:
        return Deployment(None, ("Plain decoding takes no --speculative-config.",))
    method = method_of(setting.drafter)
    if method.config is None:
        return method
    lengths = _lengths(setting.drafter, predictions)
    if not lengths.get(setting.batch):
        return Deployment(None, ("vLLM drafts chains, and no chain of this drafter pays here.",))
    config = {**method.config, "num_speculative_tokens": max(lengths.values())}
    notes, told, ours = method.notes, dict(method.told), config["method"] == OWN_CLASS
    adapts = len(set(lengths.values())) > 1
    if ours and (adapts or setting.shape is None):
        told["policy"] = DEFAULT  # vLLM's lengths by batch are not told to classes of others
    elif adapts:
        starts = [1, *(size + 1 for size in lengths)]
        config["num_speculative_tokens_per_batch_size"] = [
            [start, size, k] for start, (size, k) in zip(starts, lengths.items(), strict=False)
        ]
    if verifier == "block":
        config["rejection_sample_method"] = "block"
    elif not verify.make_verifier(verifier).lossless:
        notes = (*notes, f"vLLM has no rule like '{verifier}': it keeps the target's law, and accepts less.")
    if not ours if setting.shape is None else setting.shape.is_tree:
        notes = (*notes, "vLLM drafts chains of a fixed length: this is the best one predicted for this drafter.")
    return Deployment(config, notes, told)


def _lengths(drafter: str, predictions: Sequence[Prediction]) -> dict[int, int]:
    """Batch -> the best length of a chain, 0 where plain decoding is faster; batches rising."""
    found: dict[int, Prediction] = {}
    for one in predictions:
        chain = one.setting.shape is not None and not one.setting.shape.is_tree and one.setting.drafter == drafter
        before = found.get(one.setting.batch)
        if (chain or one.setting.drafter == PLAIN) and (before is None or one.per_user > before.per_user):
            found[one.setting.batch] = one
    return {batch: one.setting.shape.depth if one.setting.shape else 0 for batch, one in sorted(found.items())}


def method_of(drafter: str) -> Deployment:
    """How vLLM drafts as a drafter of ours does, but for the length.

    Raises:
        BadOption: an option of the drafter that cannot be used.
    """
    name, _, argument = drafter.partition(":")
    if name == "lookup":
        longest = Lookup.match_length(argument)
        return Deployment({"method": "ngram", "prompt_lookup_max": longest, "prompt_lookup_min": 1}, ())
    if name in PROPOSERS and _from_text(drafter):
        proposer = PROPOSERS[name]
        told = {} if drafter == proposer.default else {"drafter": drafter}
        return Deployment({"method": OWN_CLASS, "model": path_of(proposer)}, (_INSTALL,), told)
    if name == "model":
        return _draft_model(argument, {})
    if name == "translated":
        mode, colon, rest = argument.partition(":")
        spec = rest if colon and mode in ("auto", "tli", "slem") else argument
        return _draft_model(spec, {"use_heterogeneous_vocab": True})
    if name in _TRAINED:
        return Deployment({"method": name, **({"model": argument} if argument else {})}, ())
    return Deployment(None, (f"vLLM has no method like '{name}': it runs here alone.",))


def _from_text(drafter: str) -> bool:
    """Whether a suffix drafter or a cascade needs nothing but texts."""
    name, _, argument = drafter.partition(":")
    if name == "suffix":
        Suffix.options(argument)
        return True
    return all(part.partition(":")[0] in _TEXT for part in split_specs(argument, DRAFTERS))


def _draft_model(spec: str, more: dict[str, Any]) -> Deployment:
    if spec.endswith(".gguf"):
        return Deployment(None, ("vLLM takes a draft model as a folder or a hub id: convert the GGUF file.",))
    return Deployment({"method": "draft_model", "model": str(demo_folder()) if spec == DEMO else spec, **more}, ())
