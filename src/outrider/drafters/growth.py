"""How a draft grows from a model's laws, a level at a time. Knows laws, budgets and noise, but no model and no cache.

Three ways, chosen by budget and temperature alone. A budget with no more nodes than depth grows a chain. One with more
grows a tree: greedily, of the tokens that the drafter finds likeliest; else of tokens drawn without replacement, into a
shape that is fixed before anything is drawn. What was drawn is never dropped again: rules that use q would be biased.
Under coupled noise the same draws are the target's own race run with q, so that `match` agrees more often than with the
likeliest tokens. Behind an end of sequence nothing is drafted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import tree as trees
from ..sampling import Law, Sampling
from ..types import Budget, Draft, Drawn, Noise, Tree

_WIDTH = 8  # nodes of a level that are looked behind, and children looked at of each (EAGLE-2 takes 10)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a draft begins.

    Attributes:
        pending: node 0's token.
        position: absolute position of the token after it.
        budget: how much may be drafted; its depth is 1 or more.
        noise: the drafter's.
        ends: ids behind which nothing is drafted.
    """

    pending: int
    position: int
    budget: Budget
    noise: Noise
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Feed:
    """What the draft model shall read next.

    Attributes:
        tree: node 0 is the pending token or, where what was fed stays in the model's cache, the newest drafted one.
        nodes: those after which the law is wanted.
        behind: the tokens after the pending one up to node 0, both in text order.
    """

    tree: Tree
    nodes: list[int]
    behind: list[int]


