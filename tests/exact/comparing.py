"""Comparing Outrider's greedy output with Transformers' own, and judging where they part.

`first_divergence` is written to be used outside the tests too: it needs a model, a prompt and two outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROUNDINGS = 2  # of the two logits that compete, each may be off by one


@dataclass(frozen=True)
class Divergence:
    """The first place at which two outputs of one prompt differ.

    Attributes:
        place: index in the output.
        expected, got: the tokens there; None where an output had ended.
        best, second: the two likeliest tokens by the model's own plain pass over prompt and common output.
        gap: by how much the model prefers its likeliest token to the less likely one of those two outputs.
        rounding: what the logits' precision leaves open at that height.
    """

    place: int
    expected: int | None
    got: int | None
    best: int
    second: int
    gap: float
    rounding: float

    @property
    def allowed(self) -> bool:
        """Whether it is a near tie: both tokens are the likeliest within rounding."""
        return self.gap <= self.rounding

    def describe(self, tokenizer: Any = None) -> str:
        """One line for people."""

        def show(token: int | None) -> str:
            if token is None:
                return "nothing"
            return f"{token} ({tokenizer.decode([token])!r})" if tokenizer is not None else str(token)

        return (
            f"token {self.place}: Transformers writes {show(self.expected)}, Outrider {show(self.got)}; likeliest are "
            f"{show(self.best)} and {show(self.second)}; gap {self.gap:.3g}, rounding {self.rounding:.3g}"
        )


@torch.no_grad()
def transformers_ids(model: Any, prompt: Sequence[int], max_new_tokens: int, processors: Any = None) -> list[int]:
    """What Transformers' own `generate` writes greedily after a prompt, alone and without padding."""
    from transformers import GenerationConfig

    ids = torch.tensor([list(prompt)])
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=model.generation_config.pad_token_id or 0,
    )
    options = {"logits_processor": processors} if processors is not None else {}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings, **options)
    return [int(token) for token in out[0, len(prompt) :]]


def rounding_of(logit: float, dtype: torch.dtype) -> float:
    """How much two logits of that height may move against each other when each is rounded once more."""
    exponent = math.floor(math.log2(max(abs(logit), 1e-30)))
    return ROUNDINGS * torch.finfo(dtype).eps * 2.0**exponent


@torch.no_grad()
def first_divergence(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
) -> Divergence | None:
    """Where two greedy outputs part, with the model's own opinion of it; None if they are equal.

    The opinion is that of one plain pass of the model, in its own precision and with its own attention.
    """
    pairs = zip(expected, got, strict=False)
    shorter = min(len(expected), len(got))
    place = next((index for index, (one, other) in enumerate(pairs) if one != other), shorter)
    if place == len(expected) == len(got):
        return None
    ids = torch.tensor([[*prompt, *expected[:place]]])
    logits = model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1]
    best, second = logits.float().topk(2).indices.tolist()
    tokens = [output[place] if place < len(output) else None for output in (expected, got)]
    # An output that merely stops has no token to compare: never a near tie.
    gap = max(math.inf if token is None else float(logits[best]) - float(logits[token]) for token in tokens)
    return Divergence(place, *tokens, best, second, gap, rounding_of(float(logits[best]), logits.dtype))


def assert_equal(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int], label: str, tokenizer: Any = None
) -> None:
    """Fail with both tokens and the gap between the likeliest two unless the outputs are the same."""
    divergence = first_divergence(model, prompt, expected, got) if list(expected) != list(got) else None
    assert divergence is None, f"{label}: {divergence.describe(tokenizer)}"


def assert_near(
    model: Any, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int], label: str, tokenizer: Any = None
) -> bool:
    """Fail where the outputs differ for more than rounding; whether they differ at all."""
    divergence = first_divergence(model, prompt, expected, got) if list(expected) != list(got) else None
    assert divergence is None or divergence.allowed, f"{label}: {divergence.describe(tokenizer)}"
    return divergence is not None
