"""A target's states at the tokens of its answers, kept on the disk, so that it runs once however often they are read.

A store lies in the folder of the answers: `features.json` says which layers, of which target, in which type; each shard
is a safetensors file that is written in one step and names a hash of what it holds. States are kept under a hash of the
tokens up to theirs, so answers that changed do not find any. What is missing or broken is computed, the rest is not.
Knows no heads and no losses.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import BadOption
from ..target import Target
from .answers import Answer
from .corpus import OnlineFeatures

FOLDER, _ABOUT = "features", "features.json"
_SHARD = 64 << 20  # bytes of states that are gathered before they are written
_TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
GIB = 1 << 30
LIMIT = 64.0  # GiB, if nobody says


class About(BaseModel):
    """What a store holds.

    Attributes:
        format: of the folder.
        target: hash of whose states they are.
        computed: the type that the target computed the first of them in. Those of another serve as well: a drafter has
            to do with states of either, and they took long.
        dtype: the type that they are kept in.
        layers: which, rising, in `hidden_states` numbering; the last is the depth of the target.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    target: str
    computed: str
    dtype: Literal["bfloat16", "float32"]
    layers: tuple[int, ...]

    def serves(self, other: About) -> bool:
        """Whether all that `other` wants is here."""
        return set(other.layers) <= set(self.layers) and self.alike(other)

    def alike(self, other: About) -> bool:
        """Whether these are the same states, of other layers perhaps."""
        return (self.format, self.target, self.dtype) == (other.format, other.target, other.dtype)

    def token_bytes(self, width: int) -> int:
        """Bytes that a token takes."""
        return len(self.layers) * width * _TYPES[self.dtype].itemsize


