"""Tier 1: the joint law of the first tokens that the engine writes equals the target's own, by exact enumeration.

Drafts, acceptances and the target's own draws are all gone through, over two rounds, so that what a round leaves behind
(cache, drafter state, noise) is under test with the rule itself. In float64 nothing but summation error may remain.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from checks import Case, assert_exact, assert_rule_exact, engine_law, own_law, total_variation
from toy import Branching, Context, Exact, Likeliest, Sampled, Scripted, Table, ToyTarget

from outrider.drafters.lookahead import Lookahead
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.drafters.recycle import Recycle
from outrider.drafters.suffix import Suffix
from outrider.sampling import Sampling
from outrider.verify import Verifier
from outrider.verify.block import Block
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection
from outrider.verify.traversal import Traversal

LOSSLESS = {"match": Match(), "token": TokenRejection(), "block": Block(), "traversal": Traversal()}
RULES = pytest.mark.parametrize("verifier", LOSSLESS.values(), ids=LOSSLESS)


@RULES
@pytest.mark.parametrize(("vocabulary", "depth"), [(3, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize("seed", [1, 2])
def test_sampled_chain(verifier: Verifier, vocabulary: int, depth: int, seed: int) -> None:
    """Drafts drawn from another table."""
    drafter = Sampled(Table(vocabulary, seed + 100))
    assert_exact(Case(Table(vocabulary, seed), drafter, verifier, depth))


@RULES
def test_sampled_chain_of_three(verifier: Verifier) -> None:
    """Depth 3; the drafter knows two of the three tokens, which bounds the enumeration."""
    assert_exact(Case(Table(3, 5), Sampled(Table(3, 6, support=(0, 2))), verifier, depth=3))


@pytest.mark.parametrize("name", ["token", "block", "traversal"])
def test_one_round_of_three(name: str) -> None:
    """Depth 3 with every token in both laws, for the rules whose enumeration is cheap."""
    assert_rule_exact(Case(Table(3, 7), Sampled(Table(3, 8)), LOSSLESS[name], depth=3))


@RULES
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deterministic_chain(verifier: Verifier, depth: int) -> None:
    """Drafts without a law are point masses, for the rejection rule too."""
    assert_exact(Case(Table(4, 9), Likeliest(Table(4, 10)), verifier, depth))


@RULES
def test_lookup(verifier: Verifier) -> None:
    """The production drafter whose drafts depend on what was committed before."""
    assert_exact(Case(Table(3, 11), Lookup(4), verifier, depth=3, prompt=(0, 1, 2, 0, 1)))


RETRIEVAL = {
    "suffix": lambda: Suffix(factor=4, global_tokens=0),  # every outcome is a request: none may learn from another
    "recycle": lambda: Recycle(2),
    "lookahead": lambda: Lookahead(window=2, ngram=2),
}


@RULES
@pytest.mark.parametrize("name", ["suffix", "recycle"])
def test_retrieval_chains(verifier: Verifier, name: str) -> None:
    """Drafts from counts and from the target's own scores, which depend on what was committed and rejected before."""
    assert_exact(Case(Table(3, 38), RETRIEVAL[name](), verifier, depth=2, prompt=(0, 1, 2, 0, 1)))


@pytest.mark.parametrize("name", RETRIEVAL)
def test_retrieval_trees(name: str) -> None:
    """The same with nodes to spare: trees whose shape the first round's draws decide."""
    case = Case(Table(3, 39), RETRIEVAL[name](), Match(), depth=2, prompt=(0, 1, 2, 0, 1), nodes=5, horizon=4)
    assert_exact(case)


@RULES
def test_model_drafter(verifier: Verifier) -> None:
    """The production drafter with a model of its own, whose cache is rolled back too."""
    drafter = ModelDrafter(ToyTarget(Table(3, 12)), vocabulary=3)
    assert_exact(Case(Table(3, 13), drafter, verifier, depth=2))


@RULES
def test_three_rounds(verifier: Verifier) -> None:
    """What the second round leaves behind is as right as what the first one left."""
    assert_exact(Case(Table(3, 14), Sampled(Table(3, 15)), verifier, depth=1, horizon=4, rounds=3))


def _top(table: Table, width: int) -> Branching:
    """A tree of the likeliest tokens of a table."""

    def grow(context: Context) -> list[int]:
        return table.law(context).topk(width).indices.tolist()

    return Branching(grow)


@pytest.mark.parametrize(("width", "depth"), [(2, 1), (2, 2), (2, 3), (3, 2)])
def test_branching_tree(width: int, depth: int) -> None:
    """Trees of the likeliest tokens, in breadth-first order: kept paths are not contiguous in the cache."""
    assert_exact(Case(Table(4, 16), _top(Table(4, 17), width), Match(), depth))


