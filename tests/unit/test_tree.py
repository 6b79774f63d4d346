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


def test_the_best_shape_by_hand() -> None:
    """Chances 0.5 and 0.3: the first child, then the second child before the first one's own child."""
    ranks = (0.5, 0.3)  # worths in order: 0.5, 0.3, 0.25, 0.15 (twice), 0.125
    assert trees.best_shape(ranks, 3, 3) == (-1, 0, 0, 1)
    assert sorted(trees.best_shape(ranks, 3, 5)) == [-1, 0, 0, 1, 1, 2]  # of equals any may come first
    assert trees.best_shape(ranks, 1, 5) == (-1, 0, 0)
    assert trees.best_shape((0.9,), 4, 9) == (-1, 0, 1, 2, 3)
    assert trees.best_shape((0.4, 0.0), 1, 2) == (-1, 0, 0)
    assert trees.best_shape((), 3, 3) == trees.best_shape(ranks, 0, 3) == (-1,)


def test_looks_by_hand() -> None:
    """Node 0 has children 1 and 2, node 2 has 3, 4 and 5: a path over 2 to 5 looked at five, and kept two."""
    parents = torch.tensor([-1, 0, 0, 2, 2, 2])
    assert list(trees.looks(parents, (0, 2, 5))) == [(0, False), (1, True), (0, False), (1, False), (2, True)]
    assert list(trees.looks(parents, (0,))) == [(0, False), (1, False)]
    assert list(trees.looks(parents, (0, 1))) == [(0, True), (1, False)]
