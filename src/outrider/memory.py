"""Gives memory of weights that have served back to the system. Knows nothing of models.

Transformers maps weight files into memory; pages that were read stay resident until the whole mapping goes, which would
be at the very end of a conversion. So a converted weight's pages are dropped at once.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from typing import Any

from torch import Tensor

_DONT_NEED = 4  # MADV_DONTNEED on Linux


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def discard(tensor: Tensor) -> None:
    """Drop the pages of a CPU tensor that nobody will read again; its values are undefined afterwards."""
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first:
        _libc().madvise(first, end - first, _DONT_NEED)
