"""Parents to masks, depths and children. Pure functions; knows neither models nor caches."""

from __future__ import annotations

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
