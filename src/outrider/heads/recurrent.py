"""What EAGLE's kind of heads have in common: a state and the next token give the next state. Knows no caches, no loop.

Slot i takes a state at position i and the embedding of token i + 1, and predicts token i + 2. The state is made from
the target's own where that is known; beyond, a head goes on from the state that it gave itself.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from .base import DraftHead
from .blocks import Attends, BlockShape


class RecurrentHead(DraftHead):
    """A head whose own output is its next input.

    Attributes:
        lean: the sizes of its attention, once its parts are those of `lean`: then it takes tokens side by side, as one
            row, and a `LeanAttend`.
    """

    lean: BlockShape | None = None

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """[..., n * D] the target's tapped states, side by side in the order of the taps -> [..., D] what goes in."""

    @abstractmethod
    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attends) -> Tensor:
        """The states that follow.

        Args:
            embedded: [rows, N, D] embeddings of the tokens after the states.
            states: [rows, N, D] from `fuse`, or from here.
            positions: [rows, N] int64, the slots.
            attend: see `blocks.Attends`.

        Returns:
            [rows, N, D]
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """[..., D] states from `forward` -> [..., n] over the draft vocabulary, for the token two after the slot."""
