"""Attention, norms and gates of the lean decoder in C++ (`native.cpp`), compiled once for this very machine.

PyTorch's kernels choose their blocking by the shape of a pass, so a token's bits depend on what shares it; these do
not, and they spare a small model the cost of dozens of small operations a layer. The library is built by the machine's
C++ compiler into the cache folder. Where that is not possible the lean decoder is not used, and nothing else changes.
Knows neither models nor caches, only pointers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import tree as trees
from .folders import cache_folder
from .types import Tree

LARGEST_HEAD = 256  # dimensions of a head; as in native.cpp
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
ACTS = {"silu": 0, "gelu_pytorch_tanh": 1}
_PADDING = -2
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp")


class Shape(ctypes.Structure):
    """See native.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "heads", "kv_heads", "size", "capacity")),
        ("lengths", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
    )


class Layer(ctypes.Structure):
    """See native.cpp."""

    _fields_ = (
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("eps", "scale", "cap")),
    )


class Nodes:
    """Where the nodes of one pass lie.

    Args:
        trees_: one per row; shorter ones are padded with nodes that see nothing.
        lengths: committed tokens per row.
        heads, kv_heads, size: of the model's attention.
        capacity: slots per row of the cache.
    """

    def __init__(
        self, trees_: Sequence[Tree], lengths: Sequence[int], heads: int, kv_heads: int, size: int, capacity: int
    ) -> None:
        self.rows, self.width = len(trees_), max(len(tree) for tree in trees_)
        parents = torch.full((self.rows, self.width), _PADDING, dtype=torch.int32)
        tokens = torch.zeros(self.rows, self.width, dtype=torch.int64)
        self._lengths = torch.tensor(lengths)
        self.positions = self._lengths[:, None].repeat(1, self.width)  # [rows, width]
        for row, tree in enumerate(trees_):
            parents[row, : len(tree)] = tree.parents
            tokens[row, : len(tree)] = tree.tokens
            self.positions[row, : len(tree)] += trees.depths(tree.parents)
        self.tokens, self._parents = tokens, parents
        self._rotated = torch.empty(self.rows * self.width, heads, size)
        self._shape = Shape(
            self.rows, self.width, heads, kv_heads, size, capacity, self._lengths.data_ptr(), parents.data_ptr()
        )

    def attend(
        self, layer: Layer, qkv: Tensor, turns: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, lines: int
    ) -> Tensor:
        """Norm and turn queries and keys, write keys and values into the cache, attend along each node's path.

        Args:
            layer: its constants.
            qkv: [rows * width or more, (heads + 2 * kv_heads) * size].
            turns: cosines and sines, float32 [rows, width, size] each.
            keys, values: the layer's whole storage, [rows, kv_heads, capacity, size].
            lines: rows of the result; those behind the nodes are zeros.

        Returns:
            [lines, heads * size]
        """
        shape = self._shape
        mixed = qkv.new_zeros(lines, shape.heads * shape.size)
        _call(
            f"attend_{DTYPES[qkv.dtype]}", ctypes.byref(shape), ctypes.byref(layer), qkv.data_ptr(),
            turns[0].data_ptr(), turns[1].data_ptr(), keys.data_ptr(), values.data_ptr(), self._rotated.data_ptr(),
            mixed.data_ptr(),
        )  # fmt: skip
        return mixed


def norm(x: Tensor, weight: Tensor, eps: float, *, add: Tensor | None = None) -> Tensor:
    """x / rms(x) * weight row by row, after adding `add` to x in place.

    Args:
        x, add: [N, D] contiguous.
        weight: [D] float32.
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


@functools.cache
def library() -> Any:
    """The compiled library, built on first use; None where there is no compiler that can."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    source = Path(str(files(__package__).joinpath("native.cpp")))
    command = [compiler, *_FLAGS]
    built = cache_folder() / "native" / f"{_digest(source, command)}.so"
    try:
        if not built.is_file():
            _build([*command, str(source), *_openmp()], built)
        loaded = ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    for name in DTYPES.values():
        for kernel, types in (
            ("attend", [pointer] * 9),
            ("norm", [pointer, pointer, pointer, real, pointer, number, number]),
            ("gate", [pointer, number, pointer, number, number]),
        ):
            function = getattr(loaded, f"{kernel}_{name}")
            function.argtypes, function.restype = types, None
    return loaded


def _call(name: str, *arguments: Any) -> None:
    getattr(library(), name)(*arguments)


def _digest(source: Path, command: Sequence[str]) -> str:
    """What the build depends on: the source, the command, the processor, and PyTorch's threads."""
    cpu = Path("/proc/cpuinfo")
    flags = (
        next((line for line in cpu.read_text().splitlines() if line.startswith("flags")), "") if cpu.exists() else ""
    )
    parts = (source.read_text(), *command, platform.machine(), flags, torch.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _openmp() -> list[str]:
    """PyTorch's own OpenMP library where it brings one: two pools of threads would fight for the cores."""
    return [str(path) for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))[:1]]


def _build(command: Sequence[str], built: Path) -> None:
    """Compile beside the final place and rename: a build that breaks off leaves nothing half done."""
    built.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=built.parent) as work:
        out = Path(work) / built.name
        subprocess.run([*command, "-o", str(out)], check=True, capture_output=True, timeout=300)
        out.rename(built)
