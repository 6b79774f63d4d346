"""Bootstrap intervals: against the normal approximation, for ratios, and where there is nothing to draw from."""

from __future__ import annotations

import math
import random

import pytest

from outrider.measure.bootstrap import average, interval, verdict
from outrider.measure.results import Interval


def test_a_wide_sample_gives_the_normal_interval() -> None:
    """Of a mean of many values the bootstrap must be near the mean plus or minus 1.96 standard errors."""
    draw = random.Random(0)
    values = [draw.gauss(3.0, 1.0) for _ in range(400)]
    found = interval(values, of="mean")
    assert found is not None
    centre = sum(values) / 400
    error = math.sqrt(sum((value - centre) ** 2 for value in values) / 400) / 20
    assert found.low == pytest.approx(centre - 1.96 * error, abs=0.02)
    assert found.high == pytest.approx(centre + 1.96 * error, abs=0.02)


def test_intervals_cover_what_they_promise() -> None:
    """Of 200 samples of 60 prompts, about 95 in 100 intervals hold the truth."""
    draw = random.Random(1)
    held = 0
    for turn in range(200):
        found = interval([math.exp(draw.gauss(0.5, 0.4)) for _ in range(60)], resamples=400, seed=turn)
        held += found is not None and found.low <= math.exp(0.5) <= found.high
    assert 180 <= held <= 198


def test_ratios_and_their_inverses_mirror_each_other() -> None:
    ratios = [0.8, 1.3, 2.0, 1.1, 0.9]
    ahead, behind = interval(ratios), interval([1 / ratio for ratio in ratios])
    assert ahead is not None and behind is not None
    assert average(ratios) == pytest.approx(1 / average([1 / ratio for ratio in ratios]))
    assert ahead.low == pytest.approx(1 / behind.high)
    assert average([1.0, 4.0]) == pytest.approx(2.0)
    assert average([1.0, 4.0], "mean") == pytest.approx(2.5)


def test_level_and_seed() -> None:
    values = [1.0, 1.2, 1.5, 0.9, 1.1, 1.3]
    narrow, wide = interval(values, 0.5), interval(values, 0.99)
    assert narrow is not None and wide is not None
    assert wide.low < narrow.low < narrow.high < wide.high
    assert (narrow.level, wide.level) == (0.5, 0.99)
    assert interval(values, seed=3) == interval(values, seed=3) != interval(values, seed=4)


def test_drawing_in_parts_gives_as_many_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 1.2, 1.5, 0.9]
    whole = interval(values, resamples=1001)
    monkeypatch.setattr("outrider.measure.bootstrap._AT_ONCE", 40)
    assert interval(values, resamples=1001) == whole


def test_one_prompt_says_nothing_about_others() -> None:
    assert interval([3.0]) is None
    assert verdict(None) == "indistinguishable"
    alike = interval([2.0, 2.0, 2.0])
    assert alike is not None
    assert (alike.low, alike.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_values_of_one_group_are_drawn_together() -> None:
    """Eight copies of each prompt are no more evidence than the prompts; unequal groups count by their sizes."""
    values = [1.0, 1.2, 1.5, 0.9, 1.1, 1.3]
    alone = interval(values)
    copies = interval([value for value in values for _ in range(8)], groups=[n for n in range(6) for _ in range(8)])
    assert alone is not None and copies is not None
    assert (copies.low, copies.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    blind = interval([value for value in values for _ in range(8)])
    assert blind is not None and blind.high - blind.low < 0.6 * (alone.high - alone.low)
    assert interval(values, groups=["together"] * 6) is None
    uneven = interval([1.0, 1.0, 1.0, 2.0], of="mean", groups="aaab", resamples=4000)
    assert uneven is not None and (uneven.low, uneven.high) == (1.0, 2.0)
    with pytest.raises(ValueError, match="groups"):
        interval(values, groups=[1, 2])


@pytest.mark.parametrize("values", [[], [1.0, math.inf], [1.0, math.nan], [1.0, 0.0], [1.0, -2.0]])
def test_what_has_no_geometric_mean(values: list[float]) -> None:
    with pytest.raises(ValueError, match="average"):
        interval(values)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_no_such_level(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        interval([1.0, 2.0], level)


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.9, 1.1, "indistinguishable"),
        (1.0, 1.5, "indistinguishable"),
        (0.5, 1.0, "indistinguishable"),
    ],
)
def test_verdict(low: float, high: float, says: str) -> None:
    assert verdict(Interval(low=low, high=high)) == says
