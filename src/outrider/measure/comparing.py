"""Two runs against each other, prompt by prompt. Knows no models and no terminal.

Runs of different hours meet different machines: where both measured plain decoding too, `of="speedup"` compares what
each case gained over the plain decoding of its own run, which a slower machine leaves as it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import median
from typing import Literal

from ..errors import BadOption
from .bootstrap import average, interval, verdict
from .reading import Run
from .reporting.tabulate import told
from .results import Case, Interval, Record, Sample, Summary

Of = Literal["speed", "speedup"]
_PASSING = frozenset({"argv", "started", "load_average", "interrupted"})  # differ between any two runs

Key = tuple[str, int]


class Compared(Record):
    """One case in both runs, A before and B after.

    Attributes:
        name: of the case.
        prompts: that both answered.
        ratio: geometric mean over prompts of B's speed / A's, the median over repeats of a prompt.
        interval: of that, by bootstrap over prompts; None for a single one.
        verdict: on B.
        tokens_per_second, acceptance_length: (A's, B's) summaries.
        compared, identical: answers with ids in both runs, and those that are the same.
    """

    name: str
    prompts: int
    ratio: float
    interval: Interval | None
    verdict: Literal["faster", "slower", "indistinguishable"]
    tokens_per_second: tuple[float, float]
    acceptance_length: tuple[float | None, float | None]
    compared: int
    identical: int


class Difference(Record):
    """Something in which the two manifests differ."""

    name: str
    before: str
    after: str


class Comparison(Record):
    """What two runs have in common and in what they differ.

    Attributes:
        of: what was compared: "speed", seconds per token, reading the prompt included; "speedup", that against plain
            decoding of the same run.
        cases: in both runs, with prompts in common.
        missing: cases that A has and B has not, or without a prompt in common.
        added: cases that only B has.
        differences: of the manifests.
    """

    of: Of
    cases: tuple[Compared, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    differences: tuple[Difference, ...]

    def falling_below(self, least: float) -> list[str]:
        """The cases whose ratio is less, and those that have gone missing: what a gate must not let pass."""
        return [found.name for found in self.cases if found.ratio < least] + list(self.missing)


def compare(before: Run, after: Run, of: Of = "speed") -> Comparison:
    """Compare two runs by the names of their cases and the ids of their prompts.

    Raises:
        BadOption: runs without samples, without a case in common, or without the plain decoding that `of` asks for.
    """
    for run in (before, after):
        if not run.samples:
            raise BadOption(f"{run.folder} holds no samples: runs are compared by their samples.jsonl.")
    first, second = _by_name(before), _by_name(after)
    common = [name for name in first if name in second and not (of == "speedup" and _plain(before, name))]
    if not common:
        raise BadOption(
            f"The runs have no case in common that could be compared: {before.folder} has {', '.join(first)}, "
            f"{after.folder} has {', '.join(second)}."
        )
    found = [(name, _compared(before, after, name, of)) for name in common]
    return Comparison(
        of=of,
        cases=tuple(one for _, one in found if one is not None),
        missing=(*(name for name in first if name not in second), *(name for name, one in found if one is None)),
        added=tuple(name for name in second if name not in first),
        differences=_differences(before, after),
    )


def _compared(before: Run, after: Run, name: str, of: Of) -> Compared | None:
    old, new = _by_name(before)[name], _by_name(after)[name]
    slow, fast = _costs(before, old, of), _costs(after, new, of)
    ratios: dict[str, list[float]] = {}
    groups: dict[str, Hashable] = {}
    for key, cost in slow.items():
        if key in fast:
            ratios.setdefault(key[0], []).append(cost / fast[key])
            groups.setdefault(key[0], key[0] if old[key].group is None else old[key].group)
    if not ratios:
        return None
    values = [median(of_prompt) for of_prompt in ratios.values()]
    sure = interval(values, groups=list(groups.values()))
    both = [(old[key].ids, new[key].ids) for key in old if key in new and old[key].ids and new[key].ids]
    one, other = _summary(before, name), _summary(after, name)
    return Compared(
        name=name,
        prompts=len(values),
        ratio=average(values),
        interval=sure,
        verdict=verdict(sure),
        tokens_per_second=(one.tokens_per_second, other.tokens_per_second),
        acceptance_length=(one.acceptance_length, other.acceptance_length),
        compared=len(both),
        identical=sum(ids == ids_then for ids, ids_then in both),
    )


def _costs(run: Run, samples: dict[Key, Sample], of: Of) -> dict[Key, float]:
    """(prompt, repeat) -> seconds per token, or that against plain decoding's of the same run."""
    own = {key: seconds for key, sample in samples.items() if (seconds := per_token(sample)) is not None}
    if of == "speed":
        return own
    case = run.results.cases[next(iter(samples.values())).case]
    plain = _by_name(run).get(case.plain.name)
    if plain is None:
        raise BadOption(f"{run.folder} has no plain decoding to hold {case.name} against: compare --of speed.")
    return {
        key: seconds / beside
        for key, seconds in own.items()
        if key in plain and (beside := per_token(plain[key])) is not None
    }


def per_token(sample: Sample) -> float | None:
    """Seconds per token of an answer, reading the prompt included; None for an answer without tokens or time."""
    tokens = len(sample.ids) or sum(count for _, count in sample.arrivals)
    return sample.seconds / tokens if tokens and sample.seconds > 0 else None


def _by_name(run: Run) -> dict[str, dict[Key, Sample]]:
    found: dict[str, dict[Key, Sample]] = {}
    for sample in run.samples:
        found.setdefault(run.results.cases[sample.case].name, {})[sample.prompt, sample.repeat] = sample
    return found


def _case(run: Run, name: str) -> tuple[int, Case]:
    return next((index, case) for index, case in enumerate(run.results.cases) if case.name == name)


def _plain(run: Run, name: str) -> bool:
    case = _case(run, name)[1]
    return case == case.plain


def _summary(run: Run, name: str) -> Summary:
    index = _case(run, name)[0]
    found = next((summary for summary in run.results.summaries if summary.case == index), None)
    if found is None:
        raise BadOption(f"{run.folder} has samples of {name} and no summary: its results.json is of another run.")
    return found


def _differences(before: Run, after: Run) -> tuple[Difference, ...]:
    old, new = (dict(told(run.results.manifest)) for run in (before, after))
    names: Sequence[str] = list(dict.fromkeys([*old, *new]))
    return tuple(
        Difference(name=name, before=old.get(name, "nothing"), after=new.get(name, "nothing"))
        for name in names
        if old.get(name) != new.get(name) and not _PASSING & set(name.split("."))
    )
