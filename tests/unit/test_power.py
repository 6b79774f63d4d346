"""Chi-square tails and power against SciPy, and the promise about the smallest deviation against samples of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from outrider.measure.chi_square import critical, fit, found_with, smallest_tv, tail


@pytest.mark.parametrize("degrees", [1, 2, 8, 26, 100])
@pytest.mark.parametrize("alpha", [0.05, 1e-3, 1e-6])
def test_tails_are_those_of_scipy(degrees: int, alpha: float) -> None:
    border = critical(alpha, degrees)
    assert border == pytest.approx(chi2.isf(alpha, degrees), rel=1e-9)
    assert tail(border, degrees) == pytest.approx(alpha, rel=1e-6)
    for noncentrality in (0.0, 1.0, 40.0, 900.0):
        expected = ncx2.sf(border, degrees, noncentrality) if noncentrality else alpha
        assert found_with(noncentrality, degrees, alpha) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_more_samples_find_less() -> None:
    found = [smallest_tv(samples, degrees=8) for samples in (10, 100, 1000, 10_000)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1.0
    assert found[2] == pytest.approx(found[3] * 10**0.5, rel=1e-6)


def test_the_smallest_deviation_is_found_as_often_as_promised() -> None:
    """The hardest one of that size: halves of the mass against each other. Others are found more often."""
    samples, alpha = 1000, 1e-3
    law = {(token,): 0.1 for token in range(10)}
    off = smallest_tv(samples, degrees=9, alpha=alpha)
    draw = np.random.default_rng(1).multinomial

    def found(wrong: list[float]) -> float:
        told = 0
        for counts in draw(samples, wrong, size=400):
            told += not fit(Counter({(token,): int(n) for token, n in enumerate(counts)}), law, alpha).fits
        return told / 400

    hardest = found([0.1 * (1 + 2 * off * (-1) ** token) for token in range(10)])
    assert hardest == pytest.approx(0.9, abs=0.05)
    assert found([0.1 + off, 0.1 - off / 9 * 1.0, *[0.1 - off / 9] * 8]) > hardest
    assert found([0.1] * 10) < 0.02


def test_cells_that_expect_little_are_one() -> None:
    law = {(0,): 0.5, (1,): 0.492, **{(2, token): 0.001 for token in range(8)}}
    counts = Counter({(0,): 500, (1,): 492, (2, 3): 8})
    told = fit(counts, law)
    assert (told.cells, told.samples) == (3, 1000)
    assert told.pooled == pytest.approx(0.008)
    assert told.statistic == pytest.approx(0)
    assert told.fits
    assert told.tv == pytest.approx(0.007)


def test_a_text_that_cannot_be_is_a_fault() -> None:
    told = fit(Counter({(0,): 500, (1,): 499, (7,): 1}), {(0,): 0.5, (1,): 0.5})
    assert told.foreign == 1
    assert not told.fits


def test_one_cell_tells_nothing_and_says_so() -> None:
    told = fit(Counter({(0,): 3}), {(0,): 0.5, (1,): 0.5})
    assert told.smallest_tv is None
    assert told.probability == 1.0
