"""What the rounds of one request say of the next draft: how likely each token is to be drafted and to be kept.

Older rounds count less and less. What was never tried is expected to go like what was tried before it. Knows nothing of
seconds.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple, Protocol

from .. import tree as trees
from ..speed import survival
from ..types import Round

DEEPEST = 32  # tokens of a chain that are ever asked for
_NODES, _LEVELS, _RANKS = 64, 16, 8  # of a tree that are ever asked for
_MEMORY = 0.96  # what a round counts, once another one has had a draft
_PRIOR = 0.6  # chance of a token of which nothing is known
_WEIGHT = 2.0  # rounds that an expectation is worth
_NOTHING = 0.005  # a chance that is none
_SIBLING = 0.3  # a child's chance against its elder sibling's, before anything is known


class Slot(NamedTuple):
    """One more token of a draft.

    Attributes:
        gain: chance that it is kept.
        offered: chance that it is drafted at all, if it is asked for.
        depth: tokens one after another, up to it.
    """

    gain: float
    offered: float
    depth: int


class Acceptance(Protocol):
    """What is learned of one request's drafts."""

    def observe(self, round_: Round, asked: int, depth: int) -> None:
        """Learn from a round whose budget had the depth `asked`, above 0, and whose draft had `depth`."""
        ...

    def slots(self) -> list[Slot]:
        """What each further token of a draft promises, in the order in which a drafter spends its budget."""
        ...

    def fade(self, rounds: float) -> None:
        """Believe the past as if it had been so many rounds at most."""
        ...


class _Existence:
    """How often there is a draft at all when one is asked for. A round without one says nothing else."""

    def __init__(self) -> None:
        self._asked = self._found = 0.0

    def observe(self, found: bool) -> None:
        self._asked = _MEMORY * self._asked + 1
        self._found = _MEMORY * self._found + found

    @property
    def chance(self) -> float:
        return (self._found + 1) / (self._asked + 1)


class Chain:
    """Acceptance by position. A draft may be shorter than asked for, and long ones may be better than short ones.

    Per position: how often a draft that came so far had it, and how often, all before it being kept, it was there and
    was kept.
    """

    def __init__(self) -> None:
        self._existence = _Existence()
        self._came, self._had, self._open, self._tried, self._kept = ([0.0] * DEEPEST for _ in range(5))
        self._tried[0], self._kept[0] = _WEIGHT, _WEIGHT * _PRIOR  # fades like what was seen

    def observe(self, round_: Round, asked: int, depth: int) -> None:
        """See `Acceptance`."""
        accepted = round_.accepted
        self._existence.observe(depth > 0)
        if not depth:
            return
        self._scale(_MEMORY)
        for place in range(min(max(asked, depth), DEEPEST, depth + 1)):
            self._came[place] += 1
            self._had[place] += place < depth
            if place <= accepted:
                self._open[place] += 1
                self._tried[place] += place < depth
                self._kept[place] += place < accepted

    def slots(self) -> list[Slot]:
        """See `Acceptance`."""
        exists, rate = self._existence.chance, self._kept[0] / self._tried[0]
        had, kept = [exists], [exists]
        for place in range(DEEPEST):
            if place:
                rate = (self._kept[place] + _WEIGHT * rate) / (self._tried[place] + _WEIGHT)
            longer = (self._tried[place] + 1) / (self._open[place] + 1) if place else 1.0
            kept.append(rate * longer)
            had.append((self._had[place] + 1) / (self._came[place] + 1))
        pairs = zip(survival(kept)[1:], survival(had)[1:], strict=True)
        return [Slot(*pair, depth) for depth, pair in enumerate(pairs, 1) if pair[0] > _NOTHING * exists]

    def fade(self, rounds: float) -> None:
        """See `Acceptance`."""
        if self._tried[0] > rounds:
            self._scale(rounds / self._tried[0])

    def _scale(self, factor: float) -> None:
        for counts in (self._came, self._had, self._open, self._tried, self._kept):
            counts[:] = [factor * count for count in counts]


class Branches:
    """Acceptance by rank among siblings, for drafters that make trees.

    The best tree of n nodes takes them best first on the product of the chances of the ranks on the way (Sequoia,
    2402.12374, whose dynamic programme comes to that).
    """

    def __init__(self) -> None:
        self._existence = _Existence()
        self._tried, self._kept = [0.0] * _RANKS, [0.0] * _RANKS
        self._tried[0], self._kept[0] = _WEIGHT, _WEIGHT * _PRIOR  # fades like what was seen

    def observe(self, round_: Round, asked: int, depth: int) -> None:
        """See `Acceptance`."""
        self._existence.observe(depth > 0)
        if not depth:
            return
        self._scale(_MEMORY)
        for rank, kept in trees.looks(round_.tree.parents, round_.path):
            if rank < _RANKS:
                self._tried[rank] += 1
                self._kept[rank] += kept

    def slots(self) -> list[Slot]:
        """See `Acceptance`."""
        exists, rates = self._existence.chance, [self._kept[0] / self._tried[0]]
        for tried, kept in zip(self._tried[1:], self._kept[1:], strict=True):
            rates.append((kept + _WEIGHT * _SIBLING * rates[-1]) / (tried + _WEIGHT))
        found: list[Slot] = []
        waiting = [(-rates[0], 1, 0, 1.0)]  # minus its chance, depth, rank, its parent's chance
        deepest = 0
        while waiting and len(found) < _NODES:
            chance, depth, rank, parent = heapq.heappop(waiting)
            deepest = max(deepest, depth)
            found.append(Slot(-chance * exists, exists, deepest))
            if rank + 1 < _RANKS:
                heapq.heappush(waiting, (-parent * rates[rank + 1], depth, rank + 1, parent))
            if depth < _LEVELS:
                heapq.heappush(waiting, (chance * rates[0], depth + 1, 0, -chance))
        return found

    def fade(self, rounds: float) -> None:
        """See `Acceptance`."""
        if self._tried[0] > rounds:
            self._scale(rounds / self._tried[0])

    def _scale(self, factor: float) -> None:
        self._tried = [factor * count for count in self._tried]
        self._kept = [factor * count for count in self._kept]
