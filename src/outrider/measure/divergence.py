"""Where two outputs of one prompt part, and whether rounding explains it. Knows no engine and no terminal.

A mismatch is usually a near tie: two tokens whose logits lie within what the arithmetic leaves open, computed by
kernels that sum in different orders. So every one is shown with both logits, and judged by how far the logit of the
token that was written would have to be raised for the model to write it: within what `rounding` finds at that place it
is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..noise import SeededNoise
from ..row import Request
from ..sampling import History
from ..types import Tree
from .rounding import LogitsOf, left_open, moved

_FURTHEST = 1e3  # beyond any logit that a raise could make the winner
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which two outputs of one prompt differ.

    Attributes:
        place: index in the output.
        expected, got: the tokens there; None where an output had ended.
        expected_logit, got_logit: the model's own of them, by its plain pass over prompt and common output.
        best, second: its two likeliest tokens there.
        top2_gap: between the logits of those two.
        gap: by how much a logit would have to rise for its token to be written, the larger one of the two tokens'; in
            greedy decoding the model's preference for its likeliest token.
        rounding: what the arithmetic leaves open there, see `rounding.left_open`.
        exact: the two outputs were promised to be the same bits, so that nothing counts as a tie.
    """

    place: int
    expected: int | None
    got: int | None
    expected_logit: float | None
    got_logit: float | None
    best: int
    second: int
    top2_gap: float
    gap: float
    rounding: float
    exact: bool = False

    @property
    def allowed(self) -> bool:
        """Whether it is a near tie: either token is what the model writes, within rounding."""
        return not self.exact and self.gap <= self.rounding

    @property
    def verdict(self) -> Literal["tie", "fault"]:
        """See `allowed`."""
        return "tie" if self.allowed else "fault"

    def describe(self, tokenizer: Any = None, one: str = "Transformers", other: str = "Outrider") -> str:
        """One line for people."""

        def show(token: int | None) -> str:
            if token is None:
                return "nothing"
            return f"{token} ({tokenizer.decode([token])!r})" if tokenizer is not None else str(token)

        return (
            f"token {self.place}: {one} writes {show(self.expected)}, {other} {show(self.got)}; likeliest are "
            f"{show(self.best)} and {show(self.second)}; gap {self.gap:.3g}, rounding {self.rounding:.3g}"
        )


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """The first place at which two outputs differ, the end of the shorter one included; None if they are the same."""
    shorter = min(len(expected), len(got))
    place = next((index for index in range(shorter) if expected[index] != got[index]), shorter)
    return None if place == len(expected) == len(got) else place


def judge(
    request: Request,
    expected: Sequence[int],
    got: Sequence[int],
    logits_of: LogitsOf,
    dtype: torch.dtype,
    *,
    again: Sequence[LogitsOf] = (),
    eos: tuple[int, ...] = (),
    exact: bool = False,
) -> Divergence | None:
    """Where two outputs of one request part, with the model's own opinion of it; None if they are the same.

    Args:
        request: prompt, sampling and seed of both.
        expected, got: their ids.
        logits_of: the model's, by a plain pass.
        dtype: of its weights, which is what rounding comes from.
        again: the model's in other ways that mean the same, by which rounding is measured. Nobody asks them of outputs
            that were promised to be the same bits.
        eos: ids that end its output.
        exact: see `Divergence`.
    """
    place = first_difference(expected, got)
    if place is None:
        return None
    before = [*request.prompt, *expected[:place]]
    logits = logits_of(before).float()
    (best_logit, second_logit), (best, second) = (found.tolist() for found in logits.topk(2))
    one, other = (output[place] if place < len(output) else None for output in (expected, got))
    # An output that merely stops has no token to compare: never a near tie.
    gap = max(
        math.inf if token is None else _raise_needed(request, before, logits, token, eos) for token in (one, other)
    )
    by = 0.0 if exact else moved(logits, [other_way(before) for other_way in again])
    return Divergence(
        place,
        expected=one,
        got=other,
        expected_logit=None if one is None else float(logits[one]),
        got_logit=None if other is None else float(logits[other]),
        best=best,
        second=second,
        top2_gap=best_logit - second_logit,
        gap=gap,
        rounding=left_open(best_logit, by, dtype),
        exact=exact,
    )


def _raise_needed(request: Request, before: Sequence[int], logits: Tensor, token: int, eos: tuple[int, ...]) -> float:
    """By how much a token's logit has to rise for this request to write it; infinite if no raise does it."""
    if request.sampling.temperature == 0 and not request.sampling.edits_logits:
        return float(logits.max()) - float(logits[token])
    history = History(before, len(request.prompt), eos)

    def written(by: float) -> bool:
        raised = logits.clone()
        raised[token] += by
        law = request.sampling.law(raised[None], Tree.chain(before[-1:]), history)
        return law.draws(SeededNoise.for_verifier(request.seed, 0), [len(before)])[0] == token

    if written(0.0):
        return 0.0
    if not written(_FURTHEST):
        return math.inf
    low, high = 0.0, _FURTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if written(middle) else (middle, high)
    return high
