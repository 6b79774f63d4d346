"""The speed model against the worked numbers of the reference text."""

from __future__ import annotations

import pytest

from outrider import speed
from outrider.errors import BadOption

# at acceptance 0.8: depth -> naive, tokens per pass, speedup at a draft cost of 0.05 and of 0.2 passes per token
NUMBERS = {
    1: (0.67, 1.80, 1.71, 1.50),
    4: (1.78, 3.36, 2.80, 1.87),
    8: (2.46, 4.33, 3.09, 1.66),
    16: (3.05, 4.89, 2.72, 1.16),
}


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
