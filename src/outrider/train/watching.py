"""A drafter that keeps the target's states on their way past it, for answers that drafters will be trained on.

It drafts as the drafter inside it does. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..drafters import Drafter
from ..features import side_by_side
from ..kv import Seat
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores


@dataclass(slots=True)
class Watched:
    """A request's state: the inner drafter's, and what has been seen."""

    inner: Any
    parts: list[Tensor]

    def states(self) -> Tensor:
        """[N, layers * D] at all N tokens. The last token's are zeros: nothing comes after it, so no pass was made."""
        seen = torch.cat(self.parts)
        return torch.cat([seen, seen.new_zeros(1, seen.shape[1])])


class Watching(Drafter):
    """Drafts as another drafter, and keeps the states of these layers.

    Args:
        drafter: who drafts.
        layers: in `hidden_states` numbering; they are kept side by side, in this order.
    """

    def __init__(self, drafter: Drafter, layers: tuple[int, ...]) -> None:
        self._drafter, self._layers = drafter, layers
        self.taps = tuple(sorted({*layers, *drafter.taps}))
        self.spec, self.note, self.has_law = drafter.spec, drafter.note, drafter.has_law
        self.makes_trees, self.always_branches = drafter.makes_trees, drafter.always_branches
        self.reencodes, self.learns, self.reads = drafter.reencodes, drafter.learns, drafter.reads

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> Watched:
        """See `Drafter`."""
        parts = [side_by_side(hidden, self._layers).cpu()] if hidden else []
        return Watched(self._drafter.begin(prompt, hidden), parts)

    def propose(
        self,
        states: Sequence[Watched],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        return self._drafter.propose([state.inner for state in states], budgets, samplings, noises)

    def commit(self, state: Watched, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        self._drafter.commit(state.inner, tokens, scores, path)
        state.parts.append(side_by_side(scores.hidden_at(path, self._layers), self._layers).cpu())

    def seated(self, state: Watched, seat: Seat) -> None:
        """See `Drafter`."""
        self._drafter.seated(state.inner, seat)

    def end(self, state: Watched) -> None:
        """See `Drafter`; what has been seen stays with the state."""
        self._drafter.end(state.inner)

    def forget(self) -> None:
        """See `Drafter`."""
        self._drafter.forget()

    @property
    def token_bytes(self) -> int:
        """See `Drafter`."""
        return self._drafter.token_bytes

    def room(self, state: Watched) -> int:
        """See `Drafter`."""
        return self._drafter.room(state.inner)
