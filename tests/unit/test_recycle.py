"""Token recycling against its definition: the table holds what a token's last scores said, and trees grow from it."""

from __future__ import annotations

import pytest
import torch
from toy import Table

from outrider.drafters.recycle import Recycle
from outrider.tree import path_to
from outrider.types import Budget, Draft, Scores

TABLE = Table(6, 41)
WIDTH = 3


def scores_at(text: tuple[int, ...], draft: Draft) -> Scores:
    """What the table's model says at every node of a draft."""
    tree = draft.tree
    paths = [tree.tokens[path_to(tree.parents, node)].tolist() for node in range(len(tree))]
    return Scores(torch.stack([TABLE.law((*text[:-1], *path)).log() for path in paths]))


def likeliest(row: torch.Tensor) -> list[int]:
    """Tokens by falling score."""
    return row.argsort(descending=True)[:WIDTH].tolist()


@pytest.mark.parametrize("budget", [Budget(3), Budget(3, 12), Budget(2, 5), Budget(0)])
def test_the_table_holds_the_last_scores_of_every_token(budget: Budget) -> None:
    """Of all nodes, rejected ones too; where a token occurs twice, what was kept counts, the latest of it."""
    drafter = Recycle(WIDTH)
    text = (0, 1, 2, 1)
    state = drafter.begin(text, {})
    expected: dict[int, list[int]] = {0: [1], 1: [2], 2: [1]}
    assert state.table == expected
    for _ in range(12):
        (draft,) = drafter.propose([state], [budget], [], [])
        scores = scores_at(text, draft)
        path, tokens = [0], [int(scores.logits[0].argmax())]
        while (kept := _child(draft, path[-1], tokens[-1])) is not None:
            path.append(kept)
            tokens.append(int(scores.logits[kept].argmax()))
        drafter.commit(state, tokens, scores, path)
        for node in [*range(len(draft.tree)), *path]:
            expected[int(draft.tree.tokens[node])] = likeliest(scores.logits[node])
        assert state.table == expected
        text = (*text, *tokens)
        assert state.pending == text[-1]


def _child(draft: Draft, node: int, token: int) -> int | None:
    found = [
        child
        for child in range(1, len(draft.tree))
        if int(draft.tree.parents[child]) == node and int(draft.tree.tokens[child]) == token
    ]
    return found[0] if found else None


def test_drafts_follow_the_table() -> None:
    """A chain of first ranks; a tree of the likeliest ranks, each node a successor of its parent's token."""
    drafter = Recycle(WIDTH)
    state = drafter.begin((9,), {})
    state.table = {9: [1, 2], 1: [2, 3, 4], 2: [9], 3: []}
    (chain,) = drafter.propose([state], [Budget(5)], [], [])
    assert chain.tree.tokens.tolist() == [9, 1, 2, 9, 1, 2]
    (tree,) = drafter.propose([state], [Budget(3, 8)], [], [])
    tokens, parents = tree.tree.tokens.tolist(), tree.tree.parents.tolist()
    assert len(tokens) == 9
    assert tokens[1] == 1
    for node in range(1, 9):
        assert tokens[node] in state.table[tokens[parents[node]]]
    assert len(set(zip(tokens, parents, strict=True))) == 9
    assert tree.score is not None
    assert chain.score is not None
    assert tree.score > chain.score > 0


def test_ranks_are_counted() -> None:
    """A text in which the second rank is always right makes it the first to be drafted."""
    drafter = Recycle(2)
    state = drafter.begin((0,), {})
    drafter._width = 1  # the prompt's pairs apart, rows stay as they are set here
    for _ in range(60):
        state.table = {0: [1, 0], 1: [0, 1]}
        state.drafted = []
        drafter.commit(state, [state.pending], Scores(torch.zeros(1, 2)), [0])
    state.table = {0: [1, 0], 1: [0, 1]}
    (draft,) = drafter.propose([state], [Budget(3)], [], [])
    assert draft.tree.tokens.tolist() == [0, 0, 0, 0]
    assert draft.score == pytest.approx(sum((state.hits[1] / state.looks) ** depth for depth in (1, 2, 3)))


def test_anothers_scores_teach_only_what_was_kept() -> None:
    """Where the loop took another drafter's tree, nodes cannot be told apart; the committed path can."""
    drafter = Recycle(1)
    state = drafter.begin((3,), {})
    drafter.propose([state], [Budget(2)], [], [])
    logits = torch.eye(5)[[4, 0, 1, 2]]
    drafter.commit(state, [4, 1], Scores(logits), [0, 2])
    assert state.table == {3: [4], 4: [1]}
