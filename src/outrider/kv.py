"""The KV cache: preallocated, one length per row, written at each row's own offset. Knows no models and no masks.

Committed length is the only source of positions and masks: whatever lies behind it, rejected drafts or padding, is
overwritten later and never looked at. Window layers keep all their keys; the mask alone makes the window.

What an encoder made of a row's source belongs to the row too. It is written once and stays as it is, whatever happens
to drafts: keeping and cropping are about the tokens alone.

Requests sit on rows (`Seat`). When some leave and others come, those that stay are not moved: newcomers take the rows
that were left, so that a server's batch is not copied whenever one of its requests ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor

from .types import Source

BLOCK = 512  # slots; storage grows by whole blocks


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What an encoder made of one row's source, and what the decoder's layers read of it.

    Attributes:
        source: what was encoded.
        states: [S, D], the encoder's last states.
        layers: layer -> keys and values of its cross-attention, [1, heads, S, size] each.
    """

    source: Source
    states: Tensor
    layers: dict[int, tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.states.nbytes + sum(tensor.nbytes for pair in self.layers.values() for tensor in pair)


class KVCache:
    """Keys and values of all layers for a batch of rows.

    Attributes:
        lengths: committed tokens per row, on the host so that no round waits for a device.
        capacity: slots per row that are allocated.
        encoded: per row what its encoder made of its source; None for targets without an encoder.
        seats: who sits here, as long as anyone knows them.
    """

    def __init__(self, rows: int = 1, capacity: int = BLOCK) -> None:
        self.lengths = [0] * rows
        self.encoded: list[Encoded | None] = [None] * rows
        self.capacity = -(-capacity // BLOCK) * BLOCK
        self.seats: WeakSet[Seat] = WeakSet()
        self._room = rows
        self._whole: dict[int, tuple[Tensor, Tensor]] = {}  # with the rows that nobody has now
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}  # without them

    @property
    def rows(self) -> int:
        """How many rows the cache holds."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        sources = sum(encoded.nbytes for encoded in self.encoded if encoded is not None)
        return sources + sum(tensor.nbytes for pair in self._whole.values() for tensor in pair)

    def reserve(self, width: int) -> None:
        """Make room for `width` more slots behind every row's committed ones."""
        needed = max(self.lengths) + width
        if needed <= self.capacity:
            return
        self.capacity = max(2 * self.capacity, -(-needed // BLOCK) * BLOCK)
        used = max(self.lengths)
        for layer, pair in self._layers.items():
            self._lay(layer, (self._grown(pair[0], used), self._grown(pair[1], used)))

    def _grown(self, old: Tensor, used: int) -> Tensor:
        new = old.new_zeros(self._room, old.shape[1], self.capacity, old.shape[3])
        new[: self.rows, :, :used] = old[:, :, :used]
        return new

    def _lay(self, layer: int, whole: tuple[Tensor, Tensor]) -> None:
        self._whole[layer] = whole
        self._layers[layer] = whole if self._room == self.rows else (whole[0][: self.rows], whole[1][: self.rows])

    def storage(self, layer: int, heads: int, sizes: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, [rows, heads, capacity, size] each; made on first use, with the type of `like`."""
        if layer not in self._layers:
            # Zeros, not garbage: a masked key has weight 0, but 0 times NaN is NaN.
            keys, values = (like.new_zeros(self._room, heads, self.capacity, size) for size in sizes)
            self._lay(layer, (keys, values))
        return self._layers[layer]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind each row's committed ones; lengths stay as they are until `keep`.

        Args:
            layer: which layer.
            keys, values: [rows, heads, N, D]; `reserve(N)` has been called.

        Returns:
            The layer's whole storage, [rows, heads, capacity, D] each.
        """
        width = keys.shape[2]
        storage = self.storage(layer, keys.shape[1], (keys.shape[3], values.shape[3]), keys)
        for stored, new in zip(storage, (keys, values), strict=True):
            if len(set(self.lengths)) == 1:
                stored[:, :, self.lengths[0] : self.lengths[0] + width] = new
            else:
                for row, length in enumerate(self.lengths):
                    stored[row, :, length : length + width] = new[row]
        return storage

    @property
    def allocated(self) -> bool:
        """Whether anything has been written yet."""
        return bool(self._layers)

    @property
    def tensors(self) -> list[Tensor]:
        """The storage of all layers."""
        return [tensor for pair in self._layers.values() for tensor in pair]

    def written(self, layer: int, rows: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """`write` at slots that are given as tensors, for passes that are compiled.

        Args:
            layer: which layer; it is allocated.
            rows, slots: [rows, 1] and [rows, N] int64 on the cache's device.
            keys, values: see `write`.
        """
        storage = self._layers[layer]
        for stored, new in zip(storage, (keys, values), strict=True):
            stored.transpose(1, 2).index_put_((rows, slots), new.transpose(1, 2))
        return storage

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Of what was just written, commit these nodes of each row, in this order; forget the rest."""
        for row, path in enumerate(paths):
            first = self.lengths[row]
            if any(node != place for place, node in enumerate(path)):
                for stored in self.tensors:
                    slots = torch.tensor(path, device=stored.device) + first
                    stored[row, :, first : first + len(path)] = stored[row, :, slots]
            self.lengths[row] = first + len(path)

    def crop(self, row: int, length: int) -> None:
        """Forget what a row holds behind `length` tokens."""
        self.lengths[row] = min(self.lengths[row], length)

    @classmethod
    def stack(
        cls,
        parts: Sequence[tuple[KVCache, int]],
        *,
        lengths: Sequence[int] | None = None,
        capacity: int | None = None,
        spare: int = 0,
        leaving: Collection[KVCache] = (),
    ) -> KVCache:
        """A new cache whose rows are these rows of other caches.

        Args:
            parts: (cache, row) each.
            lengths: how much of each to take, if not all.
            capacity: slots of the new one, if not as many as the largest has.
            spare: rows to have ready for others.
            leaving: caches that nobody will use any more: each of their layers goes as soon as it is copied.
        """
        taken = list(lengths) if lengths is not None else [cache.lengths[row] for cache, row in parts]
        room = max(cache.capacity for cache, _ in parts) if capacity is None else max(capacity, *taken, 1)
        new = cls(len(parts), room)
        new._room += spare
        new.lengths = taken
        new.encoded = [cache.encoded[row] for cache, row in parts]
        layers = dict.fromkeys(layer for cache, _ in parts for layer in cache._whole)
        for layer in layers:
            # Not of the first part: after a prompt of one token it is still empty.
            keys, values = next(cache._whole[layer] for cache, _ in parts if layer in cache._whole)
            new.storage(layer, keys.shape[1], (keys.shape[3], values.shape[3]), keys)
            del keys, values
            for place, ((cache, row), length) in enumerate(zip(parts, taken, strict=True)):
                new._copy(layer, place, cache, row, length)
            for cache in leaving:
                cache._whole.pop(layer, None)
                cache._layers.pop(layer, None)
        return new

    def take_in(self, seats: Sequence[Seat]) -> bool:
        """Make the rows those of these seats, in this order, without a new cache. Says whether that could be done.

        It cannot where someone else sits here, where rows would have to change places, or where there is no room; and
        it is not done where so few are left that a smaller cache is called for.
        """
        moving = {place: seat for place, seat in enumerate(seats) if seat.cache is not self or seat.row != place}
        left = {seat.row for seat in moving.values() if seat.cache is self}
        fits = self._room // 4 <= len(seats) <= self._room and all(
            seat.cache.capacity <= self.capacity for seat in seats
        )
        if not (self._whole and fits) or left & moving.keys() or not self.seats <= set(seats):
            return False
        self.lengths, self.encoded = [seat.length for seat in seats], [seat.encoded for seat in seats]
        for layer, whole in self._whole.items():
            self._lay(layer, whole)
            for place, seat in moving.items():
                self._copy(layer, place, seat.cache, seat.row, self.lengths[place])
        return True

    def _copy(self, layer: int, place: int, cache: KVCache, row: int, length: int) -> None:
        if length:
            for mine, other in zip(self._whole[layer], cache._whole[layer], strict=True):
                mine[place, :, :length] = other[row, :, :length]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Seat:
    """Where one request's keys lie: a row of a cache that it may share with others."""

    cache: KVCache
    row: int = 0

    def __post_init__(self) -> None:
        self.cache.seats.add(self)

    @property
    def length(self) -> int:
        """Tokens committed in this row."""
        return self.cache.lengths[self.row]

    @property
    def encoded(self) -> Encoded | None:
        """What an encoder made of the row's source."""
        return self.cache.encoded[self.row]

    def move(self, cache: KVCache, row: int) -> None:
        """Sit there from now on."""
        self.cache.seats.discard(self)
        self.cache, self.row = cache, row
        cache.seats.add(self)


def arranged(seats: Sequence[Seat]) -> list[int]:
    """The order of these seats in which `gather` moves the fewest: most stay, the rest take the rows between them."""
    if not seats:
        return []
    cache = _common(seats)
    staying = {seat.row: which for which, seat in enumerate(seats) if seat.cache is cache and seat.row < len(seats)}
    others = iter([which for which in range(len(seats)) if which not in staying.values()])
    return [staying[place] if place in staying else next(others) for place in range(len(seats))]


def gather(seats: Sequence[Seat]) -> KVCache:
    """The cache whose rows are exactly these seats, in this order; keys move only when the company has changed."""
    cache = seats[0].cache
    if cache.rows == len(seats) and all(s.cache is cache and s.row == place for place, s in enumerate(seats)):
        return cache
    cache = _common(seats)
    if not cache.take_in(seats):
        joined = len(seats) > cache.rows > 1  # where one joined a company, more may
        left = {seat.cache for seat in seats if seat.cache.seats <= set(seats)}
        parts = [(seat.cache, seat.row) for seat in seats]
        cache = KVCache.stack(parts, spare=len(seats) // 2 if joined else 0, leaving=left)
    for place, seat in enumerate(seats):
        seat.move(cache, place)
    return cache


def _common(seats: Sequence[Seat]) -> KVCache:
    """The cache in which most of them sit."""
    ((cache, _),) = Counter(seat.cache for seat in seats).most_common(1)
    return cache
