"""Which cases stand beside each other on a chart: only what may be compared, and no more than can be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..results import Case, Results, Summary
from .charts import known
from .wording import method, pairs, setting, speculates

MOST = 8  # series on one chart: more cannot be told apart
T = TypeVar("T")

Pair = tuple[Case, Summary]


def settings(results: Results) -> list[tuple[str, list[Pair]]]:
    """Cases that may be compared with each other: of one batch, temperature and quantisation."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs(results):
        found.setdefault(setting(pair[0]), []).append(pair)
    return list(found.items())


def by_method(part: list[Pair]) -> list[list[Pair]]:
    """Cases of one method that differ in their draft length: a line each."""
    found: dict[str, list[Pair]] = {}
    for case, summary in part:
        if speculates(case) and case.k is not None:
            found.setdefault(method(case), []).append((case, summary))
    return list(found.values())


def fastest_of_each(part: list[Pair]) -> list[Pair]:
    """Of each method the fastest case."""
    return _one_of_each(part, speed)


def deepest_of_each(part: list[Pair]) -> list[Pair]:
    """Of each method the case that has kept the longest drafts."""
    return _one_of_each([pair for pair in part if pair[1].survival], lambda pair: (len(pair[1].survival), speed(pair)))


def _one_of_each(part: list[Pair], by: Callable[[Pair], Any]) -> list[Pair]:
    found: dict[str, Pair] = {}
    for pair in part:
        name = method(pair[0])
        if speculates(pair[0]) and (name not in found or by(pair) > by(found[name])):
            found[name] = pair
    return list(found.values())


def speed(pair: Pair) -> float:
    """What cases are ranked by: against plain decoding where that was measured."""
    found = pair[1]
    value = found.speedup if found.speedup is not None else found.tokens_per_second
    return value if known(value) else 0.0


def most(items: list[T], by: Callable[[T], float], limit: int = MOST) -> tuple[list[T], str]:
    """The fastest few in their order, and a sentence that says so where there are more."""
    if len(items) <= limit:
        return items, ""
    chosen = sorted(range(len(items)), key=lambda place: -by(items[place]))[:limit]
    return [items[place] for place in sorted(chosen)], f" The {limit} fastest of {len(items)}."
