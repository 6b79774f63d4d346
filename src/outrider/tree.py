"""Parents to masks, depths and children. Pure functions; knows neither models nor caches."""

from __future__ import annotations

import heapq
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


@lru_cache(maxsize=256)
def by_rank(depth: int, nodes: int, agreement: float = 0.6) -> tuple[int, ...]:
    """The tree shape that is worth most before anything is known of its tokens (Sequoia, 2402.12374).

    A node's b-th child is taken to be kept with probability `agreement * (1 - agreement) ** b`, b from 0: each sibling
    agrees as often as the first, once its elders have failed. Best-first on the products gives the best shape there is.

    Args:
        depth: of the deepest node.
        nodes: how many, node 0 not counted.
        agreement: assumed, not measured.

    Returns:
        The parent of each node, node 0 first (-1): level by level, siblings side by side.
    """
    counter = 0
    waiting = [(-agreement, counter, 0, 0)]  # -worth, order, parent, rank among its children
    found: list[tuple[int, int]] = [(-1, 0)]  # parent and depth
    while waiting and depth > 0 and len(found) <= nodes:
        worth, _, parent, rank = heapq.heappop(waiting)
        found.append((parent, found[parent][1] + 1))
        counter += 2
        heapq.heappush(waiting, (worth * (1 - agreement), counter, parent, rank + 1))
        if found[-1][1] < depth:
            heapq.heappush(waiting, (worth * agreement, counter + 1, len(found) - 1, 0))
    order, level = [0], [0]
    while level:
        level = [node for parent in level for node, (above, _) in enumerate(found) if above == parent]
        order += level
    place = {node: index for index, node in enumerate(order)}
    return tuple(-1 if node == 0 else place[found[node][0]] for node in order)
