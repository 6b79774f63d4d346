"""Do counts follow a law? Pearson's chi-square over whole texts, with its power. Knows no models and no noise.

The tails come from the incomplete gamma function: P(chi2_k > x) = Q(k/2, x/2). Under a deviation the statistic follows,
for many samples, a noncentral chi-square whose noncentrality is N * sum (p' - p)^2 / p. Of all laws p' at a total
variation of t from p that sum is smallest, 4 t^2, where p' moves halves of p's mass against each other, so N * 4 t^2 is
what is certain to be there (Cohen, "Statistical Power Analysis", chapter 7, for the noncentral form).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

ALPHA = 1e-6  # how often a law that is right is called wrong
POWER = 0.9  # how often the smallest deviation that counts as found is found
_LEAST = 5.0  # samples that a cell has to expect: with fewer the statistic is no chi-square
_HALVINGS = 80

Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """How counts compare with a law.

    Attributes:
        samples: how many texts were counted.
        cells: kinds of text that were told apart; those that expect fewer than 5 are one together.
        pooled: the share of the law that was put into that one.
        statistic: Pearson's.
        probability: of a statistic so large or larger if the law is right.
        alpha: below which probability the law counts as wrong.
        foreign: texts that the law does not allow at all and that were written all the same.
        tv: total variation between the shares that were counted and the law; chance alone makes some.
        smallest_tv: the smallest total variation that would have been found with probability `power`, whatever its
            shape; None where there is but one cell, and nothing to be told apart.
        power: see `smallest_tv`.
    """

    samples: int
    cells: int
    pooled: float
    statistic: float
    probability: float
    alpha: float
    foreign: int
    tv: float
    smallest_tv: float | None
    power: float = POWER

    @property
    def fits(self) -> bool:
        """Whether the counts are those of the law, as far as can be told."""
        return not self.foreign and self.probability > self.alpha


def fit(counts: Counter[Text], law: Mapping[Text, float], alpha: float = ALPHA) -> Fit:
    """Compare counts with a law over texts, which sums to 1."""
    total = sum(counts.values())
    foreign = sum(count for text, count in counts.items() if law.get(text, 0.0) <= 0)
    cells: list[tuple[float, float]] = []  # counted, expected
    rest = [0.0, 0.0]
    for text, chance in law.items():
        if total * chance >= _LEAST:
            cells.append((counts[text], total * chance))
        else:
            rest = [rest[0] + counts[text], rest[1] + total * chance]
    pooled = rest[1] / total
    if rest[1] >= _LEAST:
        cells.append((rest[0], rest[1]))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    degrees = max(0, len(cells) - 1)
    away = sum(abs(counts[text] / total - law.get(text, 0.0)) for text in {*counts, *law}) / 2
    chance = tail(statistic, degrees) if degrees else 1.0
    found = smallest_tv(total, degrees, alpha) if degrees else None
    return Fit(total, len(cells), pooled, statistic, chance, alpha, foreign, away, found)


def tail(statistic: float, degrees: int) -> float:
    """P(chi2 with so many degrees of freedom > statistic)."""
    return float(_upper([degrees / 2], statistic / 2)[0])


@cache
def critical(alpha: float, degrees: int) -> float:
    """The statistic that is exceeded with probability alpha."""
    high = float(degrees)
    while tail(high, degrees) > alpha:
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degrees) > alpha else (low, middle)
    return high


def found_with(noncentrality: float, degrees: int, alpha: float) -> float:
    """The probability that a deviation with this noncentrality is called one: a Poisson mixture of chi-square tails."""
    half = noncentrality / 2
    most = int(half + 12 * math.sqrt(half) + 30)
    steps = torch.arange(most + 1, dtype=torch.float64)
    weights = (steps * math.log(half) - half - torch.lgamma(steps + 1)).exp() if half > 0 else (steps == 0).double()
    tails = _upper((degrees / 2 + steps).tolist(), critical(alpha, degrees) / 2)
    return float((weights * tails).sum())


@cache
def smallest_tv(samples: int, degrees: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest total variation that so many samples find with that power, whatever its shape; at most 1."""
    low, high = 0.0, 4.0 * samples
    if found_with(high, degrees, alpha) < power:
        return 1.0
    for _ in range(_HALVINGS // 2):
        middle = (low + high) / 2
        low, high = (middle, high) if found_with(middle, degrees, alpha) < power else (low, middle)
    return math.sqrt(high / (4 * samples))


def _upper(shapes: Sequence[float], at: float) -> torch.Tensor:
    """Q(shape, at), the regularised upper incomplete gamma function."""
    orders = torch.tensor(shapes, dtype=torch.float64)
    tails: torch.Tensor = torch.special.gammaincc(orders, torch.full_like(orders, at))
    return tails