def test_tree_with_duplicate_siblings() -> None:
    """A token that occurs twice among siblings is no second chance for it."""
    assert_exact(Case(Table(3, 18), Branching(lambda context: (context[-1], 1, 1, context[-1])), Match(), depth=2))


def test_tree_with_more_siblings_than_tokens() -> None:
    """Every token drafted, some twice: the draft is always kept to its end."""
    case = Case(Table(3, 19), Branching(lambda context: (0, 1, 2, 0, 1)), Match(), depth=2)
    assert_exact(case)


def test_uneven_tree() -> None:
    """Some nodes have no children, so that a round ends in the middle of a tree with a bonus."""
    case = Case(
        Table(3, 20), Branching(lambda context: (0, 2) if context[-1] else (1,) * (len(context) % 2)), Match(), 3
    )
    assert_exact(case)


@RULES
def test_equal_laws(verifier: Verifier) -> None:
    """p = q: under rejection every draft is kept, and the residual, which is all zeros, is never used."""
    assert_exact(Case(Table(3, 21), Sampled(Table(3, 21)), verifier, depth=2))


@RULES
def test_disjoint_laws(verifier: Verifier) -> None:
    """No draft token is possible: all of them are refused, and the output is the target's."""
    case = Case(Table(4, 22, support=(0, 1)), Sampled(Table(4, 23, support=(2, 3))), verifier, depth=2)
    assert_exact(case)
    assert all(set(text) <= {0, 1} for text in engine_law(case))


@RULES
@pytest.mark.parametrize(("target", "drafter"), [((0, 1), (0, 1, 2)), ((0, 1, 2), (1, 2))])
def test_tokens_without_probability(verifier: Verifier, target: tuple[int, ...], drafter: tuple[int, ...]) -> None:
    """Tokens that one law has and the other has not."""
    assert_exact(Case(Table(3, 24, target), Sampled(Table(3, 25, drafter)), verifier, depth=2))


@RULES
def test_greedy_target(verifier: Verifier) -> None:
    """Zero temperature is the one-hot limit of the same rule, sampled drafts or not."""
    case = Case(Table(4, 26), Sampled(Table(4, 27)), verifier, depth=2, sampling=Sampling())
    assert len(own_law(case)) == 1
    assert_exact(case)


@RULES
@pytest.mark.parametrize("eos", [(2,), (0, 2)])
def test_end_of_sequence_inside_the_draft(verifier: Verifier, eos: tuple[int, ...]) -> None:
    """Texts end at the first EOS, drafted or not, and are as likely as they ought to be."""
    case = Case(Table(3, 28), Sampled(Table(3, 29)), verifier, depth=2, eos=eos)
    assert_exact(case)
    assert any(len(text) < case.length for text in engine_law(case))


@RULES
def test_end_of_sequence_before_the_end_of_the_draft(verifier: Verifier) -> None:
    """A draft that goes on behind EOS is cut there: nothing may follow it."""
    case = Case(Table(3, 30), Scripted([[2, 2, 1], [1, 2, 0]]), verifier, depth=3, eos=(2,))
    assert_exact(case)
    assert all(2 not in text[:-1] for text in engine_law(case))


@RULES
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=2),
        Sampling(temperature=1.0, top_p=0.7),
        Sampling(temperature=1.0, min_p=0.4),
        Sampling(temperature=1.0, repetition_penalty=2.0),
        Sampling(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5),
        Sampling(temperature=1.0, min_new_tokens=2),
        Sampling(temperature=1.0, logit_bias={1: 1.5}),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "repetition", "presence", "min_new_tokens", "bias"],
)
def test_processors(verifier: Verifier, sampling: Sampling) -> None:
    """Every processor of the production law, in its float32: the law of ordinary sampling, one token at a time."""
    case = Case(Table(3, 31), Sampled(Table(3, 32)), verifier, depth=2, eos=(2,), sampling=sampling)
    assert_exact(case, tolerance=1e-6)


@RULES
def test_processor_of_the_caller(verifier: Verifier) -> None:
    """A `LogitsProcessor` of the caller's own, which forbids to repeat a token, holds inside drafts."""

    def never_twice(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, ids[0, -1:], -torch.inf)

    sampling = Sampling(temperature=1.0, processors=(never_twice,))
    case = Case(Table(3, 33), Sampled(Table(3, 34)), verifier, depth=2, sampling=sampling)
    assert_exact(case, tolerance=1e-6)
    assert all(one != other for text in engine_law(case) for one, other in pairwise(text))


def test_the_checker_sees_small_differences() -> None:
    """The distance itself: another table is far, the same one is at zero."""
    case = Case(Table(3, 35), Sampled(Table(3, 36)), Match(), depth=1, sampling=Exact())
    other = Case(Table(3, 37), Sampled(Table(3, 36)), Match(), depth=1, sampling=Exact())
    assert total_variation(own_law(case), own_law(case)) == 0
    assert total_variation(engine_law(case), own_law(other)) > 0.05
