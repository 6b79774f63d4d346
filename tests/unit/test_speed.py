"""The speed model against the worked numbers of the reference text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider import speed
from outrider import tree as trees
from outrider.errors import BadOption

# at acceptance 0.8: depth -> naive, tokens per pass, speedup at a draft cost of 0.05 and of 0.2 passes per token
NUMBERS = {
    1: (0.67, 1.80, 1.71, 1.50),
    4: (1.78, 3.36, 2.80, 1.87),
    8: (2.46, 4.33, 3.09, 1.66),
    16: (3.05, 4.89, 2.72, 1.16),
}


PAGE = (Path(__file__).parents[2] / "docs" / "speed.md").read_text()


def test_the_page_has_these_numbers() -> None:
    """Its table is the one that is tested here. (tests/docs/test_pages.py runs its code.)"""
    rows = {
        int(k): tuple(map(float, others)) for k, *others in re.findall(r"^\| (\d+)" + r" \| ([\d.]+)" * 4, PAGE, re.M)
    }
    assert rows == NUMBERS


@pytest.mark.parametrize("depth", NUMBERS)
def test_the_numbers_of_the_reference(depth: int) -> None:
    """Verification as cheap as a plain pass, drafting at a cost per token."""
    naive, length, cheap, dear = NUMBERS[depth]
    exact = speed.acceptance_length_iid(0.8, depth)
    assert exact == pytest.approx((1 - 0.8 ** (depth + 1)) / (1 - 0.8))
    assert round(exact, 2) == length
    assert round(speed.naive(0.8, depth), 2) == naive
    assert round(speed.speedup(exact, 1.0, 1.0, 0.05 * depth), 2) == cheap
    assert round(speed.speedup(exact, 1.0, 1.0, 0.2 * depth), 2) == dear


def test_the_naive_formula_errs_as_it_is_said_to() -> None:
    """A slowdown at one token for every rate, growing with depth, towards a / (1 - a)."""
    assert all(speed.naive(rate, 1) < 1 for rate in (0.1, 0.5, 0.9, 0.99))
    answers = [speed.naive(0.8, depth) for depth in range(100)]
    assert answers == sorted(answers)
    assert speed.naive(0.8, 10**6) == pytest.approx(4, abs=1e-4)


@pytest.mark.parametrize(("rate", "depth", "length"), [(0, 7, 1), (1, 7, 8), (0.5, 0, 1), (0.5, 2, 1.75)])
def test_limits_of_equal_chances(rate: float, depth: int, length: float) -> None:
    """Nothing accepted, everything accepted, nothing drafted."""
    assert speed.acceptance_length_iid(rate, depth) == length


def test_decaying_acceptance_has_no_rate() -> None:
    """Tokens per pass are 1 + the survivals; the formula for equal chances, fed with either mean, misses them."""
    conditional = (0.95, 0.9, 0.8, 0.6, 0.3)
    survival = speed.survival(conditional)
    assert survival == pytest.approx((0.95, 0.855, 0.684, 0.4104, 0.12312))
    length = speed.acceptance_length(survival)
    assert length == pytest.approx(4.02252)
    for mean in (sum(conditional) / 5, sum(survival) / 5):
        assert abs(speed.acceptance_length_iid(mean, 5) - length) > 0.5


def test_conditional_is_the_inverse_of_survival() -> None:
    """Up to where nothing survives: there is no chance behind that."""
    chances = (0.95, 0.9, 0.8, 0.6, 0.3)
    assert speed.conditional(speed.survival(chances)) == pytest.approx(chances)
    assert speed.conditional((0.5, 0.0, 0.0)) == (0.5, 0.0)
    assert speed.conditional(()) == ()


def test_a_chain_is_a_tree() -> None:
    """One child everywhere, kept with the same chance: the formula for equal chances."""
    for depth in range(5):
        chain = tuple(range(-1, depth))
        assert speed.tree_length(chain, (0.7,)) == pytest.approx(speed.acceptance_length_iid(0.7, depth))


@pytest.mark.parametrize(
    ("parents", "length"),
    [
        ((-1,), 1.0),
        ((-1, 0, 0), 1 + 0.5 + 0.3),
        ((-1, 0, 0, 0), 1 + 0.5 + 0.3),  # a third child is never the right one
        ((-1, 0, 0, 1, 1, 2), 1 + 0.5 + 0.3 + 0.25 + 0.15 + 0.15),
        ((-1, 0, 1, 0, 3), 1 + 0.5 + 0.25 + 0.3 + 0.15),  # siblings need not be neighbours
    ],
)
def test_trees_by_hand(parents: tuple[int, ...], length: float) -> None:
    """The sum over nodes of the product of the chances of the ranks on their way; ranks 0.5 and 0.3."""
    assert speed.tree_length(parents, (0.5, 0.3)) == pytest.approx(length)


def test_the_best_tree_beats_the_chain_of_as_many_nodes() -> None:
    """0.5 and 0.3: three nodes are worth 1.05 as a tree and 0.875 as a chain."""
    ranks = (0.5, 0.3)
    assert speed.tree_length(trees.best_shape(ranks, 3, 3), ranks) == pytest.approx(2.05)
    assert speed.tree_length((-1, 0, 1, 2), ranks) == pytest.approx(1.875)


@pytest.mark.parametrize("ranks", [(1.1,), (-0.1,), (0.7, 0.4), (float("nan"),)])
def test_what_is_no_law_over_children(ranks: tuple[float, ...]) -> None:
    """Children exclude each other, so their chances cannot sum to more than 1."""
    with pytest.raises(BadOption, match="give"):
        speed.tree_length((-1, 0), ranks)


def test_break_even_is_where_the_speedup_is_one() -> None:
    """A round of 1.5 plain passes has to bring 1.5 tokens."""
    assert speed.break_even(0.2, 0.25, 0.05) == pytest.approx(1.5)
    assert speed.speedup(speed.break_even(0.2, 0.25, 0.05), 0.2, 0.25, 0.05) == pytest.approx(1)


def test_what_the_roofline_gives_away() -> None:
    """An H100 (989 Tflop/s, 3.35 TB/s), Llama 3.1 8B in bfloat16 (131 kB of keys and values a token)."""
    machine = {"flops": 989e12, "bandwidth": 3.35e12, "weight_bytes": 16e9, "parameters": 8e9}
    assert speed.free_tokens(**machine) == pytest.approx(989e12 / 3.35e12)  # two bytes and two operations a weight
    assert speed.free_tokens(**machine, batch=64) == pytest.approx(989e12 / 3.35e12 / 64)
    long = speed.free_tokens(**machine, batch=10**9, context=10_000, kv_bytes=131_072)
    assert long / 10_000 == pytest.approx(0.0024, rel=0.02)
    with pytest.raises(BadOption, match="1 or more"):
        speed.free_tokens(**machine, batch=0)


def test_speedup_is_goodput_against_plain() -> None:
    """Seconds of any unit: 3 tokens in 0.3 s against one in 0.2 s."""
    assert speed.goodput(3, 0.25, 0.05) == pytest.approx(10)
    assert speed.speedup(3, 0.2, 0.25, 0.05) == pytest.approx(2)


@pytest.mark.parametrize("formula", [speed.naive, speed.acceptance_length_iid])
@pytest.mark.parametrize(("rate", "depth"), [(1.1, 3), (-0.1, 3), (float("nan"), 3), (0.5, -1)])
def test_what_is_no_chance(formula: object, rate: float, depth: int) -> None:
    """Refused with the remedy."""
    with pytest.raises(BadOption, match="give"):
        formula(rate, depth)  # type: ignore[operator]
