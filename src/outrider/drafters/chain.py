"""A chain of draft tokens while it grows: for drafters that have a law for each next token. Knows no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..sampling import History, Sampling
from ..types import Budget, Draft, Noise, Tree


@dataclass(slots=True)
class Chain:
    """One row's draft, drawn token by token.

    Attributes:
        committed: the row's tokens, the pending one last.
        prompt_length: how many of them are the prompt's.
        budget, sampling, noise: as `Drafter.propose` got them.
        drafted: the draft tokens so far.
    """

    committed: Sequence[int]
    prompt_length: int
    budget: Budget
    sampling: Sampling
    noise: Noise
    drafted: list[int] = field(default_factory=list)
    _laws: list[Tensor] = field(default_factory=list)
    _ended: bool = False

    @property
    def newest(self) -> int:
        """The token that the next one follows."""
        return self.drafted[-1] if self.drafted else self.committed[-1]

    @property
    def open(self) -> bool:
        """Whether another token may be drawn."""
        return not self._ended and len(self.drafted) < self.budget.depth

    def grow(self, logits: Tensor) -> None:
        """Draw the next token.

        Args:
            logits: [V], the drafter's, for the token after `newest`.
        """
        past = [*self.committed, *self.drafted] if self.sampling.edits_logits else self.committed
        law = self.sampling.for_draft().law(logits[None], Tree.chain([self.newest]), History(past, self.prompt_length))
        token = int(law.draws(self.noise, [len(self.committed) + len(self.drafted)])[0])
        if self.sampling.temperature > 0:
            self._laws.append(law.probs)
        if self.budget.stop is not None:
            # A greedy law is one-hot and says nothing of how sure the drafter is.
            sure = law.probs[0] if self.sampling.temperature > 0 else logits.float().softmax(-1)
            self._ended = self.budget.stop(sure, token)
        self.drafted.append(token)

    def draft(self, started: object = None) -> Draft:
        """The whole of it; `started` as in `Draft`."""
        probs = torch.cat(self._laws) if self._laws else None
        tree = Tree.chain([self.committed[-1], *self.drafted])
        return Draft(tree, probs, "point" if probs is None else "iid", started=started)
