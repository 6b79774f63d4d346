"""Replaying recorded answers with shorter drafts, against drafters whose every draft is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from outrider.measure.recorded import Answer, Drafted, Recording
from outrider.measure.shapes import Shape
from outrider.speed import acceptance_length
from outrider.types import Round, Tree


def written(right: Sequence[bool], k: int) -> Answer:
    """The answer of a drafter that is right at these places: drafts of k tokens, cut at the end of the answer."""
    rounds, here = [], 0
    while here < len(right):
        depth = min(k, len(right) - here - 1)
        run = next((n for n in range(depth) if not right[here + n]), depth)
        tree = Tree.chain(range(depth + 1))
        round_ = Round(0, len(rounds), here, tree, tuple(range(run + 1)), tuple(range(run + 1)), None, 0.0, 0.0)
        rounds.append(Drafted.of(round_))
        here += run + 1
    return Answer(tuple(rounds), cut=True)


def truth(answers: Sequence[Answer]) -> tuple[float, float]:
    """Tokens per round, and accepted / drafted."""
    rounds = [round_ for answer in answers for round_ in answer.rounds]
    drafted = sum(len(round_.parents) - 1 for round_ in rounds)
    return sum(r.tokens for r in rounds) / len(rounds), sum(r.accepted for r in rounds) / drafted


def texts(chance: float, seed: int, size: int = 120, count: int = 6) -> list[list[bool]]:
    """Answers in which each token is drafted rightly with this chance."""
    draws = random.Random(seed)
    return [[draws.random() < chance for _ in range(size)] for _ in range(count)]


def recorded(answers: Sequence[Sequence[bool]], k: int) -> Recording:
    """With drafts of k tokens."""
    return Recording(Shape.chain(k), tuple(written(right, k) for right in answers))


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_the_recorded_length_comes_back_exactly(k: int) -> None:
    answers = texts(0.7, 1)
    behaviour = recorded(answers, k).behaviour(Shape.chain(k))
    tokens, rate = truth([written(right, k) for right in answers])
    assert behaviour.tokens == pytest.approx(tokens)
    assert behaviour.rate == pytest.approx(rate)
    assert sum(behaviour.drafted) == pytest.approx(1)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("chance", [0.2, 0.6, 0.85])
def test_shorter_drafts_are_exact_where_no_draft_was_kept_to_its_end(k: int, chance: float) -> None:
    """Drafts of 119 tokens end at a mistake or at the end of the answer."""
    answers = texts(chance, 2)
    behaviour = recorded(answers, 119).behaviour(Shape.chain(k))
    tokens, rate = truth([written(right, k) for right in answers])
    assert behaviour.tokens == pytest.approx(tokens)
    assert behaviour.rate == pytest.approx(rate, rel=0.02)  # what is drafted just before the end is not known


@pytest.mark.parametrize("k", [1, 2, 4, 6])
@pytest.mark.parametrize("chance", [0.5, 0.8, 0.95])
def test_what_nobody_tried_is_taken_to_go_on_as_usual(k: int, chance: float) -> None:
    """Drafts of 8 tokens that are often kept whole, tokens right by equal chances."""
    answers = texts(chance, 3, size=400, count=10)
    behaviour = recorded(answers, 8).behaviour(Shape.chain(k))
    tokens, _ = truth([written(right, k) for right in answers])
    assert behaviour.tokens == pytest.approx(tokens, rel=0.02)


def test_uneven_acceptance_is_where_the_curve_of_the_long_run_errs() -> None:
    """docs/speed.md: 80 easy tokens and 40 hard ones. With k = 8 s_2 is 0.18, with k = 2 it is 0.40."""
    text = ([True] * 80 + [False] * 40) * 4
    recording = recorded([text], 8)
    long, short = recording.behaviour(Shape.chain(8)), recording.behaviour(Shape.chain(2))
    true, _ = truth([written(text, 2)])
    assert long.survival[1] == pytest.approx(9 / 49, abs=0.01)
    assert short.survival[1] == pytest.approx(27 / 67, abs=0.01)
    assert short.tokens == pytest.approx(true, rel=0.02)
    assert acceptance_length(long.survival[:2]) < 0.8 * true


def test_survival_gives_the_tokens() -> None:
    """But for the end of an answer."""
    behaviour = recorded(texts(0.7, 4, size=2000, count=2), 6).behaviour(Shape.chain(4))
    assert behaviour.length == pytest.approx(behaviour.tokens, rel=0.005)


def drafted(parents: Sequence[int], path: Sequence[int]) -> Drafted:
    """A round with a tree."""
    tree = Tree(torch.arange(len(parents)), torch.tensor(parents))
    return Drafted.of(Round(0, 0, 0, tree, tuple(path), tuple(range(len(path))), None, 0.0, 0.0))


TREE = (-1, 0, 0, 1, 2, 4)  # 1 and 2 behind 0; 3 behind 1; 4 behind 2 and 5 behind 4


@pytest.mark.parametrize(
    ("shape", "kept", "nodes"),
    [
        (Shape(3, 5), 3, 5),  # 2, 4 and 5
        (Shape(3, 4), 2, 4),  # 5 is the last node, and left out
        (Shape(2, 4), 2, 4),
        (Shape(1, 2), 1, 2),
        (Shape(1, 1), 0, 1),  # 1 alone, and the path goes over 2
    ],
)
def test_smaller_trees_by_hand(shape: Shape, kept: int, nodes: int) -> None:
    """A round that kept 2, 4 and 5, asked for less."""
    answer = Answer((drafted(TREE, (0, 2, 4, 5)),), cut=False)
    _, committed, outcome = next(Recording(Shape(3, 5), (answer,))._walk(answer, shape))
    assert (committed, outcome.accepted, outcome.drafted) == (kept + 1, kept, nodes)


def test_a_tree_that_begins_inside_another() -> None:
    """With one level a round keeps 2 and the target writes 4; the next one stands on 4, behind which 5 was drafted."""
    answer = Answer((drafted(TREE, (0, 2, 4, 5)),), cut=False)
    assert [
        (committed, outcome.accepted)
        for _, committed, outcome in Recording(Shape(3, 5), (answer,))._walk(answer, Shape(1, 2))
    ] == [(2, 1), (2, 1)]


def test_ranks_are_shares_of_the_nodes_that_had_children() -> None:
    """Node 0 twice with two children, node 2 and node 4 with one: of four, 1 + 1 first and 1 second ones were kept."""
    answer = Answer((drafted(TREE, (0, 2, 4)), drafted(TREE, (0,))), cut=False)
    assert Recording(Shape(3, 5), (answer,)).ranks == (0.25, 0.25)


def test_a_round_without_a_draft_counts() -> None:
    """One round in two has a draft of one token, which is kept: 1.5 tokens a round, s_1 a half."""
    answer = Answer((drafted((-1,), (0,)), drafted((-1, 0), (0, 1))), cut=False)
    behaviour = Recording(Shape.chain(4), (answer,)).behaviour(Shape.chain(4))
    assert behaviour.tokens == pytest.approx(1.5)
    assert behaviour.survival == (0.5, 0, 0, 0)
    assert behaviour.drafted[:2] == (0.5, 0.5)
    assert behaviour.rate == 1


def test_nothing_drafted() -> None:
    behaviour = Recording(Shape.chain(2), (Answer((drafted((-1,), (0,)),), cut=True),)).behaviour(Shape.chain(2))
    assert (behaviour.tokens, behaviour.rate, behaviour.drafted) == (1, 0, (1, 0, 0))
