"""Prompt lookup: where the last tokens occurred before, propose what followed them.

Source: Saxena, "Prompt Lookup Decoding", 2023. The longest match of at most `longest` tokens wins, the most recent of
equally long ones. A match is believed for twice its own length: a single token says little, a long match says that a
passage is being copied. Deterministic drafts, so the law they are drawn from is a point mass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ..errors import BadOption
from ..kv import Seat
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting

LONGEST = 16  # tokens
_TRUST = 2  # tokens drafted at most per token matched


class _Text:
    """The ids of a request so far, in an array that grows by doubling."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = np.array(ids, dtype=np.int64)
        self._size = len(ids)

    @property
    def ids(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """All ids, as a view."""
        return self._ids[: self._size]

    def put_before(self, ids: Sequence[int]) -> None:
        """Add ids in front of all others."""
        self._ids = np.concatenate((np.array(ids, dtype=np.int64), self.ids))
        self._size = len(self._ids)

    def append(self, ids: Sequence[int]) -> None:
        """Add committed ids."""
        end = self._size + len(ids)
        if end > len(self._ids):
            self._ids = np.resize(self._ids, 2 * end)
        self._ids[self._size : end] = ids
        self._size = end


class Lookup(Drafter):
    """Looks the last tokens up in the request's own text.

    Args:
        longest: matches longer than this are not told apart (tokens).
    """

    from_text = for_encoders = True

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self.spec = f"lookup:{longest}"

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Lookup:
        """`lookup` or `lookup:N` with N the longest match.

        Raises:
            BadOption: N is no number of 1 or more.
        """
        return cls(cls.match_length(argument))

    @staticmethod
    def match_length(argument: str) -> int:
        """What stands behind the colon, or what counts without it.

        Raises:
            BadOption: it is no number of 1 or more.
        """
        if not argument:
            return LONGEST
        if not argument.isdecimal() or int(argument) < 1:
            raise BadOption(f"lookup:{argument} is no match length: write lookup:N with N of 1 or more tokens.")
        return int(argument)

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _Text:
        """See `Drafter`."""
        return _Text(prompt)

    def seated(self, state: _Text, seat: Seat) -> None:
        """See `Drafter`: what the target's encoder has read is looked up too, for summaries quote and translations keep
        names."""
        if seat.encoded is not None:
            state.put_before(seat.encoded.source.words)

    def propose(
        self,
        states: Sequence[_Text],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        drafts = []
        for state, budget in zip(states, budgets, strict=True):
            found, length = self._continuation(state.ids, budget.depth)
            drafts.append(Draft(Tree.chain([int(state.ids[-1]), *found]), score=_expected(length, len(found))))
        return drafts

    def commit(self, state: _Text, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state.append(tokens)

    def _continuation(self, ids: np.ndarray[tuple[int], np.dtype[np.int64]], depth: int) -> tuple[list[int], int]:
        """What followed the best earlier match of the last ids, and how long that is; nothing where there is none."""
        if depth < 1:
            return [], 0
        ends = np.flatnonzero(ids[:-1] == ids[-1])  # where matches of length 1 end
        length = 1
        while len(ends) and length < self._longest:
            longer = ends[ends >= length]
            longer = longer[ids[longer - length] == ids[-1 - length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        if not len(ends):
            return [], 0
        start = int(ends[-1]) + 1
        return [int(token) for token in ids[start : start + min(depth, _TRUST * length)]], length


def _expected(length: int, drafted: int) -> float:
    """How many of the drafted tokens will be accepted, if a match that held `length` times holds once more with
    probability length / (length + 1), token after token."""
    chance = length / (length + 1)
    return sum(chance**place for place in range(1, drafted + 1))
