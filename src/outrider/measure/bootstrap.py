"""How sure an average over prompts is: percentile bootstrap intervals. Knows nothing of what the values are.

Prompts are what is drawn again, never tokens or repeats: prompts differ far more from each other than runs of one
prompt do, and the reader wants to know how another set of prompts would come out.

Source: B. Efron, "Bootstrap methods: another look at the jackknife", The Annals of Statistics 7(1), 1979.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .results import Interval

Average = Literal["geometric", "mean"]
Verdict = Literal["faster", "slower", "indistinguishable"]

_AT_ONCE = 1 << 22  # values drawn at a time, so that many prompts do not fill the memory


def average(values: Sequence[float], of: Average = "geometric") -> float:
    """The mean, or the geometric mean, which is the one for ratios: a ratio and its inverse average to 1.

    Raises:
        ValueError: no values, or none that has such a mean (for the geometric one: not positive or not finite).
    """
    usable = _usable(values, of)
    return float(usable.mean() if of == "mean" else np.exp(np.log(usable).mean()))


def interval(
    values: Sequence[float],
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    *,
    of: Average = "geometric",
    groups: Sequence[Hashable] | None = None,
) -> Interval | None:
    """Where the average over prompts like these lies, with probability `level`: the percentile bootstrap.

    Args:
        values: one per prompt; average the repeats of a prompt first.
        level: between 0 and 1.
        resamples: sets of prompts drawn with replacement.
        seed: the same seed and values give the same interval.
        of: "geometric" for ratios, "mean" for everything else.
        groups: one per value; values of one group share a fate, as prompts of one batch do, and are drawn together.

    Returns:
        The interval, or None for a single value or group: one prompt does not say how others would do.

    Raises:
        ValueError: as `average`, or a level that is none.
    """
    if not 0 < level < 1:
        raise ValueError(f"A level of {level} is none: give a number between 0 and 1.")
    usable = _usable(values, of)
    sums, sizes = _grouped(usable if of == "mean" else np.log(usable), groups)
    count = len(sums)
    if count < 2:
        return None
    generator = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    rows = max(1, _AT_ONCE // count)
    for start in range(0, resamples, rows):
        drawn = generator.integers(0, count, size=(min(rows, resamples - start), count))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    if of == "geometric":
        low, high = math.exp(low), math.exp(high)
    return Interval(low=float(low), high=float(high), level=level)


def verdict(found: Interval | None) -> Verdict:
    """What an interval of speed ratios says. "indistinguishable" where it holds 1, and where there is none."""
    if found is None or found.low <= 1 <= found.high:
        return "indistinguishable"
    return "faster" if found.low > 1 else "slower"


def _usable(values: Sequence[float], of: Average) -> NDArray[np.float64]:
    if not values:
        raise ValueError("An average of no values is none.")
    if not all(math.isfinite(value) and (of == "mean" or value > 0) for value in values):
        raise ValueError("An average needs finite values, a geometric one positive ones too.")
    return np.asarray(values, dtype=np.float64)


def _grouped(
    values: NDArray[np.float64], groups: Sequence[Hashable] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum and the number of the values of each group."""
    places: dict[Hashable, int] = {}
    names: Sequence[Hashable] = range(len(values)) if groups is None else groups
    index = [places.setdefault(name, len(places)) for name in names]
    if len(index) != len(values):
        raise ValueError(f"There are {len(values)} values and {len(index)} groups: give one for each value.")
    sums: NDArray[np.float64] = np.bincount(index, weights=values).astype(np.float64)
    return sums, np.bincount(index).astype(np.float64)
