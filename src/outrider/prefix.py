"""Keys and values of finished requests, so that a prompt that starts like one of them is not computed again.

A chat's next turn starts with the whole turn before. What is kept is bounded in bytes; the least recently used goes
first. Knows nothing of models, and of requests only their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .kv import KVCache

PREFIX_MEMORY = 512 << 20  # bytes
_SHORTEST = 16  # tokens: computing fewer again is as cheap as looking them up

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class _Entry:
    tokens: _Ids
    cache: KVCache


class Prefixes:
    """A bounded store of computed prefixes.

    Args:
        budget: bytes of keys and values kept at most; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: list[_Entry] = []  # the most recently used last

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(entry.cache.nbytes for entry in self._entries)

    def longest(self, prompt: Sequence[int], capacity: int) -> KVCache | None:
        """A new cache of one row that holds as much of a prompt's beginning as is known; never its last token.

        Args:
            prompt: the last token is pending, so it is not looked up.
            capacity: slots that the cache will need.
        """
        wanted = np.array(prompt[:-1], dtype=np.int64)
        shared = [_common(entry.tokens, wanted) for entry in self._entries]
        best = max(shared, default=0)
        if best < _SHORTEST:
            return None
        entry = self._entries.pop(shared.index(best))
        self._entries.append(entry)
        return KVCache.stack([(entry.cache, 0)], lengths=[best], capacity=capacity)

    def keep(self, tokens: Sequence[int], cache: KVCache, row: int) -> None:
        """Remember a row that is done: `tokens` are those in the cache. Their keys are copied."""
        ids = np.array(tokens, dtype=np.int64)
        if not self._budget or len(ids) < _SHORTEST:
            return
        self._entries = [entry for entry in self._entries if _common(entry.tokens, ids) < len(entry.tokens)]
        self._entries.append(_Entry(ids, KVCache.stack([(cache, row)], lengths=[len(ids)], capacity=len(ids))))
        while self.nbytes > self._budget:
            self._entries.pop(0)


def _common(one: _Ids, other: _Ids) -> int:
    """How many tokens two texts share at their beginning."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
