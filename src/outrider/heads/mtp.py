"""Multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2): modules that go on from a target's last states.

A checkpoint's own depths have decoder layers of the target's kind. A trained one has a layer of ours, and is recursed:
one depth goes on from its own state, however far ahead (FastMTP). Both are the same step. Knows no files, no caches and
no loop; the target's embedding and head are the caller's where a checkpoint has no own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .base import Norm, TargetOutput, initialise
from .blocks import Attend, Attends, Attention, BlockShape, Mlp
from .recurrent import RecurrentHead


class MtpDepth(nn.Module):
    """One depth: the state at a position and the embedding of a later token give the state that predicts the next.

    Args:
        width: D of the target.
        block: a decoder layer of the target's kind.
        norms: of the embedding, of the incoming state, of the outgoing one.
        rotary: (states, positions) -> the position embeddings that the decoder layer takes.
        embedding: [V, D] the depth's own table; None for the target's.
        head: D to V, the depth's own; None for the target's.
    """

    def __init__(
        self,
        width: int,
        block: nn.Module,
        norms: tuple[nn.Module, nn.Module, nn.Module],
        rotary: Callable[[Tensor, Tensor], Any],
        embedding: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.norm = norms
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.block, self.rotary = block, rotary
        self.embedding, self.head = embedding, head

    def forward(self, embedded: Tensor, hidden: Tensor, positions: Tensor, **how: Any) -> Tensor:
        """The normed states, ready for the head and for the next depth.

        Args:
            embedded, hidden: [rows, N, D]; `hidden` is normed as a target's last states are, or came from here.
            positions: [rows, N] int64.
            how: what else the decoder layer takes, for example the pass that holds its keys.
        """
        states = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        turns = self.rotary(states, positions)
        mixed = self.block(states, attention_mask=None, position_ids=positions, position_embeddings=turns, **how)
        normed: Tensor = self.norm(mixed)
        return normed


@dataclass(frozen=True, slots=True)
class MtpShape:
    """The sizes of a trained head.

    Attributes:
        block: of its layer.
        vocabulary: how many tokens can be drafted.
        joined: in which order embedding and state go into `eh_proj`; code bases differ, so it is written down.
    """

    block: BlockShape
    vocabulary: int
    joined: Literal["embedding, state"] = "embedding, state"


class _Layer(nn.Module):
    """The Llama layer, called as Transformers' decoder layers are."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, states: Tensor, *, position_ids: Tensor, attend: Attend, **_: Any) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), position_ids, attend)
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class MtpHead(RecurrentHead):
    """One depth with a layer of ours, recursed.

    Args:
        shape: its sizes.
        output: the target's output layer over the draft vocabulary.
    """

    borrowed = ("output",)

    def __init__(self, shape: MtpShape, output: TargetOutput) -> None:
        super().__init__()
        width, eps = shape.block.width, shape.block.eps
        norms = (Norm(width, eps), Norm(width, eps), Norm(width, eps))
        self.shape = shape
        self.depth = MtpDepth(width, _Layer(shape.block), norms, rotary=lambda *_: None)  # the layer turns by itself
        initialise(self, width)
        self.output = output

    def fuse(self, features: Tensor) -> Tensor:
        """See `RecurrentHead`: the target's last states go in as they are."""
        return features

    def forward(self, embedded: Tensor, states: Tensor, positions: Tensor, attend: Attends) -> Tensor:
        """See `RecurrentHead`."""
        out: Tensor = self.depth(embedded, states, positions, attend=partial(attend, 0))
        return out

    def logits(self, states: Tensor) -> Tensor:
        """See `RecurrentHead`."""
        logits: Tensor = self.output(states)
        return logits
