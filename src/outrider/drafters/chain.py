"""A chain that grows from logits: `growth.Chain` with the text that its laws stand on. Knows no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from ..sampling import History, Sampling
from ..types import Budget, Draft, Noise, Tree
from . import growth


class Text(Protocol):
    """What a chain has to know of a row: its tokens, the pending one last, and how many of them are the prompt's."""

    tokens: list[int]
    prompt_length: int


class Chain:
    """One row's draft, drawn token by token.

    Args:
        committed: the row's tokens, the pending one last.
        prompt_length: how many of them are the prompt's.
        ends: ids behind which nothing is drafted.
        budget, sampling, noise: as `Drafter.propose` got them.
    """

    def __init__(
        self,
        committed: Sequence[int],
        prompt_length: int,
        ends: tuple[int, ...],
        budget: Budget,
        sampling: Sampling,
        noise: Noise,
    ) -> None:
        self._committed, self._prompt_length, self._sampling = committed, prompt_length, sampling
        start = growth.Start(committed[-1], len(committed), budget, noise, ends)
        self._growing = growth.Chain(start) if budget.depth > 0 else None

    @property
    def drafted(self) -> list[int]:
        """The draft tokens so far."""
        return self._growing.tokens[1:] if self._growing else []

    @property
    def newest(self) -> int:
        """The token that the next one follows."""
        return self._growing.tokens[-1] if self._growing else self._committed[-1]

    @property
    def open(self) -> bool:
        """Whether another token may be drawn."""
        return self._growing is not None and self._growing.feed() is not None

    def grow(self, logits: Tensor) -> None:
        """Draw the next token.

        Args:
            logits: [V], the drafter's, for the token after `newest`.
        """
        assert self._growing is not None
        past = [*self._committed, *self.drafted] if self._sampling.edits_logits else self._committed
        history = History(past, self._prompt_length)
        self._growing.take(self._sampling.for_draft().law(logits[None], Tree.chain([self.newest]), history))

    def draft(self, started: object = None) -> Draft:
        """The whole of it; `started` as in `Draft`."""
        draft = self._growing.draft() if self._growing else Draft(Tree.chain(self._committed[-1:]))
        return replace(draft, started=started)


def chains_of(
    texts: Sequence[Text],
    ends: tuple[int, ...],
    budgets: Sequence[Budget],
    samplings: Sequence[Sampling],
    noises: Sequence[Noise],
) -> list[Chain]:
    """A chain for each row that `Drafter.propose` was asked about; see `Chain`."""
    return [
        Chain(text.tokens, text.prompt_length, ends, budget, sampling, noise)
        for text, budget, sampling, noise in zip(texts, budgets, samplings, noises, strict=True)
    ]
