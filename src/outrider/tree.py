"""Parents to masks, depths and children. Pure functions; knows neither models nor caches."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor


def is_chain(parents: Tensor) -> bool:
    """Whether each node follows the one before it."""
    return bool(torch.equal(parents, torch.arange(-1, parents.shape[0] - 1)))


def depths(parents: Tensor) -> Tensor:
    """[N] int64: how many steps each node lies from node 0."""
    if is_chain(parents):
        return torch.arange(parents.shape[0])
    found = [0] * parents.shape[0]
    for node, parent in enumerate(parents.tolist()):
        if node:
            found[node] = found[parent] + 1
    return torch.tensor(found)


def ancestors(parents: Tensor) -> Tensor:
    """[N, N] bool: whether node j is node i or lies on the way from node 0 to it."""
    size = parents.shape[0]
    if is_chain(parents):
        return torch.ones(size, size, dtype=torch.bool).tril()
    mask = torch.eye(size, dtype=torch.bool)
    for node, parent in enumerate(parents.tolist()):
        if node:
            mask[node] |= mask[parent]
    return mask


def path_to(parents: Tensor, node: int) -> list[int]:
    """The nodes from node 0 to this one, both included."""
    way = [node]
    while way[-1]:
        way.append(int(parents[way[-1]]))
    return way[::-1]


def children(parents: Tensor) -> list[list[int]]:
    """For each node, the nodes right after it, in order."""
    found: list[list[int]] = [[] for _ in range(parents.shape[0])]
    for node, parent in enumerate(parents.tolist()):
        if node:
            found[parent].append(node)
    return found


def by_rank(depth: int, nodes: int, agreement: float = 0.6) -> tuple[int, ...]:
    """The tree shape that is worth most before anything is known of its tokens; see `best_shape`.

    A node's b-th child is taken to be kept with probability `agreement * (1 - agreement) ** b`, b from 0: each sibling
    agrees as often as the first, once its elders have failed.

    Args:
        depth: of the deepest node.
        nodes: how many, node 0 not counted.
        agreement: assumed, not measured.
    """
    return best_shape(tuple(agreement * (1 - agreement) ** rank for rank in range(nodes)), depth, nodes)


@lru_cache(maxsize=256)
def best_shape(ranks: tuple[float, ...], depth: int, nodes: int) -> tuple[int, ...]:
    """The tree shape with the highest expected number of kept nodes, by the chances of a node's children.

    A node is kept with the product of the chances on its way, so no child outscores its parent and taking the likeliest
    open node each time gives the best shape of every size (Chen et al., Sequoia, 2402.12374).

    Args:
        ranks: the chance that a node's b-th child is kept once the node is, b from 0, not growing.
        depth: of the deepest node.
        nodes: how many at most, node 0 not counted.

    Returns:
        The parent of each node, node 0 first (-1), in the order in which they were taken: the first n of them are the
        best shape of n nodes.
    """
    counter = 0
    waiting = [(-ranks[0], counter, 0, 0)] if ranks else []  # -worth, order, parent, rank among its children
    parents, levels, worths = [-1], [0], [1.0]
    while waiting and depth > 0 and len(parents) <= nodes:
        negative, _, parent, rank = heapq.heappop(waiting)
        parents.append(parent)
        levels.append(levels[parent] + 1)
        worths.append(-negative)
        counter += 2
        if rank + 1 < len(ranks):
            heapq.heappush(waiting, (-worths[parent] * ranks[rank + 1], counter, parent, rank + 1))
        if levels[-1] < depth:
            heapq.heappush(waiting, (negative * ranks[0], counter + 1, len(parents) - 1, 0))
    return tuple(parents)


def looks(parents: Tensor, path: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Which children a verdict looked at: each child of the nodes on the path, by its rank among its siblings and
    whether the path goes on with it."""
    below = children(parents)
    for node, following in zip(path, (*path[1:], None), strict=True):
        for rank, child in enumerate(below[node]):
            yield rank, child == following
