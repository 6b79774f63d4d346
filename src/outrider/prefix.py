"""Keys and values of finished requests, so that a prompt that starts like one of them is not computed again.

A chat's next turn starts with the whole turn before. Where a drafter taps the target's layers, their states are kept
too, for it wants those of the whole prompt. What is kept is bounded in bytes; the least recently used goes first. Knows
nothing of models, and of requests only their tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .kv import KVCache

PREFIX_MEMORY = 512 << 20  # bytes
_SHORTEST = 16  # tokens: computing fewer again is as cheap as looking them up

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class _Entry:
    tokens: _Ids
    cache: KVCache
    states: dict[int, Tensor]

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + sum(states.nbytes for states in self.states.values())


class Known(NamedTuple):
    """The beginning of a prompt that need not be computed.

    Attributes:
        cache: a new one, of one row that holds it.
        states: [its length, D] by tapped layer.
    """

    cache: KVCache
    states: dict[int, Tensor]


class Prefixes:
    """A bounded store of computed prefixes.

    Args:
        budget: bytes of keys, values and states kept at most; 0 keeps nothing.

    Attributes:
        on: anything is kept.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: list[_Entry] = []  # the most recently used last

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(entry.nbytes for entry in self._entries)

    @property
    def on(self) -> bool:
        """See the class."""
        return self._budget > 0

    def longest(self, prompt: Sequence[int], capacity: int, taps: Collection[int] = ()) -> Known | None:
        """As much of a prompt's beginning as is known; never its last token.

        Args:
            prompt: the last token is pending, so it is not looked up.
            capacity: slots that the cache will need.
            taps: layers whose states are wanted too.
        """
        wanted = np.array(prompt[:-1], dtype=np.int64)
        shared = [_common(one.tokens, wanted) if one.states.keys() >= set(taps) else 0 for one in self._entries]
        best = max(shared, default=0)
        if best < _SHORTEST:
            return None
        entry = self._entries.pop(shared.index(best))
        self._entries.append(entry)
        cache = KVCache.stack([(entry.cache, 0)], lengths=[best], capacity=capacity)
        return Known(cache, {tap: entry.states[tap][:best] for tap in taps})

    def keep(self, tokens: Sequence[int], cache: KVCache, row: int, states: Mapping[int, Tensor] | None = None) -> None:
        """Remember a row that is done.

        Args:
            tokens: those in the cache.
            cache, row: where it sits; its keys are copied.
            states: [as many, D] by tapped layer, nobody else's.
        """
        ids, found = np.array(tokens, dtype=np.int64), dict(states or {})
        if not self._budget or len(ids) < _SHORTEST:
            return
        self._entries = [
            one
            for one in self._entries
            if _common(one.tokens, ids) < len(one.tokens) or not one.states.keys() <= found.keys()
        ]
        copied = KVCache.stack([(cache, row)], lengths=[len(ids)], capacity=len(ids))
        self._entries.append(_Entry(ids, copied, found))
        while self.nbytes > self._budget:
            self._entries.pop(0)


def _common(one: _Ids, other: _Ids) -> int:
    """How many tokens two texts share at their beginning."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
