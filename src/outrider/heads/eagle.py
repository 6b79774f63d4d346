"""EAGLE (Li et al., 2401.15077): a decoder layer that predicts the target's next last state, read by its output layer.

Embedding and state are joined by one linear; the layer has no norm before its attention and none behind, because the
states it imitates are normed already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import TargetOutput, initialise
from .blocks import Attend, Attention, BlockShape, Mlp
from .recurrent import RecurrentHead


@dataclass(frozen=True, slots=True)
class EagleShape:
    """The sizes of an EAGLE head.

    Attributes:
        block: of its layers.
        vocabulary: how many tokens can be drafted.
        bias: the linear that joins embedding and state has one.
        embedding: rows of an embedding of its own; 0 where it takes the target's.
    """

    block: BlockShape
    vocabulary: int
    bias: bool = True
    embedding: int = 0


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        states = states + self.self_attn(states, positions, attend)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class EagleHead(RecurrentHead):
    """The module; see the file.

    Args:
        shape: its sizes.
        output: the target's output layer over the draft vocabulary.
    """

    borrowed = ("output",)

    def __init__(self, shape: EagleShape, output: TargetOutput) -> None:
        super().__init__()
        width = shape.block.width
        self.shape = shape
        self.fc = nn.Linear(2 * width, width, bias=shape.bias)
        if shape.embedding:
            self.embed_tokens = nn.Embedding(shape.embedding, width)
        self.layers = nn.ModuleList([_Layer(shape.block)])
        initialise(self, width)
        self.output = output

    def fuse(self, features: Tensor) -> Tensor:
        """See `RecurrentHead`: the target's last states go in as they are."""
        return features

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """See `RecurrentHead`."""
        out: Tensor = self.layers[0](self.fc(torch.cat([embedded, states], -1)), positions, attend)
        return out

    def logits(self, states: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        logits: Tensor = self.output(states)
        return logits
