"""No draft at all: plain decoding through the same loop, the baseline of every measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter


class NoDrafter(Drafter):
    """Proposes nothing; its state is the pending token."""

    spec = "none"
    from_text = for_encoders = True

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> list[int]:
        """See `Drafter`."""
        return [prompt[-1]]

    def propose(
        self,
        states: Sequence[list[int]],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        return [Draft(Tree.chain(state)) for state in states]

    def commit(self, state: list[int], tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state[0] = tokens[-1]

    def room(self, state: list[int]) -> int:
        """None: the policy is never asked for more than a plain step."""
        return 0
