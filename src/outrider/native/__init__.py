"""Linears, attention, norms and gates of the lean decoder, and races of noise, in C++, compiled for this very machine.

PyTorch's kernels choose their blocking by the shape of a pass, so a token's bits depend on what shares it; these do
not, and they spare a small model the cost of dozens of small operations a layer. The library is built by the machine's
C++ compiler into the cache folder. Where that is not possible the lean decoder is not used, and nothing else changes.
Knows neither models nor caches, only pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import tree as trees
from ..types import Tree
from .build import compiler, library, why_not

__all__ = [
    "ACTS",
    "DTYPES",
    "LARGEST_HEAD",
    "Layer",
    "Nodes",
    "Panels",
    "available",
    "compiler",
    "contenders",
    "gate",
    "norm",
    "why_not",
]

LARGEST_HEAD = 256  # dimensions of a head; as in attention.cpp
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
ACTS = {"silu": 0, "gelu_pytorch_tanh": 1}
_PADDING = -2
_PANEL8 = 16  # outputs side by side in int8; as in linear.cpp


def available() -> bool:
    """Whether the kernels could be built here."""
    return library() is not None


class Shape(ctypes.Structure):
    """See attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "heads", "kv_heads", "size", "capacity")),
        ("lengths", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
    )


class Layer(ctypes.Structure):
    """See attention.cpp."""

    _fields_ = (
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("eps", "scale", "cap")),
    )


