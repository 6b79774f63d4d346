"""Trees against their definitions, written out naively here, on chains and on random trees."""

from __future__ import annotations

import random

import pytest
import torch

from outrider import tree as trees
from outrider.types import Tree


def random_parents(size: int, seed: int) -> torch.Tensor:
    """Any tree whose nodes come after their parents."""
    chance = random.Random(seed)
    return torch.tensor([-1, *(chance.randrange(node) for node in range(1, size))])


SHAPES = [
    *(torch.arange(-1, size - 1) for size in (1, 2, 5)),
    torch.tensor([-1, 0, 0, 0]),
    torch.tensor([-1, 0, 1, 1, 0, 4]),
    *(random_parents(size, seed) for seed, size in enumerate((3, 8, 20, 40))),
]


def walk(parents: torch.Tensor, node: int) -> list[int]:
    """Up from a node to the root, the node first."""
    way = [node]
    while parents[way[-1]] >= 0:
        way.append(int(parents[way[-1]]))
    return way


@pytest.mark.parametrize("parents", SHAPES, ids=str)
def test_every_function_agrees_with_a_walk_to_the_root(parents: torch.Tensor) -> None:
    """Depths, ancestors, paths and children, node by node."""
    size = len(parents)
    depths, ancestors, children = trees.depths(parents), trees.ancestors(parents), trees.children(parents)
    assert depths.shape == (size,)
    assert ancestors.shape == (size, size)
    assert ancestors.dtype == torch.bool
    for node in range(size):
        way = walk(parents, node)
        assert int(depths[node]) == len(way) - 1
        assert set(ancestors[node].nonzero().flatten().tolist()) == set(way)
        assert trees.path_to(parents, node) == way[::-1]
        assert children[node] == [other for other in range(1, size) if int(parents[other]) == node]


def test_is_chain() -> None:
    """Only where each node follows the one before it: two siblings, or a skipped node, make a tree."""
    assert trees.is_chain(torch.tensor([-1]))
    assert trees.is_chain(torch.tensor([-1, 0, 1, 2]))
    assert not trees.is_chain(torch.tensor([-1, 0, 0]))
    assert not trees.is_chain(torch.tensor([-1, 0, 1, 1]))
    assert not trees.is_chain(torch.tensor([-1, 0, 1, 0]))


def test_chain_constructor() -> None:
    """`Tree.chain` gives what `is_chain` recognises, tokens in order."""
    tree = Tree.chain([7, 8, 9])
    assert tree.tokens.tolist() == [7, 8, 9]
    assert tree.tokens.dtype == torch.int64
    assert trees.is_chain(tree.parents)
    assert len(tree) == 3
