"""Medusa (Cai et al., 2401.10774): heads that look further ahead from the target's last state, each by itself.

Head k is a residual block before the target's own output layer, and predicts the token k + 2 after the state's. Blocks
begin as the identity. Parameters have the names of vLLM's layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .base import DraftHead, TargetOutput


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """The sizes of Medusa heads.

    Attributes:
        width: D, of the target's states.
        heads: how many.
        layers: residual layers of each.
        vocabulary: how many tokens can be drafted.
        ranks: the static tree: for each node, best first, the ranks of the tokens on the way to it; empty before it has
            been searched for.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int
    ranks: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.layers, self.vocabulary) < 1:
            raise ValueError("every size has to be 1 or more")
        known: set[tuple[int, ...]] = {()}
        for path in self.ranks:
            if path[:-1] not in known or min(path) < 0 or len(path) > self.heads:
                raise ValueError("the tree has a node without a parent, or deeper than there are heads")
            known.add(path)


class _Block(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = states + silu(layer(states))
        return states


class MedusaHead(DraftHead):
    """The module; see the file.

    Args:
        shape: its sizes.
        output: the target's output layer over the draft vocabulary.
    """

    borrowed = ("output",)

    def __init__(self, shape: MedusaShape, output: TargetOutput) -> None:
        super().__init__()
        self.shape, self.output = shape, output
        self.blocks = nn.ModuleList(_Block(shape.width, shape.layers) for _ in range(shape.heads))

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] the target's last states, normed -> [..., heads, D] those of each head."""
        return torch.stack([block(states) for block in self.blocks], -2)

    def logits(self, states: Tensor) -> Tensor:
        """[..., D] from `forward` -> [..., n] over the draft vocabulary."""
        logits: Tensor = self.output(states)
        return logits
