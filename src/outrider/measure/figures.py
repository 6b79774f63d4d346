"""What samples amount to: each figure is defined in `results.Summary` and computed here, from rounds and arrivals.

Counts go through `stats`, as everywhere. Speed is compared pair by pair, for a prompt, a repeat and a seed at a time,
and never as a mean over another mean. Knows no models and no clocks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .. import verify
from ..stats import Stats, Tally
from . import bootstrap
from .cases import promised
from .results import (
    ENDPOINT,
    OWN,
    Case,
    CategoryFigures,
    Interval,
    Percentiles,
    RoundFigures,
    Sample,
    ServerCounters,
    Summary,
)

WINDOW = 16  # tokens over which the time per token is taken


def compared(cases: Sequence[Case], samples: Sequence[Sample]) -> list[Sample]:
    """The samples with `identical` filled in, where the answer of plain decoding is there and the same is promised."""
    plain = {(s.case, s.prompt, s.repeat, s.seed): s.ids for s in samples}
    where = {case: index for index, case in enumerate(cases)}
    found = []
    for sample in samples:
        case, same = cases[sample.case], None
        if case != case.plain and promised(case):
            other = plain.get((where.get(case.plain, -1), sample.prompt, sample.repeat, sample.seed))
            same = None if other is None else other == sample.ids
        found.append(sample.model_copy(update={"identical": same}))
    return found


def summarise(
    cases: Sequence[Case], samples: Sequence[Sample], drafter_memory: Mapping[int, int] | None = None
) -> tuple[Summary, ...]:
    """One summary per case that has samples, in the order of the cases.

    Args:
        cases: that the samples speak of.
        samples: as `compared` leaves them, in any order.
        drafter_memory: case -> bytes of weights that its drafter adds.
    """
    of_case: dict[int, list[Sample]] = {}
    for sample in samples:
        of_case.setdefault(sample.case, []).append(sample)
    where = {case: index for index, case in enumerate(cases)}
    found = []
    for index, case in enumerate(cases):
        if index in of_case:
            beside = case.system != ENDPOINT and case != case.plain
            plain = of_case.get(where.get(case.plain, -1), []) if beside else []
            found.append(_summary(index, case, of_case[index], plain, (drafter_memory or {}).get(index)))
    return tuple(found)


def _summary(index: int, case: Case, samples: list[Sample], plain: list[Sample], memory: int | None) -> Summary:
    counts = Counts.of(samples)
    batches = Batch.all_of(samples)
    speed, interval = _speedup(samples, plain)
    kinds = dict.fromkeys(sample.category for sample in samples)
    matched = [sample.identical for sample in samples if sample.identical is not None]
    peaks = [sample.peak_memory for sample in samples if sample.peak_memory is not None]
    draft, verify_, verdict, other = _per_pass(batches)
    return Summary(
        case=index,
        prompts=len({sample.prompt for sample in samples}),
        samples=len(samples),
        rounds=counts.rounds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        tokens=sum(map(_tokens, samples)),
        acceptance_rate=counts.acceptance_rate,
        acceptance_length=counts.acceptance_length,
        survival=counts.survival,
        conditional=counts.conditional,
        tokens_per_pass=counts.tokens_per_pass,
        time_to_first=_percentiles(sample.arrivals[0][0] for sample in samples if sample.arrivals),
        between_tokens=_percentiles(gap for sample in samples for gap in _gaps(_times(sample))),
        between_events=_percentiles(gap for sample in samples for gap in _gaps([at for at, _ in sample.arrivals])),
        per_token=_percentiles(value for sample in samples for value in _sliding(_times(sample))),
        tokens_per_second=_tokens_per_second(batches),
        throughput=sum(map(_tokens, samples)) / sum(batch.seconds for batch in batches),
        speedup=speed,
        speedup_interval=interval,
        verdict=None if speed is None else bootstrap.verdict(interval),
        draft_seconds=draft,
        verify_seconds=verify_,
        verdict_seconds=verdict,
        other_seconds=other,
        peak_memory=max(peaks, default=None),
        drafter_memory=memory,
        compared=len(matched),
        identical=sum(matched),
        perplexity=_perplexity(samples),
        lossless=verify.make_verifier(case.verifier).lossless if case.system == OWN else None,
        mean_tv=counts.mean_tv,
        mean_kl=counts.mean_kl,
        categories={kind: _category(kind, samples, plain, batches) for kind in kinds},
    )


def _category(kind: str, samples: list[Sample], plain: list[Sample], batches: Sequence[Batch]) -> CategoryFigures:
    own = [sample for sample in samples if sample.category == kind]
    counts = Counts.of(own)
    speed, interval = _speedup(own, plain)
    return CategoryFigures(
        prompts=len({sample.prompt for sample in own}),
        acceptance_rate=counts.acceptance_rate,
        acceptance_length=counts.acceptance_length,
        tokens_per_second=_tokens_per_second(batches, kind),
        speedup=speed,
        speedup_interval=interval,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Acceptance, from rounds or from a server's counters; the names are those of `results.Summary`."""

    rounds: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    acceptance_length: float | None
    survival: tuple[float, ...]
    conditional: tuple[float, ...]
    tokens_per_pass: float | None
    mean_tv: float | None
    mean_kl: float | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Counts:
        """Those of these samples together."""
        counters = [sample.counters for sample in samples if sample.counters is not None]
        if counters:
            return cls._of_server(counters)
        stats = Stats.of_tallies([tally(round_) for sample in samples for round_ in sample.rounds])
        return cls(
            stats.rounds,
            stats.drafted,
            stats.accepted,
            stats.acceptance_rate,
            stats.acceptance_length,
            stats.survival,
            stats.conditional,
            stats.tokens_per_pass if stats.rounds else None,
            stats.mean_tv,
            None if stats.mean_kl == math.inf else stats.mean_kl,
        )

    @classmethod
    def _of_server(cls, counters: Sequence[ServerCounters]) -> Counts:
        """A draft of the server's is a round, and its bonus token is not among the accepted ones."""
        drafted = sum(part.drafted for part in counters)
        accepted = sum(part.accepted for part in counters)
        told = [part.drafts for part in counters if part.drafts is not None]
        drafts = sum(told) if len(told) == len(counters) else 0
        deepest = max(len(part.accepted_at) for part in counters)
        kept = [sum(part.accepted_at[k] for part in counters if k < len(part.accepted_at)) for k in range(deepest)]
        while kept and not kept[-1]:
            kept.pop()
        return cls(
            drafts,
            drafted,
            accepted,
            accepted / drafted if drafted else None,
            1 + accepted / drafts if drafts else None,
            tuple(count / drafts for count in kept) if drafts else (),
            tuple(now / before for before, now in pairwise([drafts, *kept])) if drafts else (),
            None,
            None,
            None,
        )