class Nodes:
    """Where the nodes of one pass lie.

    Args:
        trees_: one per row. In the kernel's layout, [rows, width], shorter ones are padded with nodes that see nothing;
            everywhere else there are the nodes alone, row after row.
        lengths: committed tokens per row.
        heads, kv_heads, size: of the model's attention.
        capacity: slots per row of the cache.

    Attributes:
        sizes: nodes of each row.
        tokens: [N] int64, of the nodes.
        positions: [rows, width] int64.
    """

    def __init__(
        self, trees_: Sequence[Tree], lengths: Sequence[int], heads: int, kv_heads: int, size: int, capacity: int
    ) -> None:
        self.sizes = [len(tree) for tree in trees_]
        rows, width = len(trees_), max(self.sizes)
        parents = torch.full((rows, width), _PADDING, dtype=torch.int32)
        self._lengths = torch.tensor(lengths)
        self.positions = self._lengths[:, None].repeat(1, width)
        for row, tree in enumerate(trees_):
            parents[row, : len(tree)] = tree.parents
            self.positions[row, : len(tree)] += trees.depths(tree.parents)
        self.tokens, self._parents = torch.cat([tree.tokens for tree in trees_]), parents
        ragged = len(self.tokens) < rows * width
        self._places = (parents.flatten() != _PADDING).nonzero().squeeze(-1) if ragged else None  # [N]
        self._rotated = torch.empty(rows * width, heads, size)
        self._shape = Shape(rows, width, heads, kv_heads, size, capacity, self._lengths.data_ptr(), parents.data_ptr())

    def attend(self, layer: Layer, qkv: Tensor, turns: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> Tensor:
        """Norm and turn queries and keys, write keys and values into the cache, attend along each node's path.

        Args:
            layer: its constants.
            qkv: [N, (heads + 2 * kv_heads) * size].
            turns: cosines and sines, float32 [rows, width, size] each.
            keys, values: the layer's whole storage, [rows, kv_heads, capacity, size].

        Returns:
            [N, heads * size].
        """
        shape = self._shape
        if self._places is not None:
            qkv = qkv.new_zeros(shape.rows * shape.width, qkv.shape[1]).index_copy_(0, self._places, qkv)
        mixed = qkv.new_zeros(qkv.shape[0], shape.heads * shape.size)
        _call(
            f"attend_{DTYPES[qkv.dtype]}", ctypes.byref(shape), ctypes.byref(layer), qkv.data_ptr(),
            turns[0].data_ptr(), turns[1].data_ptr(), keys.data_ptr(), values.data_ptr(), self._rotated.data_ptr(),
            mixed.data_ptr(),
        )  # fmt: skip
        return mixed if self._places is None else mixed[self._places]


def norm(x: Tensor, weight: Tensor, eps: float, *, add: Tensor | None = None) -> Tensor:
    """x / rms(x) * weight row by row, after adding `add` to x in place.

    Args:
        x, add: [N, D] contiguous.
        weight: [D] float32.
        eps: added to the mean square before its root is taken.
    """
    out = torch.empty_like(x)
    delta = None if add is None else add.data_ptr()
    _call(f"norm_{DTYPES[x.dtype]}", x.data_ptr(), delta, weight.data_ptr(), eps, out.data_ptr(), *x.shape)
    return out


def gate(both: Tensor, act: int) -> Tensor:
    """[N, 2 * I] -> [N, I]: the activation of the first half times the second; `act` is one of `ACTS`."""
    out = both.new_empty(both.shape[0], both.shape[1] // 2)
    _call(f"gate_{DTYPES[both.dtype]}", both.data_ptr(), act, out.data_ptr(), *out.shape)
    return out


def contenders(probs: Tensor, base: int) -> Tensor:
    """The ids of [V] float32, contiguous, that can win the race of `noise.race` with this base; [few], rising."""
    found = torch.empty(probs.shape[0], dtype=torch.int64)
    count = library().contenders(probs.data_ptr(), probs.shape[0], base, found.data_ptr())
    return found[:count]


class Panels:
    """The weights of a linear, ordered so that a pass over few rows reads them once and in sequence.

    Args:
        outputs, inputs: of the linear.
        dtype: of the weights that will be put in, and of what is multiplied.
        int8: round each output's weights to int8, with a scale of its own; inputs are rounded to 16 bits row
            by row.
    """

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype, *, int8: bool = False) -> None:
        self.outputs, self.inputs, self.int8 = outputs, inputs, int8
        self._name, self._filled = DTYPES[dtype], 0
        self._panel = _PANEL8 if int8 else int(library().panel())
        panels, deep = -(-outputs // self._panel), -(-inputs // 2) * 2 if int8 else inputs
        make = torch.empty if deep == inputs else torch.zeros  # zeros are memory at once, before anything is put in
        self._data = make(panels, deep, self._panel, dtype=torch.int8 if int8 else dtype)
        self._data[-1].zero_()
        self._scales = torch.zeros(outputs if int8 else 0)
        held = (self._data, self._scales) if int8 else (self._data,)
        self._weights = tuple(tensor.data_ptr() for tensor in held)
        self._multiply = getattr(library(), f"multiply{'8' if int8 else ''}_{self._name}")

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, scales included."""
        return self._data.nbytes + self._scales.nbytes

    def put(self, weight: Tensor) -> None:
        """Copy the next outputs in: [any, inputs]."""
        weight = weight.detach().contiguous()
        sizes = (*weight.shape, self._filled)
        if self.int8:
            _call(f"pack8_{self._name}", weight.data_ptr(), *sizes, *self._weights)
        else:
            _call(f"pack_{self._name}", weight.data_ptr(), *sizes, *self._weights)
        self._filled += weight.shape[0]

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[N, inputs] -> [N, outputs]; `bias` is float32 [outputs] or None."""
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self.outputs)
        added = None if bias is None else bias.data_ptr()
        self._multiply(*self._weights, x.data_ptr(), added, y.data_ptr(), x.shape[0], self.inputs, self.outputs)
        return y

    def rows(self, outputs: Tensor) -> Tensor:
        """The weights of these outputs as they were put in, [*shape of outputs, inputs]; not of int8."""
        place = outputs % self._panel
        if self._data.dtype == torch.bfloat16:  # pairs share a word
            half = self._panel // 2
            place = torch.where(place < half, 2 * place, 2 * (place - half) + 1)
        return self._data[outputs // self._panel, :, place]


def _call(name: str, *arguments: Any) -> None:
    getattr(library(), name)(*arguments)
