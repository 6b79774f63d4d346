"""Runs what was predicted, in turns with plain decoding, and says how far the predictions were off.

Measured is what was predicted: decoding, with full batches. The first round of an answer is left out, for nobody knows
when it began, and so are rounds in which a row of the batch was missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..api import Outrider
from ..measure import bootstrap
from ..measure.cases import promised
from ..measure.prompts import BenchPrompt
from ..measure.results import Case, Interval, Sample
from ..measure.runner import Plan, prepared, run, turns, warm_up
from .search import Goal

EXPECTED = 0.10  # relative error of a predicted speedup that is called expected


@dataclass(frozen=True, slots=True)
class Measured:
    """How a case went.

    Attributes:
        case: its index.
        tokens: committed per round.
        per_user: tokens per second of one request.
        throughput: tokens per second of all of them.
        speedup: `per_user` against plain decoding's with the same batch.
        interval: of the speedup, by bootstrap over prompts; None for plain decoding and for a single prompt.
        identical: answers with the ids of plain decoding, of those compared; None where that is not promised.
        compared: see above.
    """

    case: int
    tokens: float
    per_user: float
    throughput: float
    speedup: float
    interval: Interval | None
    identical: int | None
    compared: int

    @property
    def different(self) -> int:
        """Answers with other ids than plain decoding's, where that was promised not to be."""
        return 0 if self.identical is None else self.compared - self.identical

    @property
    def verdict(self) -> bootstrap.Verdict:
        """What the interval says."""
        return bootstrap.verdict(self.interval)

    def value(self, goal: Goal) -> float:
        """What is to be made most of."""
        return self.per_user if goal == "latency" else self.throughput


def error(predicted: float, measured: float) -> float:
    """By how much a prediction is off, relative to what was measured."""
    return predicted / measured - 1


def validate(
    llm: Outrider,
    cases: Mapping[int, Case],
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    advance: Callable[[], None] = lambda: None,
) -> tuple[dict[int, Measured], bool]:
    """Run these cases in turns.

    Args:
        llm: the target; it keeps no prefixes.
        cases: by their indices, with plain decoding of every batch among them.
        prompts: those that do not fill a batch are left out.
        plan: how.
        advance: called after every answer.

    Returns:
        What was measured of each case, and whether Ctrl-C ended it early; a case of which too little is known by then
        is left out.
    """
    llms = prepared(llm, cases)
    samples: list[Sample] = []
    interrupted = False
    try:
        warm_up(llms, cases, prompts, plan)
        for batch in dict.fromkeys(case.batch for case in cases.values()):
            alike = {index: case for index, case in cases.items() if case.batch == batch}
            full = prompts[: len(prompts) // batch * batch]
            for sample in run(llms, alike, turns(alike, full, plan), plan):
                samples.append(sample)
                advance()
    except KeyboardInterrupt:
        interrupted = True
    return measured(cases, samples), interrupted


def answers(cases: Iterable[Case], prompts: int, repeats: int) -> int:
    """How often `validate` will report progress."""
    return repeats * sum(prompts // case.batch * case.batch for case in cases)


def measured(cases: Mapping[int, Case], samples: Sequence[Sample]) -> dict[int, Measured]:
    """What samples amount to, for the cases of which there are some beside plain decoding of the same prompts."""
    of_case = {
        index: {(s.prompt, s.repeat): s for s in samples if s.case == index and _spent(s, case.batch)[1]}
        for index, case in cases.items()
    }
    found = {}
    for index, case in cases.items():
        plain_index = next(other for other, known in cases.items() if known == case.plain)
        common = [key for key in of_case[index] if key in of_case[plain_index]]
        if common:
            pairs = [(of_case[index][key], of_case[plain_index][key]) for key in common]
            found[index] = _measured(index, case, pairs, index == plain_index)
    return found


def _measured(index: int, case: Case, pairs: Sequence[tuple[Sample, Sample]], plain: bool) -> Measured:
    own = [_spent(sample, case.batch) for sample, _ in pairs]
    other = [_spent(sample, case.batch) for _, sample in pairs]
    rate, floor = _rate(own), _rate(other)
    ratios: dict[str, list[float]] = {}
    groups: dict[str, object] = {}
    for (sample, _), (tokens, seconds, _), (plain_tokens, plain_seconds, _) in zip(pairs, own, other, strict=True):
        ratios.setdefault(sample.prompt, []).append((tokens / seconds) / (plain_tokens / plain_seconds))
        groups[sample.prompt] = sample.prompt if sample.group is None else sample.group
    by_prompt = [bootstrap.average(values) for values in ratios.values()]
    return Measured(
        case=index,
        tokens=sum(tokens for tokens, _, _ in own) / sum(rounds for _, _, rounds in own),
        per_user=rate,
        throughput=case.batch * rate,
        speedup=rate / floor,
        interval=None if plain else bootstrap.interval(by_prompt, groups=[str(groups[prompt]) for prompt in ratios]),
        identical=None if plain or not promised(case) else sum(sample.ids == alone.ids for sample, alone in pairs),
        compared=len(pairs),
    )


def _spent(sample: Sample, batch: int) -> tuple[int, float, int]:
    """Tokens, seconds and rounds of an answer, as far as they count."""
    counted = [(now.tokens, now.at - before.at) for before, now in pairwise(sample.rounds) if now.rows == batch]
    return sum(tokens for tokens, _ in counted), sum(seconds for _, seconds in counted), len(counted)


def _rate(spent: Sequence[tuple[int, float, int]]) -> float:
    return sum(tokens for tokens, _, _ in spent) / sum(seconds for _, seconds, _ in spent)
