"""How much memory something took. Knows no decoding.

The process's high-water mark can be set back on Linux (`/proc/self/clear_refs`), a GPU's in PyTorch. Where neither can
be had there is no figure: the mark of the whole run would be blamed on whatever came last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device)


def reset_peak(device: torch.device) -> bool:
    """Begin anew; whether `peak` will be able to tell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def peak(device: torch.device) -> int | None:
    """Bytes that were held at most since `reset_peak`: of the device if it is a GPU, else of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return None


class Share(NamedTuple):
    """Of all weights that drafters add to a target's.

    Attributes:
        own: bytes that one of them adds.
        others: bytes that the others add and it does not use.
    """

    own: int
    others: int


def shares(drafters: Mapping[int, object], target: object) -> dict[int, Share]:
    """What each drafter adds; weights that several of them use count for each."""
    known = weights(target)
    added = {
        index: {place: size for place, size in weights(drafter).items() if place not in known}
        for index, drafter in drafters.items()
    }
    every = {place: size for found in added.values() for place, size in found.items()}
    whole = sum(every.values())
    return {index: Share(sum(found.values()), whole - sum(found.values())) for index, found in added.items()}


def weights(holder: object) -> dict[int, int]:
    """The tensors that can be reached from something: address of the storage -> its bytes.

    Followed are modules, containers and the attributes of objects of this package or with tensors of their own; what
    a closure holds is not seen.
    """
    found: dict[int, int] = {}
    waiting, seen = [holder], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.update(_storage(value))
        else:
            waiting.extend(_parts(value))
    return found


def _storage(tensor: Tensor) -> dict[int, int]:
    """Where a tensor's numbers lie; oneDNN's own layout has no address and counts by its size."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return {id(tensor): tensor.numel() * tensor.element_size()}
    return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}


def _parts(value: Any) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, nn.Module) or _ours(type(value)):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                with contextlib.suppress(AttributeError):
                    yield getattr(value, name)


def _ours(kind: type) -> bool:
    """Whether objects of this kind may hold weights: this package's, and drafters derived from its."""
    return any(base.__module__.partition(".")[0] == __name__.partition(".")[0] for base in kind.__mro__)
