"""The cache against a list of lists: what is kept is there, in order, whatever is written over or moved."""

from __future__ import annotations

import random

import pytest
import torch

from outrider.kv import BLOCK, KVCache, Seat, arranged, gather

Rows = list[list[float]]
LAYERS = (0, 3)


def write(cache: KVCache, numbers: Rows) -> None:
    """Put one row of numbers behind each row: in every layer, head and channel a shade of the number."""
    width = max(map(len, numbers))
    cache.reserve(width)
    base = torch.full((cache.rows, 1, width, 1), -1.0)
    for row, new in enumerate(numbers):
        base[row, 0, : len(new), 0] = torch.tensor(new)
    for layer in LAYERS:
        keys = base * 10 + torch.arange(2.0).view(1, 2, 1, 1) + layer / 10
        storage = cache.write(layer, keys.expand(-1, -1, -1, 3), -keys.expand(-1, -1, -1, 2))
        assert [tensor.shape for tensor in storage] == [(cache.rows, 2, cache.capacity, d) for d in (3, 2)]


def committed(cache: KVCache) -> Rows:
    """What each row holds, after a check that all layers, heads and channels, keys and values agree."""
    found: Rows = []
    for row, length in enumerate(cache.lengths):
        for layer in LAYERS if length else ():
            keys, values = (tensor[row, :, :length] for tensor in cache._layers[layer])
            numbers = (keys[0, :, 0] - layer / 10) / 10
            again = numbers[None, :, None] * 10 + torch.arange(2.0).view(2, 1, 1) + layer / 10
            torch.testing.assert_close(keys, again.expand_as(keys))
            torch.testing.assert_close(values, -again.expand_as(values))
        found.append([round(float(number), 3) for number in numbers] if length else [])
    return found


def test_keep_a_prefix() -> None:
    """What was not kept is written over by the next pass."""
    cache = KVCache(1)
    write(cache, [[1, 2, 3, 4]])
    assert cache.lengths == [0], "writing commits nothing"
    cache.keep([(0, 1)])
    write(cache, [[5, 6]])
    cache.keep([(0, 1)])
    assert committed(cache) == [[1, 2, 5, 6]]


def test_keep_a_path_with_gaps() -> None:
    """The nodes of a branch move together, in the order of the path."""
    cache = KVCache(1)
    write(cache, [[9]])
    cache.keep([(0,)])
    write(cache, [[1, 2, 3, 4, 5, 6]])
    cache.keep([(0, 2, 3, 5)])
    assert committed(cache) == [[9, 1, 3, 4, 6]]


