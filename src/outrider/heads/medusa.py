"""Medusa (Cai et al., 2401.10774): heads that look further ahead from the target's last state, each by itself.

Head k is a residual block before an output layer, and predicts the token k + 2 after the state's. The output layer is
the target's own; published heads bring one for all of them, or one each. Blocks begin as the identity. Parameters have
the names of vLLM's layout.
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
        bias: residual layers have one.
        outputs: output layers of its own: none, one for all heads, or one for each.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int
    ranks: tuple[tuple[int, ...], ...] = ()
    bias: bool = True
    outputs: int = 0

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.layers, self.vocabulary) < 1:
            raise ValueError("every size has to be 1 or more")
        if self.outputs not in (0, 1, self.heads):
            raise ValueError("outputs has to be 0, 1, or as many as there are heads")
        known: set[tuple[int, ...]] = {()}
        for path in self.ranks:
            if path[:-1] not in known or min(path) < 0 or len(path) > self.heads:
                raise ValueError("the tree has a node without a parent, or deeper than there are heads")
            known.add(path)


class _Block(nn.Module):
    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(shape.width, shape.width, bias=shape.bias) for _ in range(shape.layers))
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
        output: the target's output layer over the draft vocabulary; None where the head has its own.
    """

    borrowed = ("output",)

    def __init__(self, shape: MedusaShape, output: TargetOutput | None) -> None:
        super().__init__()
        self.shape, self.output = shape, output
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.heads))
        if shape.outputs:
            layers = (nn.Linear(shape.width, shape.vocabulary, bias=False) for _ in range(shape.outputs))
            self.lm_heads = nn.ModuleList(layers)

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] the target's last states, normed -> [..., heads, D] those of each head."""
        return torch.stack([block(states) for block in self.blocks], -2)

    def logits(self, states: Tensor) -> Tensor:
        """[..., heads, D] from `forward` -> [..., heads, n] over the draft vocabulary; with one output layer for all
        heads any [..., D] -> [..., n]."""
        if self.shape.outputs > 1:
            each = zip(self.lm_heads, states.unbind(-2), strict=True)
            return torch.stack([layer(part) for layer, part in each], -2)
        layer = self.lm_heads[0] if self.shape.outputs else self.output
        assert layer is not None
        logits: Tensor = layer(states)
        return logits
