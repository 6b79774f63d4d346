"""EAGLE (Li et al., 2401.15077): a decoder layer that predicts the target's next last state, read by its output layer.

Embedding and state are joined by one linear; the first layer has no norm before its attention and the last none behind,
because the states it imitates are normed already. In the layers' place may stand a gated recurrent unit, which looks at
no other place of the text: the target's state is the memory that it starts from, and a draft is its run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from .base import Norm, TargetOutput, initialise
from .blocks import Attend, Attends, Attention, BlockShape, Mlp
from .recurrent import RecurrentHead


@dataclass(frozen=True, slots=True)
class EagleShape:
    """The sizes of an EAGLE head.

    Attributes:
        block: of its layers.
        vocabulary: how many tokens can be drafted.
        layers: how many, one after another.
        cell: what goes from state to state: those layers, or a gated recurrent unit of the same width.
        bias: the linear that joins embedding and state has one.
        embedding: rows of an embedding of its own; 0 where it takes the target's.
    """

    block: BlockShape
    vocabulary: int
    layers: int = 1
    cell: Literal["transformer", "gru"] = "transformer"
    bias: bool = True
    embedding: int = 0

    def __post_init__(self) -> None:
        if self.layers < 1 or (self.layers > 1 and self.cell == "gru"):
            raise ValueError("there have to be layers, and a gated recurrent unit is one")


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape, *, first: bool) -> None:
        super().__init__()
        self.input_layernorm = nn.Identity() if first else Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), positions, attend)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class _Gru(nn.Module):
    """A gated recurrent unit (Cho et al., 1406.1078) between two linears: states are not bounded, its memory is."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        width = shape.width
        self.input_layernorm = Norm(width, shape.eps)
        self.remember, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.of_token, self.of_memory = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        memory = torch.tanh(self.remember(states))
        token = self.of_token(self.input_layernorm(embedded)).chunk(3, -1)
        before = self.of_memory(memory).chunk(3, -1)
        reset, update = (torch.sigmoid(token[gate] + before[gate]) for gate in (0, 1))
        new = torch.tanh(token[2] + reset * before[2])
        out: Tensor = self.out(new + update * (memory - new))
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
        if shape.cell == "gru":
            self.gru = _Gru(shape.block)
        else:
            self.fc = nn.Linear(2 * width, width, bias=shape.bias)
            self.layers = nn.ModuleList(_Layer(shape.block, first=not place) for place in range(shape.layers))
        if shape.embedding:
            self.embed_tokens = nn.Embedding(shape.embedding, width)
        initialise(self, width)
        self.output = output

    def fuse(self, features: Tensor) -> Tensor:
        """See `RecurrentHead`: the target's last states go in as they are."""
        return features

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attends) -> Tensor:
        """See `RecurrentHead`."""
        if self.shape.cell == "gru":
            remembered: Tensor = self.gru(embedded, states)
            return remembered
        states = self.fc(torch.cat([embedded, states], -1))
        for place, layer in enumerate(self.layers):
            states = layer(states, positions, partial(attend, place))
        return states

    def logits(self, states: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        logits: Tensor = self.output(states)
        return logits
