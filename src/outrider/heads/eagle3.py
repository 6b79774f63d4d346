"""EAGLE-3 (Li et al., 2503.01840): one decoder layer over fused states of three target layers, with a head of its own.

The layer takes embedding and state side by side, each normed; the residual is the state as it came in, and the state
that goes out is fed back without a norm. The shape has the variants of published heads. Parameters have the names of
the speculators format.
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
        norm_before_fc: norm the tapped states as one, side by side, before they are fused; not with `fc_norm`.
        norm_before_residual: the residual is the state behind its norm, not before it.
        target_width: of the target's states, where the head is not as wide; 0 where it is.
        embedding: rows of an embedding of its own; 0 where it takes the target's.
        qk_norm: norm queries and keys, head by head (Qwen 3).
    """

    block: BlockShape
    taps: int
    vocabulary: int
    fc_norm: bool = True
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    target_width: int = 0
    embedding: int = 0
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if min(self.taps, self.vocabulary) < 1 or min(self.target_width, self.embedding) < 0:
            raise ValueError("every size has to be 1 or more")
        if self.fc_norm and self.norm_before_fc:
            raise ValueError("fc_norm and norm_before_fc exclude each other")
        if self.target_width and not self.embedding:
            raise ValueError("a head of another width than the target needs an embedding of its own")


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape, norm_before_residual: bool, qk_norm: bool) -> None:
        super().__init__()
        self._norm_before_residual = norm_before_residual
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.hidden_norm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width, normed=qk_norm)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = normed if self._norm_before_residual else states
        states = residual + self.self_attn(both, positions, attend)
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
        inputs = shape.target_width or width
        self.fc = nn.Linear(shape.taps * inputs, width, bias=False)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(inputs, eps) for _ in range(shape.taps))
        if shape.norm_before_fc:
            self.input_norm = Norm(shape.taps * inputs, eps)
        if shape.embedding:
            self.embed_tokens = nn.Embedding(shape.embedding, width)
        self.layers = nn.ModuleList([_Layer(shape.block, shape.norm_before_residual, shape.qk_norm)])
        self.norm = Norm(width, eps)
        self.lm_head = nn.Linear(width, shape.vocabulary, bias=False)
        initialise(self, width)

    def fuse(self, features: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        if self.shape.norm_before_fc:
            features = self.input_norm(features)
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
