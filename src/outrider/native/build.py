"""Builds the kernels with this machine's C++ compiler, once, into the cache folder. Knows nothing of their purpose."""

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
from pathlib import Path
from typing import Any

import torch

from ..errors import first_line
from ..folders import cache_folder

_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp")
_TYPES = ("float32", "bfloat16")
_POINTER, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "attend": [_POINTER] * 9,
    "norm": [_POINTER, _POINTER, _POINTER, _REAL, _POINTER, _NUMBER, _NUMBER],
    "gate": [_POINTER, _NUMBER, _POINTER, _NUMBER, _NUMBER],
    "pack": [_POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER],
    "multiply": [_POINTER] * 4 + [_NUMBER] * 3,
    "pack8": [_POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER, _POINTER],
    "multiply8": [_POINTER] * 5 + [_NUMBER] * 3,
}


@functools.cache
def library() -> Any:
    """The compiled library, built on first use; None where there is no compiler that can (see `why_not`)."""
    return _library()[0]


def why_not() -> str:
    """What keeps the library from being built here, in a few words; empty where it is there."""
    return _library()[1]


def compiler() -> str | None:
    """The C++ compiler that builds it: CXX, or else the system's."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


@functools.cache
def _library() -> tuple[Any, str]:
    """The library and nothing, or None and the reason."""
    found = compiler()
    if found is None:
        return None, "there is no C++ compiler"
    sources = sorted(Path(__file__).parent.glob("*.cpp"))
    command = [found, *_FLAGS]
    built = cache_folder() / "native" / f"{_digest(command)}.so"
    try:
        if not built.is_file():
            _build([*command, *map(str, sources), *_openmp()], built)
        loaded = ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{found} cannot build it ({_told(error)})"
    for kernel, types in _SIGNATURES.items():
        for name in _TYPES:
            function = getattr(loaded, f"{kernel}_{name}")
            function.argtypes, function.restype = types, None
    loaded.panel.argtypes, loaded.panel.restype = [], _NUMBER
    loaded.contenders.argtypes = [_POINTER, _NUMBER, ctypes.c_uint64, _POINTER]
    loaded.contenders.restype = _NUMBER
    return loaded, ""


def _told(error: Exception) -> str:
    """What a compiler said first, or else the error itself."""
    said: bytes = getattr(error, "stderr", None) or b""
    return next(iter(said.decode(errors="replace").strip().splitlines()), first_line(error))


def _digest(command: Sequence[str]) -> str:
    """What the build depends on: the sources, the command, the processor, and PyTorch's threads."""
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.[ch]*"))]
    cpu = Path("/proc/cpuinfo")
    flags = (
        next((line for line in cpu.read_text().splitlines() if line.startswith("flags")), "") if cpu.exists() else ""
    )
    parts = (*texts, *command, platform.machine(), flags, torch.__version__)
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
