"""EAGLE-3 (Li et al., 2503.01840): one decoder layer over fused states of three target layers, with a head of its own.

The layer takes embedding and state side by side, each normed; the residual is the state as it came in, and the state
that goes out is fed back without a norm. Parameters have the names of the speculators format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .base import Norm, initialise, normed_apart
from .blocks import Attend, Attends, Attention, BlockShape, Mlp
from .recurrent import RecurrentHead


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """The sizes of an EAGLE-3 head.

    Attributes:
        block: of its layer.
        taps: how many target layers it sees.
        vocabulary: how many tokens it can draft.
        fc_norm: norm each tapped state before they are fused; first tokens have states a thousand times the others'.
        norm_output: feed the normed state back (EAGLE-3.1) rather than the state itself.
    """

    block: BlockShape
    taps: int
    vocabulary: int
    fc_norm: bool = True
    norm_output: bool = False


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.hidden_norm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], -1)
        states = states + self.self_attn(both, positions, attend)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class Eagle3Head(RecurrentHead):
    """The module; see the file.

    Args:
        shape: its sizes.
    """

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        width, eps = shape.block.width, shape.block.eps
        self.shape = shape
        self.fc = nn.Linear(shape.taps * width, width, bias=False)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(width, eps) for _ in range(shape.taps))
        self.layers = nn.ModuleList([_Layer(shape.block)])
        self.norm = Norm(width, eps)
        self.lm_head = nn.Linear(width, shape.vocabulary, bias=False)
        initialise(self, width)

    def fuse(self, features: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        if self.shape.fc_norm:
            features = normed_apart(features, self.fc_norm, self.shape.taps)
        fused: Tensor = self.fc(features)
        return fused

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attends) -> Tensor:
        """See `RecurrentHead`."""
        states = self.layers[0](embedded, states, positions, partial(attend, 0))
        return self.norm(states) if self.shape.norm_output else states

    def logits(self, states: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        logits: Tensor = self.lm_head(states if self.shape.norm_output else self.norm(states))
        return logits
