"""What drafters that make trees share: growing one node by node, and knowing one's own draft again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

import torch

from ..types import Scores, Tree

Place = TypeVar("Place")


def best_first(
    pending: int,
    place: Place,
    successors: Callable[[Place], Iterator[tuple[float, int, Place]]],
    depth: int,
    nodes: int,
    least: float = 0.0,
) -> tuple[Tree, float]:
    """The tree of at most `nodes` draft nodes that has the highest sum of chances.

    A node's chance is the product of those on its way, so a child never outscores its parent and taking the likeliest
    open node each time is optimal (Sequoia, Chen et al., 2402.12374; ALGORITHMS 4).

    Args:
        pending: the token of node 0.
        place: where node 0 stands, for `successors`.
        successors: a place -> (chance given the place, token, the place after it), chances falling.
        depth: at most so many tokens one after another.
        nodes: at most so many altogether, node 0 apart.
        least: nodes of a lower chance are left out.

    Returns:
        The tree, and the sum of its nodes' chances: how many of them may be expected to be accepted.
    """
    tokens, parents, score = [pending], [-1], 0.0
    order = count()  # of equally likely nodes the first found
    heap: list[tuple[float, int, int, int, float, int, Place, Iterator[Any]]] = []

    def offer(parent: int, level: int, before: float, siblings: Iterator[tuple[float, int, Place]]) -> None:
        found = next(siblings, None)
        if found is not None and before * found[0] >= least:
            chance, token, after = found
            heappush(heap, (-before * chance, next(order), parent, level, before, token, after, siblings))

    if depth > 0 and nodes > 0:
        offer(0, 1, 1.0, successors(place))
    while heap and len(tokens) <= nodes:
        negative, _, parent, level, before, token, after, siblings = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        score -= negative
        if level < depth:
            offer(len(tokens) - 1, level + 1, -negative, successors(after))
        offer(parent, level, before, siblings)
    return Tree(torch.tensor(tokens), torch.tensor(parents)), score


def scores_of(nodes: Sequence[int], tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> bool:
    """Whether these scores are those of the draft with these tokens by node: of several drafters' drafts the loop may
    have taken another's."""
    along = [nodes[node] for node in path[1:] if node < len(nodes)]
    return len(scores.logits) == len(nodes) and along == list(tokens[: len(path) - 1])
