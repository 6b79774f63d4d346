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
_NODES, _RANKS = 64, 8  # of a tree that are ever asked for
_MEMORY = 0.96  # what a round counts, once another one has had a draft
_PRIOR = 0.6  # chance of a token of which nothing is known
_WEIGHT = 2.0  # rounds that an expectation is worth
_NOTHING = 0.005  # a chance that is none
_SIBLING = 0.3  # chance of a child whose elders failed, before anything is known


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

    def slots(self, most: int = DEEPEST) -> list[Slot]:
        """What each of the next `most` tokens of a draft promises, in the order in which a drafter spends them."""
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
    was kept. Of a draft with branches the eldest child counts.
    """

    def __init__(self) -> None:
        self._existence = _Existence()
        self._came, self._had, self._open, self._tried, self._kept = ([0.0] * DEEPEST for _ in range(5))
        self._tried[0], self._kept[0] = _WEIGHT, _WEIGHT * _PRIOR  # fades like what was seen

    def observe(self, round_: Round, asked: int, depth: int) -> None:
        """See `Acceptance`."""
        self._existence.observe(depth > 0)
        if not depth:
            return
        self._scale(_MEMORY)
        eldest = [children[0] if children else None for children, _ in _on_the_way(round_)]
        for place in range(min(max(asked, depth), DEEPEST, depth + 1)):
            self._came[place] += 1
            self._had[place] += place < depth
            if place < len(eldest):
                self._open[place] += 1
                self._tried[place] += eldest[place] is not None
                self._kept[place] += eldest[place] is not None and eldest[place] in round_.path

    def slots(self, most: int = DEEPEST) -> list[Slot]:
        """See `Acceptance`."""
        exists, kept, had = self.ahead(min(most, DEEPEST))
        pairs = zip(survival([exists, *kept])[1:], survival([exists, *had])[1:], strict=True)
        return [Slot(*pair, depth) for depth, pair in enumerate(pairs, 1) if pair[0] > _NOTHING * exists]

    def ahead(self, most: int = DEEPEST) -> tuple[float, list[float], list[float]]:
        """The chance of a draft; and by position, if it comes so far: of a token that is kept, and of any token."""
        rate = self._kept[0] / self._tried[0]
        had, kept = [], []
        for place in range(most):
            if place:
                rate = (self._kept[place] + _WEIGHT * rate) / (self._tried[place] + _WEIGHT)
            longer = (self._tried[place] + 1) / (self._open[place] + 1) if place else 1.0
            kept.append(rate * longer)
            had.append((self._had[place] + 1) / (self._came[place] + 1))
        return self._existence.chance, kept, had

    def fade(self, rounds: float) -> None:
        """See `Acceptance`."""
        if self._tried[0] > rounds:
            self._scale(rounds / self._tried[0])

    def _scale(self, factor: float) -> None:
        for counts in (self._came, self._had, self._open, self._tried, self._kept):
            counts[:] = [factor * count for count in counts]


class Branches:
    """Acceptance of trees: by position along the eldest children, and by rank among siblings whose elders failed.

    The best tree of n nodes takes them best first on the chance that each is kept (Sequoia, 2402.12374, whose dynamic
    programme comes to that).
    """

    def __init__(self) -> None:
        self._eldest = Chain()
        self._tried, self._kept = [0.0] * _RANKS, [0.0] * _RANKS  # of those whose elders failed; the eldest apart

    def observe(self, round_: Round, asked: int, depth: int) -> None:
        """See `Acceptance`."""
        self._eldest.observe(round_, asked, depth)
        if not depth:
            return
        self._scale(_MEMORY)
        for children, kept in _on_the_way(round_):
            for rank, child in enumerate(children[:_RANKS]):
                if rank:
                    self._tried[rank] += 1
                    self._kept[rank] += child == kept
                if child == kept:
                    break

    def slots(self, most: int = _NODES) -> list[Slot]:
        """See `Acceptance`."""
        levels = min(most, DEEPEST)
        exists, eldest, had = self._eldest.ahead(levels)
        offered = survival([exists, *had])
        younger = [(k + _WEIGHT * _SIBLING) / (t + _WEIGHT) for t, k in zip(self._tried, self._kept, strict=True)]
        found: list[Slot] = []
        waiting = [(-exists * eldest[0], 1, 0, exists)]  # minus its chance, depth, rank, chance that its elders fail
        deepest = 0
        while waiting and len(found) < min(most, _NODES):
            chance, depth, rank, left = heapq.heappop(waiting)
            deepest = max(deepest, depth)
            found.append(Slot(-chance, max(-chance, offered[depth]), deepest))
            left += chance
            if rank + 1 < _RANKS and left > _NOTHING * exists:
                heapq.heappush(waiting, (-left * younger[rank + 1], depth, rank + 1, left))
            if depth < levels and -chance > _NOTHING * exists:
                heapq.heappush(waiting, (chance * eldest[depth], depth + 1, 0, -chance))
        return found

    def fade(self, rounds: float) -> None:
        """See `Acceptance`."""
        self._eldest.fade(rounds)
        most = max(self._tried)
        if most > rounds:
            self._scale(rounds / most)

    def _scale(self, factor: float) -> None:
        self._tried = [factor * count for count in self._tried]
        self._kept = [factor * count for count in self._kept]


def _on_the_way(round_: Round) -> list[tuple[list[int], int | None]]:
    """For each node that was kept: its children, the eldest first, and which of them was kept."""
    below = trees.children(round_.tree.parents)
    return [(below[node], kept) for node, kept in zip(round_.path, (*round_.path[1:], None), strict=True)]