def tally(round_: RoundFigures) -> Tally:
    """A round's counts, as `stats` takes them."""
    kl = math.inf if round_.tv is not None and round_.kl is None else round_.kl
    seconds = (round_.draft_seconds, round_.verify_seconds)
    return Tally(round_.drafted, round_.accepted, round_.tokens, *seconds, round_.tv, kl)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that were served together.

    Attributes:
        samples: of one case and repeat.
        passes: when a pass's tokens were there -> the rounds of its rows.
    """

    samples: tuple[Sample, ...]
    passes: dict[float, list[RoundFigures]]

    @classmethod
    def all_of(cls, samples: Sequence[Sample]) -> list[Batch]:
        """The batches of these samples."""
        together: dict[tuple[object, ...], list[Sample]] = {}
        for sample in samples:
            alone = sample.prompt if sample.group is None else None
            together.setdefault((sample.case, sample.repeat, sample.group, alone), []).append(sample)
        found = []
        for part in together.values():
            passes: dict[float, list[RoundFigures]] = {}
            for round_ in sorted((r for sample in part for r in sample.rounds), key=lambda r: r.at):
                passes.setdefault(round_.at, []).append(round_)
            found.append(cls(tuple(part), passes))
        return found

    @property
    def seconds(self) -> float:
        """Wall time, prefill included."""
        return max(sample.seconds for sample in self.samples)

    @property
    def prefill(self) -> float:
        """Seconds before the first draft began; see `results.Summary`."""
        if not self.passes:
            return min((sample.arrivals[0][0] for sample in self.samples if sample.arrivals), default=0.0)
        at, rounds = next(iter(self.passes.items()))
        return max(0.0, at - sum(_work(rounds)))

    def rate(self, sample: Sample) -> float:
        """Tokens per second of one of the answers, prefill apart."""
        if self.passes or len(sample.arrivals) < 2:
            start, tokens = (self.prefill, _tokens(sample)) if self.passes else (0.0, _tokens(sample))
        else:
            start, tokens = sample.arrivals[0][0], _tokens(sample) - sample.arrivals[0][1]
        return tokens / max(sample.seconds - start, 1e-9)


def _work(rounds: Sequence[RoundFigures]) -> tuple[float, float, float]:
    """Seconds of drafting, of the pass and of all verdicts in one pass."""
    shared = rounds[0]
    return shared.draft_seconds, shared.verify_seconds, sum(round_.verdict_seconds for round_ in rounds)


def _per_pass(batches: Sequence[Batch]) -> tuple[float | None, float | None, float | None, float | None]:
    """Seconds of drafting, the pass, the verdicts and the rest, per pass; nothing where no rounds were told."""
    work = [_work(rounds) for batch in batches for rounds in batch.passes.values()]
    if not work:
        return None, None, None, None
    draft, verify_, verdict = (sum(part) for part in zip(*work, strict=True))
    whole = sum(max(batch.passes) - batch.prefill for batch in batches)
    rest = max(0.0, whole - draft - verify_ - verdict)
    return draft / len(work), verify_ / len(work), verdict / len(work), rest / len(work)


def _tokens(sample: Sample) -> int:
    return sum(tokens for _, tokens in sample.arrivals)


def _times(sample: Sample) -> list[float]:
    """When each token was there."""
    return [at for at, tokens in sample.arrivals for _ in range(tokens)]


def _gaps(times: Sequence[float]) -> list[float]:
    return [now - before for before, now in pairwise(times)]


def _sliding(times: Sequence[float]) -> list[float]:
    """Seconds per token over every window of `WINDOW` tokens behind another token."""
    return [(times[place + WINDOW] - times[place]) / WINDOW for place in range(len(times) - WINDOW)]


def _percentiles(values: Iterable[float]) -> Percentiles:
    every = list(values)
    if not every:
        return Percentiles(p50=None, p95=None, p99=None)
    p50, p95, p99 = (float(value) for value in np.percentile(every, [50, 95, 99]))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def _tokens_per_second(batches: Sequence[Batch], kind: str | None = None) -> float:
    """The median over prompts (of one category, or all) of the median over repeats."""
    rates: dict[str, list[float]] = {}
    for batch in batches:
        for sample in batch.samples:
            if kind in (None, sample.category):
                rates.setdefault(sample.prompt, []).append(batch.rate(sample))
    return statistics.median(statistics.median(of_prompt) for of_prompt in rates.values())


def _speedup(samples: Sequence[Sample], plain: Sequence[Sample]) -> tuple[float | None, Interval | None]:
    """The paired speed ratio and its interval; None where there is nothing to pair."""
    other = {(s.prompt, s.repeat, s.seed): s for s in plain}
    ratios: dict[str, list[float]] = {}
    together: dict[str, tuple[object, ...]] = {}
    for sample in samples:
        base = other.get((sample.prompt, sample.repeat, sample.seed))
        if base is not None and _tokens(sample) and _tokens(base):
            ratio = (base.seconds / _tokens(base)) / (sample.seconds / _tokens(sample))
            ratios.setdefault(sample.prompt, []).append(ratio)
            together[sample.prompt] = ("alone", sample.prompt) if sample.group is None else ("group", sample.group)
    if not ratios:
        return None, None
    per_prompt = {prompt: statistics.median(of_prompt) for prompt, of_prompt in ratios.items()}
    values = list(per_prompt.values())
    return bootstrap.average(values), bootstrap.interval(values, groups=[together[prompt] for prompt in per_prompt])


def _perplexity(samples: Sequence[Sample]) -> float | None:
    told = [(_tokens(sample), sample.perplexity) for sample in samples if sample.perplexity is not None]
    tokens = sum(count for count, _ in told)
    return math.exp(sum(count * math.log(value) for count, value in told) / tokens) if tokens else None
