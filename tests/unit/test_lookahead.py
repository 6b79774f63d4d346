"""Lookahead decoding: the shape of its trees, what goes into the pool, and that its guesses come true."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from toy import Context, Table, ToyTarget, Wide

from outrider.drafters.lookahead import Lookahead
from outrider.engine import Engine
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.tree import depths, path_to
from outrider.types import Budget, Draft, Scores
from outrider.verify import make_verifier

WINDOW, NGRAM = 4, 3


class Successors(Table):
    """A target that looks at the last token alone, like a text with a small stock of phrases."""

    def make(self, context: Context) -> Sequence[float]:
        """See `Table`."""
        law = [0.0] * self.vocabulary
        law[(3 * context[-1] + 1) % self.vocabulary] = 1.0
        return law


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The tokens on the way to every node, node 0 apart."""
    tree = draft.tree
    return {tuple(tree.tokens[path_to(tree.parents, node)[1:]].tolist()) for node in range(1, len(tree))}


def test_the_first_tree_is_the_window() -> None:
    """Columns are pieces of the prompt's end; each hangs behind the first tokens of those before it."""
    drafter = Lookahead(WINDOW, NGRAM)
    state = drafter.begin(list(range(20, 40)), {})
    (draft,) = drafter.propose([state], [Budget(8, 50)], [], [])
    columns = [[39, 34], [34, 35], [35, 36], [36, 37]]
    assert state.columns == columns
    expected = {(34,), (34, 35), (34, 35, 36), (34, 35, 36, 37)}  # the chain, with which the columns' rests coincide
    assert paths(draft) == expected
    state.columns = [[39, 1], [34, 2], [35, 3], [36, 4]]
    (draft,) = drafter.propose([state], [Budget(8, 50)], [], [])
    chain = [(), (34,), (34, 35), (34, 35, 36)]
    assert paths(draft) == {*chain[1:], (1,), (34, 2), (34, 35, 3), (34, 35, 36, 4)}
    assert len(draft.tree) == 1 + WINDOW * (NGRAM - 1) - 1


def test_columns_move_on_by_the_targets_own_tokens() -> None:
    """Each gets what the target would write at its end, and goes into the pool; then the window moves with the text."""
    table = Table(60, 5)
    drafter = Lookahead(WINDOW, NGRAM)
    text = list(range(20, 40))
    state = drafter.begin(text, {})
    state.columns = [[39, 1], [34, 2], [35, 3], [36, 4]]
    (draft,) = drafter.propose([state], [Budget(8, 50)], [], [])
    ways = [draft.tree.tokens[path_to(draft.tree.parents, node)].tolist() for node in range(len(draft.tree))]
    logits = torch.stack([table.law((*text[:-1], *way)).log() for way in ways])
    own = {tuple(way): int(row.argmax()) for way, row in zip(ways, logits, strict=True)}
    ngrams = [
        [39, 1, own[39, 1]],
        [34, 2, own[39, 34, 2]],
        [35, 3, own[39, 34, 35, 3]],
        [36, 4, own[39, 34, 35, 36, 4]],
    ]
    node = ways.index([39, 34])
    drafter.commit(state, [34, 50, 51][:2], Scores(logits), [0, node])
    for ngram in ngrams:
        assert state.pool.after(ngram[0]) == [tuple(ngram[1:])]
    moved = [ngram[1:] for ngram in ngrams]
    assert state.columns == [*moved[1:], moved[0]], "one token more than a step was committed"
    (draft,) = drafter.propose([state], [Budget(8, 50)], [], [])
    assert int(draft.tree.tokens[0]) == 50


def test_ngrams_of_the_pending_token_are_drafted_latest_first() -> None:
    """As many as there is room for, and no more of each first token than the window has columns."""
    drafter = Lookahead(2, 4)
    state = drafter.begin([5], {})
    for last in range(3):
        state.pool.add([5, 6, 7, last])
    state.pool.add([8, 1, 1, 1])
    assert state.pool.after(5) == [(6, 7, 2), (6, 7, 1)]
    state.pool.add([5, 6, 7, 1])
    assert state.pool.after(5) == [(6, 7, 1), (6, 7, 2)]
    (draft,) = drafter.propose([state], [Budget(3, 30)], [], [])
    assert {(6, 7, 1), (6, 7, 2)} <= paths(draft)
    (draft,) = drafter.propose([state], [Budget(3, 3)], [], [])
    assert (6, 7) in paths(draft)
    (draft,) = drafter.propose([state], [Budget(1, 1)], [], [])
    assert paths(draft) == {(6,)}


@pytest.mark.parametrize("depth", range(7))
@pytest.mark.parametrize("nodes", [0, 1, 2, 5, 9, 14, 40])
@pytest.mark.parametrize("shape", [(1, 2), (5, 2), (4, 3), (5, 5)])
def test_budgets_hold(shape: tuple[int, int], nodes: int, depth: int) -> None:
    """Whatever the window wants, and no node has two children with one token."""
    drafter = Lookahead(*shape)
    table = Successors(7)
    text = [3, 1, 4]
    state = drafter.begin(text, {})
    budget = Budget(depth, nodes if depth else 0)
    for _ in range(12):
        (draft,) = drafter.propose([state], [budget], [], [])
        tree = draft.tree
        assert len(tree) - 1 <= budget.nodes
        assert int(depths(tree.parents).max()) <= depth
        assert len(paths(draft)) == len(tree) - 1
        token = table.law(tuple(text)).argmax().item()
        rows = [table.law((int(one),)).log() for one in tree.tokens]
        drafter.commit(state, [int(token)], Scores(torch.stack(rows)), [0])
        text.append(int(token))


def test_guesses_come_true() -> None:
    """A text whose next token follows from the last one is soon written several tokens at a time."""
    target = ToyTarget(Successors(31))
    engine = Engine(target, Lookahead(5, 4), make_verifier("match"), lambda: Wide(8, 40))
    rounds = [round_ for _, round_ in engine.run([Request((1, 2), Sampling(), 0, 60)])]
    assert sum(len(round_.tokens) for round_ in rounds) == 60
    assert len(rounds) <= 30
    assert max(round_.accepted for round_ in rounds) >= 3


def test_anothers_scores_are_not_taken_for_ones_own() -> None:
    """Where the loop took another drafter's tree, no n-gram comes of it."""
    drafter = Lookahead(WINDOW, NGRAM)
    state = drafter.begin([1, 2, 3], {})
    drafter.propose([state], [Budget(8, 50)], [], [])
    before = [list(column) for column in state.columns]
    drafter.commit(state, [4], Scores(torch.zeros(2, 9)), [0])
    assert state.columns == before
    assert state.pending == 4
