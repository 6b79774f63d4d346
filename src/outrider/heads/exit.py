"""An exit in the middle of a target (after LayerSkip's, 2404.16710): its own layers stay as they are, and what leads
from a state between two of them to its output layer is learnt: a norm, and a low-rank step beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .base import DraftHead, Norm, TargetOutput, initialise


@dataclass(frozen=True, slots=True)
class ExitShape:
    """The sizes of an exit.

    Attributes:
        width: D, of the target's states.
        rank: of the step.
        vocabulary: how many tokens can be drafted.
        eps: of the norm.
    """

    width: int
    rank: int
    vocabulary: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if min(self.width, self.rank, self.vocabulary) < 1:
            raise ValueError("every size has to be 1 or more")


class ExitHead(DraftHead):
    """The module; see the file. It begins as the norm alone.

    Args:
        shape: its sizes.
        output: the target's output layer over the draft vocabulary.
    """

    borrowed = ("output",)

    def __init__(self, shape: ExitShape, output: TargetOutput) -> None:
        super().__init__()
        self.shape = shape
        self.norm = Norm(shape.width, shape.eps)
        self.down = nn.Linear(shape.width, shape.rank, bias=False)
        self.up = nn.Linear(shape.rank, shape.width, bias=False)
        initialise(self, shape.width)
        with torch.no_grad():
            self.up.weight.zero_()
        self.output = output

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] states after the layer of the exit -> [..., D] for the output layer."""
        normed = self.norm(states)
        found: Tensor = normed + self.up(silu(self.down(normed)))
        return found

    def logits(self, states: Tensor) -> Tensor:
        """[..., D] from `forward` -> [..., n] over the draft vocabulary."""
        logits: Tensor = self.output(states)
        return logits