class Store:
    """The states of one folder of answers.

    Args:
        answers: folder of the answers; the store is its subfolder `features`.
        about: what is wanted. A store that does not have it is removed, and made again with its layers besides, unless
            it is of another target or type.

    Attributes:
        about: what the store holds, which may be more than was wanted.
    """

    def __init__(self, answers: Path, about: About) -> None:
        self.path, self.about = answers / FOLDER, about
        there = self._read()
        if there is not None and there.serves(about):
            self.about = there
        else:
            if there is not None and there.alike(about):
                self.about = about.model_copy(update={"layers": tuple(sorted({*there.layers, *about.layers}))})
            self.clear()
        self._places: dict[str, tuple[Path, int]] = {}
        self._open: dict[Path, Any] = {}

    def _read(self) -> About | None:
        try:
            return About.model_validate_json((self.path / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def clear(self) -> None:
        """Remove what is there, and begin anew."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        _in_one_step(self.path / _ABOUT, (self.about.model_dump_json(indent=2) + "\n").encode())

    def scan(self, advance: Callable[[], None] = lambda: None) -> None:
        """Find out what is there; shards that are not what they were written as are removed.

        Args:
            advance: called for each shard.
        """
        self._places.clear()
        self._open.clear()
        for shard in self.shards():
            held = _checked(shard)
            if held is None:
                shard.unlink(missing_ok=True)
            for key, length in (held or {}).items():
                self._places[key] = (shard, length)
            advance()

    def shards(self) -> list[Path]:
        """The files of states."""
        return sorted(self.path.glob("*.safetensors"))

    def missing(self, answers: Iterable[Answer]) -> list[Answer]:
        """Those of which no states are here; `scan` first."""
        return [answer for answer in answers if key_of(answer.ids) not in self._places]

    def get(self, key: str, layers: Sequence[int]) -> Tensor | None:
        """[N, len(layers) * D] states under a key, in the type they are kept in; None if there are none."""
        place = self._places.get(key)
        if place is None:
            return None
        shard, length = place
        if shard not in self._open:
            self._open[shard] = safe_open(shard, "pt")
        states: Tensor = self._open[shard].get_tensor(key)
        parts = states.view(length, len(self.about.layers), -1)
        return torch.cat([parts[:, self.about.layers.index(layer)] for layer in layers], -1)


class Shards:
    """Writes states into a store, some answers to a file.

    Args:
        store: where to.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._waiting, self._bytes = store, dict[str, Tensor](), 0

    def add(self, ids: Sequence[int], states: Tensor) -> None:
        """Take the states at these tokens, [N, layers * D] in the order of the store's layers."""
        kept = states.to("cpu", _TYPES[self._store.about.dtype]).contiguous()
        self._waiting[key_of(ids)] = kept
        self._bytes += kept.nbytes
        if self._bytes >= _SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting; it is on the disk when this returns."""
        if not self._waiting:
            return
        held = {key: len(states) for key, states in self._waiting.items()}
        digest = _digest(self._waiting)
        whole = save(self._waiting, {"format": "pt", "held": json.dumps(held), "sha256": digest})
        _in_one_step(self._store.path / f"{digest[:16]}.safetensors", whole)
        self._waiting, self._bytes = {}, 0


def fill(
    store: Store, answers: Sequence[Answer], states: OnlineFeatures, advance: Callable[[], None] = lambda: None
) -> None:
    """Compute the states of these answers into a store. What was written stays when this is broken off.

    Args:
        store, answers: see `Store.missing`.
        states: of the layers that the store holds, in their order.
        advance: called for each answer.
    """
    shards = Shards(store)
    try:
        for answer in answers:
            shards.add(answer.ids, states(answer.ids)[0])
            advance()
    finally:
        shards.flush()


class StoredFeatures:
    """States read from stores.

    Attributes:
        target: whose they are.

    Args:
        target: see above.
        taps, last: which layers are wanted.
        stores: where they are, scanned.
        answers: whole; they may be asked for cut to `longest` tokens.
        longest: see above.
    """

    def __init__(
        self,
        target: Target,
        taps: tuple[int, ...],
        last: int,
        stores: Sequence[Store],
        answers: Iterable[Answer],
        longest: int,
    ) -> None:
        self.target, self._taps, self._last, self._stores = target, taps, last, stores
        self._whole = {key_of(answer.ids[:longest]): key_of(answer.ids) for answer in answers}

    def __call__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `corpus.Features`.

        Raises:
            KeyError: they are in no store.
        """
        key = self._whole[key_of(ids)]
        for store in self._stores:
            found = store.get(key, (*self._taps, self._last))
            if found is not None:
                states = found[: len(ids)].to(self.target.device, torch.float32)
                width = states.shape[-1] // (len(self._taps) + 1)
                return states[:, :-width], states[:, -width:]
        raise KeyError(key)


def check_room(path: Path, needed: int, limit: float, there: int = 0) -> None:
    """That so many bytes of states may and can be kept.

    Args:
        path: where, on the disk.
        needed: bytes.
        limit: GiB that they may be.
        there: bytes of them that are there already.

    Raises:
        BadOption: they are more than the limit, or than the disk has room for.
    """
    if needed > limit * GIB:
        raise BadOption(
            f"The states would take {needed / GIB:.1f} GiB and {limit:g} are allowed: raise --features-limit, or take "
            "--features online."
        )
    free = shutil.disk_usage(path).free
    if needed - there > free:
        raise BadOption(
            f"The states would take {(needed - there) / GIB:.1f} GiB more and the disk of {path} has {free / GIB:.1f} "
            "left: make room, or take --features online."
        )


def key_of(ids: Sequence[int]) -> str:
    """A name for these tokens."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:32]


def _digest(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for key in sorted(tensors):
        found.update(key.encode())
        found.update(tensors[key].view(torch.uint8).numpy().data)
    return found.hexdigest()


def _checked(shard: Path) -> dict[str, int] | None:
    """What a shard holds, key -> tokens; None if it is not whole."""
    try:
        with safe_open(shard, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - it is no dictionary
        held = {key: len(tensor) for key, tensor in tensors.items()}
        whole = json.loads(about["held"]) == held and about["sha256"] == _digest(tensors)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError):
        return None
    return held if whole else None


def _in_one_step(file: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix=f".{file.name}-", dir=file.parent, delete=False) as opened:
        work = Path(opened.name)
        try:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            work.replace(file)
        finally:
            work.unlink(missing_ok=True)