def test_each_row_keeps_its_own() -> None:
    """Rows of different lengths are written at their own offsets; a row may keep nothing."""
    cache = KVCache(3)
    write(cache, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    cache.keep([(0,), (0, 2), ()])
    write(cache, [[10, 11], [12, 13], [14, 15]])
    cache.keep([range(2), (), (1,)])
    assert committed(cache) == [[1, 10, 11], [4, 6], [15]]


def test_crop() -> None:
    """Forgets the end of one row; never makes it longer."""
    cache = KVCache(2)
    write(cache, [[1, 2, 3], [4, 5, 6]])
    cache.keep([range(3), range(3)])
    cache.crop(0, 1)
    cache.crop(1, 7)
    assert committed(cache) == [[1], [4, 5, 6]]
    write(cache, [[8], [9]])
    cache.keep([(0,), (0,)])
    assert committed(cache) == [[1, 8], [4, 5, 6, 9]]


def test_capacity_grows_without_loss() -> None:
    """By doubling, in whole blocks, and only when the longest row needs it."""
    cache = KVCache(2, capacity=1)
    assert cache.capacity == BLOCK
    write(cache, [[1.0], [2.0]])
    cache.keep([(0,), ()])
    cache.reserve(BLOCK - 1)
    assert cache.capacity == BLOCK
    before = cache.nbytes
    cache.reserve(BLOCK)
    assert cache.capacity == 2 * BLOCK
    assert cache.nbytes == 2 * before
    assert committed(cache) == [[1], []]
    cache.reserve(9 * BLOCK)
    assert cache.capacity > 9 * BLOCK
    assert cache.capacity % BLOCK == 0
    assert committed(cache) == [[1], []]


def test_what_is_allocated_is_zero() -> None:
    """A masked slot has weight 0, and 0 times anything but a number would spoil the sum."""
    cache = KVCache(1)
    write(cache, [[1.0]])
    cache.keep([(0,)])
    cache.reserve(2 * BLOCK)
    other = KVCache.stack([(cache, 0), (KVCache(1), 0)])
    for store in (cache, other):
        for keys, values in store._layers.values():
            assert bool((keys[0, :, 1:] == 0).all())
            assert bool((values[0, :, 1:] == 0).all())
            assert bool((keys[1:] == 0).all())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_stack(order: tuple[int, ...]) -> None:
    """Rows of several caches, an empty one among them in any place, become rows of a new one; the old ones stay."""
    long, short, empty = KVCache(2, 2 * BLOCK + 1), KVCache(1), KVCache(1)
    write(long, [[1, 2, 3], [4, 5, 6]])
    long.keep([range(3), range(2)])
    write(short, [[7, 8]])
    short.keep([range(2)])
    parts = [(long, 1), (short, 0), (empty, 0)]
    cache = KVCache.stack([parts[place] for place in order])
    assert cache.capacity == 3 * BLOCK
    assert committed(cache) == [[[4, 5], [7, 8], []][place] for place in order]
    write(cache, [[20], [21], [22]])
    cache.keep([(0,)] * 3)
    assert committed(cache) == [[[4, 5], [7, 8], []][place] + [20 + new] for new, place in enumerate(order)]
    assert committed(long) == [[1, 2, 3], [4, 5]]


def test_gather_moves_keys_only_when_the_company_changes() -> None:
    """The same seats in the same order are the same cache; others are a copy, and every seat knows its new place."""
    seats = [Seat(KVCache(1)) for _ in range(3)]
    for number, seat in enumerate(seats):
        write(seat.cache, [[number, number + 0.5][: number + 1]])
        seat.cache.keep([range(min(number + 1, 2))])
    assert gather(seats[:1]) is seats[0].cache
    together = gather(seats)
    assert gather(seats) is together
    assert [seat.row for seat in seats] == [0, 1, 2]
    assert [seat.length for seat in seats] == [1, 2, 2]
    assert committed(together) == [[0], [1, 1.5], [2, 2.5]]
    turned = gather([seats[2], seats[0]])
    assert turned is not together
    assert committed(turned) == [[2, 2.5], [0]]
    assert (seats[2].row, seats[0].row, seats[1].cache) == (0, 1, together)


def company(count: int) -> tuple[KVCache, list[Seat]]:
    """Seats that share a cache, each with its number."""
    seats = [Seat(KVCache(1)) for _ in range(count)]
    for number, seat in enumerate(seats):
        write(seat.cache, [[number]])
        seat.cache.keep([(0,)])
    return gather(seats), seats


def test_newcomers_take_the_rows_that_were_left() -> None:
    """Those that stay are not moved, and nothing is allocated, whether others come or not."""
    cache, seats = company(4)
    storage = cache.tensors[0].data_ptr()
    assert arranged(seats) == [0, 1, 2, 3]
    del seats[1]
    assert arranged(seats) == [0, 2, 1], "the last one takes the row that was left"
    seats = [seats[which] for which in arranged(seats)]
    assert gather(seats) is cache
    assert committed(cache) == [[0], [3], [2]]
    late = Seat(KVCache(1))
    write(late.cache, [[7, 8]])
    late.cache.keep([(0, 1)])
    seats = [late, *seats]
    assert arranged(seats) == [1, 2, 3, 0]
    seats = [seats[which] for which in arranged(seats)]
    assert gather(seats) is cache
    assert committed(cache) == [[0], [3], [2], [7, 8]]
    assert cache.tensors[0].data_ptr() == storage


def test_a_company_that_was_joined_has_room_for_more() -> None:
    """The first to join moves everybody, those after it nobody; room nobody has is zero."""
    _, seats = company(2)
    moved = []
    for number in range(2, 6):
        seats.append(Seat(KVCache(1)))
        write(seats[-1].cache, [[number]])
        seats[-1].cache.keep([(0,)])
        before = seats[0].cache
        moved.append(gather(seats) is not before)
    assert moved == [True, False, True, False]
    assert committed(seats[0].cache) == [[number] for number in range(6)]
    seats[0].cache.reserve(2 * BLOCK)
    assert committed(seats[0].cache) == [[number] for number in range(6)]


def test_keys_of_others_are_left_alone() -> None:
    """Where someone else sits in the cache, those that are asked for get one of their own; so do a few of many."""
    cache, seats = company(8)
    alone = gather([seats[0]])
    assert alone is not cache
    assert committed(cache)[1:] == [[number] for number in range(1, 8)]
    del seats[1:7]
    assert gather([seats[-1]]) is not cache, "one of eight"
    assert committed(seats[-1].cache) == [[7]]


@pytest.mark.parametrize("seed", range(16))
def test_any_sequence_of_operations(seed: int) -> None:
    """Random writes, paths, crops and company, against lists."""
    chance = random.Random(seed)
    seats = [Seat(KVCache(1)) for _ in range(4)]
    model: Rows = [[] for _ in seats]
    number = 0
    for _ in range(40):
        chosen = chance.sample(range(4), chance.randrange(1, 5))
        chosen = [chosen[which] for which in arranged([seats[row] for row in chosen])]
        cache = gather([seats[row] for row in chosen])
        new: Rows = []
        for _ in chosen:
            size = chance.randrange(1, 6)
            new.append([float(number + step) for step in range(size)])
            number += size
        write(cache, new)
        paths = [sorted(chance.sample(range(len(part)), chance.randrange(len(part) + 1))) for part in new]
        cache.keep(paths)
        for row, part, path in zip(chosen, new, paths, strict=True):
            model[row] += [part[node] for node in path]
        if chance.random() < 0.3:
            gone = chance.randrange(4)  # its place is taken by a new one
            seats[gone], model[gone] = Seat(KVCache(1)), []
        if chance.random() < 0.3:
            row, length = chance.randrange(4), chance.randrange(10)
            seats[row].cache.crop(seats[row].row, length)
            del model[row][length:]
        found = [committed(seat.cache)[seat.row] for seat in seats]
        assert found == model
