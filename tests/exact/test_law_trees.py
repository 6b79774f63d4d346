"""Tier 1 on trees: the joint law of what the engine writes is the target's own, for every rule and kind of siblings.

One round of a wide tree is enumerated without the engine, in float64; smaller trees go through the engine for two
rounds, so that what is kept of a tree (paths with gaps in the cache, the drafter's state) is under test too.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import Case, assert_exact, assert_rule_exact, engine_law, judged_once, own_law, rule_law, total_variation
from toy import Branching, Context, Forked, Sampled, Script, ScriptedNoise, Table, ToyTarget, outcomes

from outrider.drafters.model import ModelDrafter
from outrider.sampling import Sampling
from outrider.types import Drawn
from outrider.verify import Verifier
from outrider.verify.block import Block
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection
from outrider.verify.traversal import Traversal

RULES = {"match": Match(), "token": TokenRejection(), "traversal": Traversal()}
EVERY = pytest.mark.parametrize("verifier", RULES.values(), ids=RULES)
USING_Q = pytest.mark.parametrize("verifier", [TokenRejection(), Traversal()], ids=["token", "traversal"])
KINDS: tuple[Drawn, ...] = ("iid", "without_replacement")
DRAWN = pytest.mark.parametrize("drawn", KINDS)

PAIR = {(): 2}
TRIPLE = {(): 3}
FORK = {(): 2, (0,): 1}
SECOND = {(): 2, (1,): 2}
FULL = {(): 2, (0,): 2, (1,): 2}
LADDER = {(): 2, (0,): 2, (0, 0): 1}
SHAPES = {"pair": PAIR, "triple": TRIPLE, "fork": FORK, "second": SECOND, "ladder": LADDER}


@DRAWN
@USING_Q
@pytest.mark.parametrize("shape", SHAPES)
def test_one_round(verifier: Verifier, drawn: Drawn, shape: str) -> None:
    """Trees of several shapes, drawn from another table."""
    depth = 1 + max(map(len, SHAPES[shape]))
    assert_rule_exact(Case(Table(3, 40), Forked(Table(3, 41), SHAPES[shape], drawn), verifier, depth))


@USING_Q
def test_one_round_of_a_full_tree(verifier: Verifier) -> None:
    """Two children each, two levels deep, without replacement."""
    assert_rule_exact(Case(Table(3, 42), Forked(Table(3, 43), FULL), verifier, depth=2))


@DRAWN
@EVERY
@pytest.mark.parametrize("shape", ["pair", "fork"])
def test_two_rounds(verifier: Verifier, drawn: Drawn, shape: str) -> None:
    """Through the engine; the drafter knows two of three tokens, which bounds the enumeration."""
    depth = 1 + max(map(len, SHAPES[shape]))
    drafter = Forked(Table(3, 45, support=(0, 2)), SHAPES[shape], drawn)
    assert_exact(Case(Table(3, 44), drafter, verifier, depth))


@USING_Q
@pytest.mark.parametrize(("width", "depth"), [(2, 2), (3, 1)])
def test_siblings_that_are_given(verifier: Verifier, width: int, depth: int) -> None:
    """Trees of the likeliest tokens of a table: each sibling is a point mass of its own."""
    grow = Branching(lambda context: Table(4, 17).law(context).topk(width).indices.tolist())
    assert_exact(Case(Table(4, 16), grow, verifier, depth))


@USING_Q
def test_given_siblings_with_twins(verifier: Verifier) -> None:
    """A token that stands twice among the siblings, and more siblings than tokens."""
    assert_exact(Case(Table(3, 18), Branching(lambda context: (context[-1], 1, 1, context[-1])), verifier, depth=2))
    assert_exact(Case(Table(3, 19), Branching(lambda context: (0, 1, 2, 0, 1)), verifier, depth=2))


@DRAWN
@USING_Q
def test_equal_laws(verifier: Verifier, drawn: Drawn) -> None:
    """p = q: the first child is always kept, and what is left of p behind it is all zeros."""
    case = Case(Table(3, 46), Forked(Table(3, 46), FORK, drawn), verifier, depth=2)
    assert_rule_exact(case)


@DRAWN
@USING_Q
def test_disjoint_laws(verifier: Verifier, drawn: Drawn) -> None:
    """No drafted token is possible: all are refused, and the output is the target's."""
    case = Case(Table(4, 47, support=(0, 1)), Forked(Table(4, 48, support=(2, 3)), FORK, drawn), verifier, depth=2)
    assert_rule_exact(case)
    assert all(set(text) <= {0, 1} for text in rule_law(case))


@DRAWN
@USING_Q
@pytest.mark.parametrize(("target", "drafter"), [((0, 1), (0, 1, 2)), ((0, 1, 2), (1, 2))])
def test_tokens_without_probability(
    verifier: Verifier, drawn: Drawn, target: tuple[int, ...], drafter: tuple[int, ...]
) -> None:
    """Tokens that one law has and the other has not."""
    case = Case(
        Table(3, 49, target), Forked(Table(3, 50, drafter), {(): 2, (0,): 1, (1,): 1}, drawn), verifier, depth=2
    )
    assert_rule_exact(case)


