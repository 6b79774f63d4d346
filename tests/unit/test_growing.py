"""Trees grown best first: as good as the best of all trees, and within their budget."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from outrider.drafters.growing import best_first, scores_of
from outrider.tree import depths, path_to
from outrider.types import Scores

Path = tuple[int, ...]


def shares(path: Path, seed: int) -> list[tuple[float, int]]:
    """Chances of up to three successors of a path, falling; what lies behind a path depends on all of it."""
    chance = random.Random(f"{seed} {path}")
    found = sorted((chance.random() / 2 for _ in range(chance.randrange(4))), reverse=True)
    return [(share, token) for token, share in enumerate(found)]


def every(seed: int, depth: int) -> list[float]:
    """The chances of all nodes within a depth."""
    chances, open_ = [], [((), 1.0)]
    while open_:
        path, before = open_.pop()
        for share, token in shares(path, seed) if len(path) < depth else ():
            chances.append(before * share)
            open_.append(((*path, token), before * share))
    return sorted(chances, reverse=True)


@pytest.mark.parametrize("least", [0.0, 0.05])
@pytest.mark.parametrize(("depth", "nodes"), [(0, 9), (3, 0), (1, 1), (1, 9), (3, 4), (4, 12), (3, 1000)])
@pytest.mark.parametrize("seed", range(8))
def test_the_tree_has_the_highest_sum(seed: int, depth: int, nodes: int, least: float) -> None:
    """The likeliest nodes of all, each after its parent; the score is their sum."""

    def successors(path: Path) -> Iterator[tuple[float, int, Path]]:
        for share, token in shares(path, seed):
            yield share, token, (*path, token)

    tree, score = best_first(7, (), successors, depth, nodes, least)
    best = [chance for chance in every(seed, depth) if chance >= least][:nodes]
    assert score == pytest.approx(sum(best))
    assert len(tree) == 1 + len(best)
    assert int(tree.tokens[0]) == 7
    assert int(depths(tree.parents).max()) <= depth
    assert bool((tree.parents[1:] < torch.arange(1, len(tree))).all())
    paths = [tuple(tree.tokens[path_to(tree.parents, node)[1:]].tolist()) for node in range(1, len(tree))]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert path[-1] in [token for _, token in shares(path[:-1], seed)]


@pytest.mark.parametrize(
    ("nodes", "rows", "path", "tokens", "ours"),
    [
        ([5, 1, 2], 3, (0, 2), (2, 9), True),
        ([5, 1, 2], 3, (0,), (9,), True),
        ([5, 1, 2], 4, (0, 2), (2, 9), False),
        ([5, 1, 2], 3, (0, 1), (2, 9), False),
        ([5], 3, (0, 2), (2, 9), False),
        ([], 1, (0,), (9,), False),
    ],
)
def test_ones_own_draft_is_known(
    nodes: list[int], rows: int, path: tuple[int, ...], tokens: tuple[int, ...], ours: bool
) -> None:
    """By its size and by the tokens that were kept of it."""
    assert scores_of(nodes, tokens, Scores(torch.zeros(rows, 2)), path) is ours
