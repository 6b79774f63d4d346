"""A decoder layer of our own, so that a target's quirks stay out of heads: the Llama layer, whatever attends.

Parameters have Llama's names. Who holds keys is the caller's: a cache at inference, tensors of the whole text in
training. Knows no caches and no masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .base import Norm
from .rotary import SCALINGS, frequencies_of

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [rows, H, N, size], keys and values [rows, KH, N, size] of new nodes -> what they attend to,
[rows, N, H, size]; the scale is size ** -0.5."""

Attends = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`Attend` for a head of several layers: told first which of them asks."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The sizes of a decoder layer.

    Attributes:
        width: D, of states.
        heads, kv_heads, head_size: of its attention.
        intermediate: width of its MLP.
        rope_theta: base of its rotary positions.
        eps: of its norms.
        qkv_bias: queries, keys and values have a bias.
        rope_scaling: how its positions are stretched, as Transformers' `rope_parameters` say it; None for not at all.
    """

    width: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.kv_heads, self.head_size, self.intermediate) < 1:
            raise ValueError("every size has to be 1 or more")
        if self.heads % self.kv_heads or self.head_size % 2:
            raise ValueError("heads have to be a multiple of kv_heads, and head_size even")
        if self.rope_scaling is not None and self.rope_scaling.get("rope_type") not in SCALINGS:
            raise ValueError(f"rope_scaling needs a rope_type out of {', '.join(SCALINGS)}")


class Attention(nn.Module):
    """Self-attention with grouped heads and rotary positions.

    Args:
        shape: of the layer.
        inputs: width of what comes in.
        normed: norm queries and keys, head by head (Qwen 3).

    Attributes:
        shape: see above.
    """

    def __init__(self, shape: BlockShape, inputs: int, *, normed: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(inputs, shape.heads * shape.head_size, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(inputs, shape.kv_heads * shape.head_size, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(inputs, shape.kv_heads * shape.head_size, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, shape.width, bias=False)
        self.q_norm, self.k_norm = (Norm(shape.head_size, shape.eps) if normed else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[rows, N, inputs] at positions [rows, N] -> [rows, N, D]"""
        turns = _turns(positions, self.shape, x.dtype)
        query = _turned(self.q_norm(self._heads(self.q_proj(x))), turns)
        mixed: Tensor = self.o_proj(attend(query, *self._keys(x, turns)).flatten(2))
        return mixed

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone: [rows, N, inputs] at positions [rows, N] -> [rows, KH, N, size] each"""
        return self._keys(x, _turns(positions, self.shape, x.dtype))

    def _keys(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return _turned(self.k_norm(self._heads(self.k_proj(x))), turns), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.shape.head_size).transpose(1, 2)


def attention_shapes(head: nn.Module) -> list[BlockShape]:
    """The sizes of a head's layers that have attention."""
    return [module.shape for module in head.modules() if isinstance(module, Attention)]


def kept_values(head: nn.Module) -> int:
    """How many numbers a head's attention keeps per token: keys and values of all its layers."""
    return sum(2 * shape.kv_heads * shape.head_size for shape in attention_shapes(head))


class Mlp(nn.Module):
    """The gated MLP."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        y: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return y


def _turns(positions: Tensor, shape: BlockShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [rows, 1, N, size] each."""
    cosines, sines = turns_at(positions[:, None], shape)
    return cosines.to(dtype), sines.to(dtype)


def turns_at(positions: Tensor, shape: BlockShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines at [...] positions, float32 [..., size] each."""
    frequencies, factor = frequencies_of(shape.head_size, shape.rope_theta, shape.rope_scaling, positions.device)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos() * factor, angles.sin() * factor


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al., 2104.09864), the halves of a head paired as in Llama."""
    first, second = x.chunk(2, -1)
    return x * turns[0] + torch.cat([-second, first], -1) * turns[1]
