"""DFlash (block diffusion): a few layers fill in a whole block of tokens at once, looking at the target's states.

The target's tapped states are fused to one state per position, whose keys and values stand before the block's own in
every layer. Of the block the first token is known, the others are masks; they see each other both ways. Slot k is read
as the token k places after the first. Parameters have the names of the published layout (z-lab/dflash).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .base import DraftHead, Norm, TargetOutput, initialise, normed_apart
from .blocks import Attend, Attends, Attention, BlockShape, Mlp


@dataclass(frozen=True, slots=True)
class DFlashShape:
    """The sizes of a DFlash head.

    Attributes:
        block: of its layers.
        layers: how many.
        taps: how many target layers it sees.
        vocabulary: how many tokens can be drafted.
        size: of a block, the known token included; one less can be drafted.
        mask: the target's id whose embedding stands for a token that is not known.
        fc_norm: norm each tapped state before they are fused; without it the weights have the published layout.
    """

    block: BlockShape
    layers: int
    taps: int
    vocabulary: int
    size: int
    mask: int
    fc_norm: bool = True

    def __post_init__(self) -> None:
        if min(self.layers, self.taps, self.vocabulary, self.size - 1) < 1 or self.mask < 0:
            raise ValueError("every size has to be 1 or more, a block 2 or more, and the mask an id")


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape, shape.width, normed=True)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), positions, attend)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class DFlashHead(DraftHead):
    """The module; see the file.

    Args:
        shape: its sizes.
        output: the target's output layer over the draft vocabulary.
    """

    borrowed = ("output",)

    def __init__(self, shape: DFlashShape, output: TargetOutput) -> None:
        super().__init__()
        width, eps = shape.block.width, shape.block.eps
        self.shape = shape
        self.fc = nn.Linear(shape.taps * width, width, bias=False)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(width, eps) for _ in range(shape.taps))
        self.hidden_norm = Norm(width, eps)
        self.layers = nn.ModuleList(_Layer(shape.block) for _ in range(shape.layers))
        self.norm = Norm(width, eps)
        initialise(self, width)
        self.output = output

    def fuse(self, features: Tensor) -> Tensor:
        """[..., taps * D] the target's tapped states, side by side -> [..., D] what the layers see of a position."""
        if self.shape.fc_norm:
            features = normed_apart(features, self.fc_norm, self.shape.taps)
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def keys(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the text: [rows, N, D] from `fuse` at positions [rows, N] -> [rows, KH, N, size] each, for
        each layer."""
        return [layer.self_attn.keys(fused, positions) for layer in self.layers]  # type: ignore[operator, union-attr]

    def forward(self, embedded: Tensor, positions: Tensor, attend: Attends) -> Tensor:
        """What a block becomes.

        Args:
            embedded: [rows, N, D] embeddings of a known token and of masks behind it.
            positions: [rows, N] int64, those of the text.
            attend: over the text before the block (`keys`), and over the block itself, later tokens included.

        Returns:
            [rows, N, D]; slot k's is that of the token k places after the known one.
        """
        states = embedded
        for place, layer in enumerate(self.layers):
            states = layer(states, positions, partial(attend, place))
        return states

    def logits(self, states: Tensor) -> Tensor:
        """[..., D] from `forward` -> [..., n] over the draft vocabulary."""
        logits: Tensor = self.output(self.norm(states))
        return logits

    def masked(self, first: Tensor) -> Tensor:
        """Blocks whose first tokens are these: [...] -> [..., size] int64"""
        rest = first.new_full((*first.shape, self.shape.size - 1), self.shape.mask)
        return torch.cat([first[..., None], rest], -1)
