"""Comparisons that have a name. Loads no model."""

from __future__ import annotations

from dataclasses import dataclass

from ..drafters import DRAFTERS
from ..drafters.options import split_specs
from ..errors import BadOption

ARCHITECTURES = "architectures"
NAMES = (ARCHITECTURES,)
_LENGTHS = "1-5"
_PROMPTS = 100


@dataclass(frozen=True, slots=True)
class Preset:
    """What a named comparison measures.

    Attributes:
        drafters: specs.
        k: draft lengths.
        limit: prompts at most.
        left_out: what belongs to the comparison and is not there, in sentences.
    """

    drafters: list[str]
    k: str
    limit: int
    left_out: tuple[str, ...]


def architectures(draft_model: str | None, drafters: list[str]) -> Preset:
    """An independent draft model, Medusa and EAGLE on one target: 100 prompts, k from 1 to 5.

    Args:
        draft_model: what the independent draft model is, as `--target` names models.
        drafters: specs of the trained drafters, and of others that are to be compared too.

    Raises:
        BadOption: no draft model.
    """
    if draft_model is None:
        raise BadOption("The preset 'architectures' compares an independent draft model: name it with --draft-model.")
    given = [spec for text in drafters for spec in split_specs(text, DRAFTERS)]
    kinds = {spec.partition(":")[0] for spec in given}
    left_out = []
    for name, members in (("Medusa", {"medusa"}), ("EAGLE", {"eagle", "eagle3"})):
        if not members & set(DRAFTERS):
            left_out.append(f"{name} is left out: this version has no such drafter.")
        elif not members & kinds:
            left_out.append(f"{name} is left out: name a trained one with --drafters {min(members)}:FOLDER.")
    return Preset([f"model:{draft_model}", *given], _LENGTHS, _PROMPTS, tuple(left_out))


def few_prompts(found: int, limit: int) -> str | None:
    """That a comparison has fewer prompts than it should, in a sentence."""
    if found >= limit:
        return None
    return (
        f"{found} of {limit} prompts were to be had: a file of more can be given with --prompts, spec_bench:FILE too."
    )
