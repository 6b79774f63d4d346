"""Models and tokenizers from folders, and `Outrider`s around them, for tests of all rooms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import outrider
from outrider.drafters.model import ModelDrafter
from outrider.encoder_decoder import EncoderDecoderTarget
from outrider.loading import quiet
from outrider.target import Target

Make = Callable[..., "outrider.Outrider"]


def read_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A model from a folder, in memory, with Transformers' own attention."""
    from transformers import AutoModelForCausalLM

    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder."""
    from transformers import AutoTokenizer

    with quiet():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def drafting_for_itself(target: Target) -> ModelDrafter:
    """The target as its own drafter."""
    encoder = target if isinstance(target, EncoderDecoderTarget) else None
    return ModelDrafter(target, target.vocabulary, encoder=encoder)


def makes(model: Any, tokenizer: Any, *, fast: bool = True) -> Make:
    """A maker of `Outrider`s on one model: `make("lookup", k=5)`.

    "model" drafts with the target itself, so that drafts are right and long blocks are accepted: with another drafter
    most faults in rollback and positions cannot show.
    """
    plain = outrider.load(model, "none", tokenizer=tokenizer, fast=fast)
    made: dict[tuple[str, int], outrider.Outrider] = {}

    def make(drafter: str = "none", k: int = 5) -> outrider.Outrider:
        if (drafter, k) not in made:
            llm = plain.using("none" if drafter == "model" else drafter, policy=f"fixed:{k}")
            if drafter == "model":
                llm.drafter = drafting_for_itself(llm.target)
            made[drafter, k] = llm
        return made[drafter, k]

    return make
