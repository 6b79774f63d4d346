"""Comparing Outrider's greedy output with Transformers' own, and judging where they part, as `outrider prove` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.measure.divergence import Divergence, judge
from outrider.measure.reference import transformers_again, transformers_ids, transformers_logits
from outrider.row import Request
from outrider.sampling import Sampling

__all__ = ["assert_equal", "assert_near", "first_divergence", "transformers_ids"]


def first_divergence(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
) -> Divergence | None:
    """Where two greedy outputs part, with the model's own opinion of it; None if they are equal."""
    request = Request(tuple(prompt), Sampling(), 0, max(len(expected), len(got)))
    return judge(request, expected, got, transformers_logits(model), model.dtype, again=transformers_again(model))


def assert_equal(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int], label: str, tokenizer: Any = None
) -> None:
    """Fail with both tokens and the gap between the likeliest two unless the outputs are the same."""
    divergence = first_divergence(model, prompt, expected, got)
    assert divergence is None, f"{label}: {divergence.describe(tokenizer)}"


def assert_near(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int], label: str, tokenizer: Any = None
) -> bool:
    """Fail where the outputs differ for more than rounding; whether they differ at all."""
    divergence = first_divergence(model, prompt, expected, got)
    assert divergence is None or divergence.allowed, f"{label}: {divergence.describe(tokenizer)}"
    return divergence is not None