class Growth(ABC):
    """A draft under way.

    Attributes:
        linear: what is fed stays in the model's cache, token by token; else the cache ends before the pending token and
            the tree is read anew with every level.
    """

    linear: bool = False

    def __init__(self, start: Start) -> None:
        self._start = start
        self._tokens, self._parents, self._depths = [start.pending], [-1], [0]
        self._laws: list[tuple[Law, int]] = []  # of each node but node 0, where it was drawn: a law and its row

    @property
    def tokens(self) -> list[int]:
        """What has been drafted so far, in the order of drafting; the pending token first."""
        return list(self._tokens)

    @abstractmethod
    def feed(self) -> Feed | None:
        """What to read next; None once the draft is grown."""

    @abstractmethod
    def take(self, law: Law) -> None:
        """Grow by a level.

        Args:
            law: at each of the nodes that `feed` named; before the first `feed`, at node 0.
        """

    @abstractmethod
    def draft(self) -> Draft:
        """What has grown."""

    def _add(self, token: int, parent: int, law: Law, row: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._laws.append((law, row))
        return len(self._tokens) - 1

    def _goes_on(self, node: int) -> bool:
        """Whether to look behind a drafted node."""
        budget, token = self._start.budget, self._tokens[node]
        if self._depths[node] >= budget.depth or token in self._start.ends:
            return False
        law, row = self._laws[node - 1]
        return budget.stop is None or not budget.stop(law.spread(row), token)

    def _drafted(self, nodes: Sequence[int], drawn: Drawn) -> Draft:
        """The draft of these nodes, node 0 first, parents before children."""
        place = {node: index for index, node in enumerate(nodes)}
        tree = Tree(
            torch.tensor([self._tokens[node] for node in nodes]),
            torch.tensor([place[self._parents[node]] if node else -1 for node in nodes]),
        )
        if len(nodes) == 1 or (drawn == "point" and not self._start.budget.law):
            return Draft(tree)
        return Draft(tree, torch.stack([law.spread(row) for law, row in (self._laws[n - 1] for n in nodes[1:])]), drawn)


class Chain(Growth):
    """One token after another: the likeliest, or drawn."""

    linear = True

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._grown = False
        self._drawn: Drawn = "point"

    def feed(self) -> Feed | None:
        """See `Growth`: the newest token."""
        return None if self._grown else Feed(Tree.chain(self._tokens[-1:]), [0], self._tokens[1:])

    def take(self, law: Law) -> None:
        """See `Growth`."""
        self._drawn = "point" if law.greedy else "iid"
        newest = len(self._tokens) - 1
        token = int(law.draws(self._start.noise, [self._start.position + newest])[0])
        self._grown = not self._goes_on(self._add(token, newest, law, 0))

    def draft(self) -> Draft:
        """See `Growth`."""
        return self._drafted(range(len(self._tokens)), self._drawn)


class _Branching(Growth):
    """A tree. Its opened nodes, those looked behind, are fed with every level; the newest of them are the frontier."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._opened, self._frontier = [0], [0]

    def feed(self) -> Feed | None:
        """See `Growth`."""
        if not self._frontier:
            return None
        place = {node: index for index, node in enumerate(self._opened)}
        tree = Tree(
            torch.tensor([self._tokens[node] for node in self._opened]),
            torch.tensor([place[self._parents[node]] if node else -1 for node in self._opened]),
        )
        return Feed(tree, [place[node] for node in self._frontier], [])

    def _open(self, nodes: Sequence[int]) -> None:
        self._frontier = list(nodes)
        self._opened += nodes


class LikeliestTree(_Branching):
    """The likeliest paths (EAGLE-2, 2406.16858): expand each level's best nodes, then keep the best of all.

    A node is worth the product of the drafter's probabilities on the way to it, so no child outscores its parent and
    the best nodes are a tree. Nodes that are not among the best so far cannot come back, and are not looked behind.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._worth = [1.0]
        self._width = min(_WIDTH, start.budget.nodes)

    def take(self, law: Law) -> None:
        """See `Growth`."""
        spread = torch.stack([law.spread(row) for row in range(len(self._frontier))])
        best = spread.topk(min(self._width, spread.shape[-1]))
        children = []
        for row, parent in enumerate(self._frontier):
            for chance, token in zip(best.values[row].tolist(), best.indices[row].tolist(), strict=True):
                if chance > 0:
                    children.append(self._add(token, parent, law, row))
                    self._worth.append(self._worth[parent] * chance)
        hopeful = set(self._best())
        ranked = sorted((node for node in children if node in hopeful), key=lambda node: -self._worth[node])
        self._open(sorted([node for node in ranked if self._goes_on(node)][: self._width]))

    def draft(self) -> Draft:
        """See `Growth`; the worthiest node first."""
        return self._drafted([0, *self._best()], "point")

    def _best(self) -> list[int]:
        """As many nodes as the budget has, the worthiest first, parents before children of the same worth."""
        every = range(1, len(self._tokens))
        return sorted(every, key=lambda node: -self._worth[node])[: self._start.budget.nodes]


class DrawnTree(_Branching):
    """Children drawn without replacement, in the order of the draws, into the shape `tree.by_rank`.

    Drawing again from what is left of a law is the Gumbel-top-k trick (Kool et al., 1903.06059) where noise is keyed by
    position, and the same law where it is fresh.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        shape = trees.by_rank(start.budget.depth, start.budget.nodes)
        self._below = trees.children(torch.tensor(shape))
        self._place = [0]  # of each node, where it stands in the shape

    def take(self, law: Law) -> None:
        """See `Growth`."""
        grown = []
        for row, parent in enumerate(self._frontier):
            left = law.probs[row].clone()
            for place in self._below[self._place[parent]]:
                if not bool(left.any()):  # fewer tokens than siblings
                    break
                position = self._start.position + self._depths[parent]
                token = int(self._start.noise.draws(left[None], [position])[0])
                left[token] = 0
                self._place.append(place)
                grown.append(self._add(token, parent, law, row))
        self._open([node for node in grown if self._below[self._place[node]] and self._goes_on(node)])

    def draft(self) -> Draft:
        """See `Growth`; in the order of the shape."""
        return self._drafted(sorted(range(len(self._tokens)), key=self._place.__getitem__), "without_replacement")


def sprout(start: Start, sampling: Sampling) -> Growth:
    """The way of growing that goes with a budget and a temperature."""
    if start.budget.nodes <= start.budget.depth:
        return Chain(start)
    return LikeliestTree(start) if sampling.temperature == 0 else DrawnTree(start)