@DRAWN
@USING_Q
def test_more_siblings_than_tokens(verifier: Verifier, drawn: Drawn) -> None:
    """Four children of three tokens: with replacement there are twins, without it the law is used up."""
    assert_rule_exact(Case(Table(3, 51), Forked(Table(3, 52), {(): 4}, drawn), verifier, depth=1))


@USING_Q
@pytest.mark.parametrize("eos", [(2,), (0, 2)])
def test_end_of_sequence_inside_the_tree(verifier: Verifier, eos: tuple[int, ...]) -> None:
    """Texts end at the first EOS, drafted or not, whatever stands behind it in the tree."""
    case = Case(Table(3, 53), Forked(Table(3, 54, support=(0, 2)), FORK), verifier, depth=2, eos=eos)
    assert_exact(case)
    assert any(len(text) < case.length for text in engine_law(case))


@DRAWN
@USING_Q
def test_greedy_target(verifier: Verifier, drawn: Drawn) -> None:
    """Zero temperature is the one-hot limit of the same rule."""
    drafter = Forked(Table(4, 56, support=(0, 1, 3)), PAIR, drawn)
    case = Case(Table(4, 55), drafter, verifier, depth=1, sampling=Sampling())
    assert len(own_law(case)) == 1
    assert_exact(case)


@USING_Q
@pytest.mark.parametrize(
    "options", [{"temperature": 1.3, "top_k": 2}, {"temperature": 1.0, "repetition_penalty": 2.0}], ids=str
)
def test_processors(verifier: Verifier, options: dict[str, Any]) -> None:
    """Each node's law stands on its own ancestors, in a tree too."""
    drafter = Forked(Table(3, 58, support=(0, 2)), FORK)
    case = Case(Table(3, 57), drafter, verifier, depth=2, sampling=Sampling(**options))
    assert_exact(case, tolerance=1e-6)


def _model(seed: int, vocabulary: int = 3, eos: tuple[int, ...] = ()) -> ModelDrafter:
    support = (0, 2) if vocabulary == 3 else range(vocabulary)
    return ModelDrafter(ToyTarget(Table(vocabulary, seed, support), eos), vocabulary)


@EVERY
@pytest.mark.parametrize(("depth", "nodes"), [(1, 2), (2, 3)])
def test_model_drafter(verifier: Verifier, depth: int, nodes: int) -> None:
    """The production drafter, as a tree drawn without replacement; its own cache is under test too."""
    assert_exact(Case(Table(3, 59), _model(60), verifier, depth, nodes=nodes))


@pytest.mark.parametrize("verifier", [*RULES.values(), Block()], ids=[*RULES, "block"])
def test_model_drafter_with_temperature_zero(verifier: Verifier) -> None:
    """Its likeliest tree (under `block`, whose budgets never branch, its chain) under a greedy target."""
    case = Case(Table(4, 61), _model(62, 4), verifier, depth=3, nodes=7, sampling=Sampling())
    assert_exact(case)


@USING_Q
def test_model_drafter_that_ends_a_text(verifier: Verifier) -> None:
    """Behind its own end of sequence it drafts nothing: a stop on what has been kept, which biases nothing."""
    assert_exact(Case(Table(3, 63), _model(64, eos=(2,)), verifier, depth=2, nodes=3, eos=(2,)))


@pytest.mark.parametrize("nodes", [2, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("verifier", [*RULES.values(), Block()], ids=[*RULES, "block"])
def test_stopping_behind_a_doubtful_token(verifier: Verifier, nodes: int) -> None:
    """A token that was drawn is kept whatever it is; that no more is drafted behind it leaves every rule exact."""
    case = Case(Table(3, 65), _model(66), verifier, depth=2, nodes=nodes, stop=lambda law, token: law[token] < 0.5)
    assert_exact(case)


def test_block_and_traversal_agree_on_chains() -> None:
    """In law: they keep as many tokens, as often."""
    p, q = Table(3, 67), Table(3, 68)
    kept: list[dict[Context, float]] = []
    for verifier in (Block(), Traversal()):
        lengths = _law_of_kept(Case(p, Sampled(q), verifier, depth=2))
        kept.append({(length,): chance for length, chance in lengths.items()})
    assert total_variation(*kept) < 1e-12


def test_block_keeps_more_than_token() -> None:
    """On average at least as much on every pair of tables, more on some, and the same where one token is drafted."""
    gains = []
    for seed in range(8):
        p, q = Table(3, 200 + seed), Table(3, 300 + seed)
        means = [
            sum(length * chance for length, chance in _law_of_kept(Case(p, Sampled(q), rule, depth=depth)).items())
            for depth in (1, 2)
            for rule in (TokenRejection(), Block())
        ]
        assert means[1] == pytest.approx(means[0])
        gains.append(means[3] - means[2])
    assert min(gains) > -1e-12
    assert max(gains) > 0.01


def _law_of_kept(case: Case) -> dict[int, float]:
    """How many drafted tokens one round keeps, and how often."""

    def run(script: Script) -> int:
        noise = ScriptedNoise(script)
        return len(judged_once(case, (), noise, noise)) - 1

    return outcomes(run)
