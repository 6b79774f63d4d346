"""Why a case is as fast as it is: its speed taken apart into factors, and what would raise it. Runs nothing.

    speed = tokens per pass x cost of checking x cost of drafting x everything else x reading the prompt x averaging

Each factor is 1 where speculation costs or gains nothing there. They are made so that their product is the measured
speed: the first four come from the means of passes, the fifth from whole answers, and the last is what remains between
a ratio of sums and a mean of ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from .predicting import plain_of, round_seconds, share_with_draft
from .reporting.wording import counted, milliseconds, number, share
from .results import Case, Record, Results, Sample, Summary

Part = Literal["acceptance", "checking", "drafting", "overhead", "reading", "averaging"]


class Factor(Record):
    """One factor of the speed.

    Attributes:
        part: which.
        value: 1 leaves the speed as it is.
        words: what it was made of.
    """

    part: Part
    value: float
    words: str


class Explanation(Record):
    """One case.

    Attributes:
        case: its name.
        speedup: as measured: the product of the factors.
        factors: in order; empty where they cannot be told.
        why_not: why there are none, or None.
        ceilings: what the speed would be if a part cost nothing, for the parts that cost something.
        advice: what would help, the likeliest first.
    """

    case: str
    speedup: float | None
    factors: tuple[Factor, ...]
    why_not: str | None
    ceilings: dict[Part, float]
    advice: tuple[str, ...] = ()

    def factor(self, part: Part) -> float:
        """The value of one factor; 1 if it is not there."""
        return next((one.value for one in self.factors if one.part == part), 1.0)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Means per round of an answer: of a batch, per pass and prompt that is still being answered."""

    draft: float
    verify: float
    whole: float

    @classmethod
    def of(cls, summary: Summary, samples: Sequence[Sample]) -> _Seconds | None:
        """From the answers; or else from the summary, whose means count the last passes of a batch as full ones."""
        told = [one for one in samples if one.case == summary.case and one.rounds]
        rounds = [round_ for one in told for round_ in one.rounds]
        if rounds:
            return cls(
                fmean(round_.draft_seconds for round_ in rounds),
                fmean(round_.verify_seconds for round_ in rounds),
                sum(one.seconds - prefill(one) for one in told) / len(rounds),
            )
        whole = round_seconds(summary)
        if not whole or not summary.verify_seconds or summary.draft_seconds is None:
            return None
        return cls(summary.draft_seconds, summary.verify_seconds, whole)


def explain(results: Results, samples: Sequence[Sample] = ()) -> list[Explanation]:
    """Every case that speculates, in order; without advice, which `advising` gives.

    Args:
        results: with plain decoding, or there is nothing to explain against.
        samples: tell what reading the prompts took; without them that stays with the averaging.
    """
    found = []
    for summary in sorted(results.summaries, key=lambda one: one.case):
        case = results.cases[summary.case]
        if case != case.plain:
            plain = plain_of(results, summary.case)
            found.append(_explained(case, summary, plain, samples))
    return found


def _explained(case: Case, summary: Summary, plain: Summary | None, samples: Sequence[Sample]) -> Explanation:
    own, bare = _Seconds.of(summary, samples), _Seconds.of(plain, samples) if plain else None
    why_not = None
    if plain is None or summary.speedup is None:
        why_not = "plain decoding was not measured in this run, so there is nothing to compare with"
    elif own is None or bare is None or not summary.tokens_per_pass or not plain.tokens_per_pass:
        why_not = "the time of its rounds is not known, as of servers and of Transformers' own loop"
    if why_not is not None or plain is None or own is None or bare is None or not summary.speedup:
        return Explanation(case=case.name, speedup=summary.speedup, factors=(), why_not=why_not, ceilings={})
    factors = _per_pass(summary, plain, own, bare)
    rest = summary.speedup
    for one in factors:
        rest /= one.value
    factors += _over_answers(rest, summary, plain, samples)
    ceilings: dict[Part, float] = {
        one.part: summary.speedup / one.value
        for one in factors
        if one.part in ("checking", "drafting", "overhead", "reading") and one.value < 1
    }
    return Explanation(case=case.name, speedup=summary.speedup, factors=tuple(factors), why_not=None, ceilings=ceilings)


def _per_pass(summary: Summary, plain: Summary, own: _Seconds, bare: _Seconds) -> list[Factor]:
    """What a pass writes and what it takes, against plain decoding."""
    assert summary.tokens_per_pass is not None and plain.tokens_per_pass is not None
    busy = share_with_draft(summary)
    width = 1 + summary.drafted / summary.rounds
    length = f"{number(summary.acceptance_length)} tokens per round with a draft" if summary.drafted else "no drafts"
    beside, beside_plain = own.whole - own.verify - own.draft, bare.whole - bare.verify
    return [
        Factor(
            part="acceptance",
            value=summary.tokens_per_pass / plain.tokens_per_pass,
            words=f"{length}, and {share(busy)} of the rounds had one: {number(summary.tokens_per_pass)} per pass",
        ),
        Factor(
            part="checking",
            value=bare.verify / own.verify,
            words=f"a pass over {number(width, 1)} tokens per prompt takes {milliseconds(own.verify)} ms, one over a "
            f"single token {milliseconds(bare.verify)} ms",
        ),
        Factor(
            part="drafting",
            value=own.verify / (own.verify + own.draft),
            words=f"a draft takes {milliseconds(own.draft)} ms, {share(own.draft / own.whole)} of the time",
        ),
        Factor(
            part="overhead",
            value=(own.verify + own.draft) / own.whole * bare.whole / bare.verify,
            words=f"verdicts and the rest take {milliseconds(beside)} ms per pass, plain decoding's "
            f"{milliseconds(beside_plain)} ms",
        ),
    ]


def _over_answers(rest: float, summary: Summary, plain: Summary, samples: Sequence[Sample]) -> list[Factor]:
    """What is left between the passes and the speed of whole answers."""
    reading = _reading(
        [one for one in samples if one.case == summary.case], [s for s in samples if s.case == plain.case]
    )
    over = counted(summary.prompts, "prompt")
    if reading is None:
        return [
            Factor(
                part="averaging",
                value=rest,
                words=f"reading the prompt, which nothing speeds up, and averaging over {over}",
            )
        ]
    value, part = reading
    return [
        Factor(part="reading", value=value, words=f"reading the prompts takes {share(part)} of plain decoding's time"),
        Factor(
            part="averaging",
            value=rest / value,
            words=f"a mean over {over}: in a ratio of sums the slow ones would weigh more",
        ),
    ]


def _reading(own: Sequence[Sample], plain: Sequence[Sample]) -> tuple[float, float] | None:
    """(whole answers' speed / that of decoding alone, prefill's share of plain decoding), from sums over answers."""
    both = {(one.prompt, one.repeat) for one in own} & {(one.prompt, one.repeat) for one in plain}
    sums = []
    for samples in (own, plain):
        chosen = [one for one in samples if (one.prompt, one.repeat) in both and one.rounds]
        tokens = sum(round_.tokens for one in chosen for round_ in one.rounds)
        seconds = sum(one.seconds for one in chosen)
        decoding = sum(one.seconds - prefill(one) for one in chosen)
        if not tokens or decoding <= 0:
            return None
        sums.append((seconds / tokens, decoding / tokens))
    (whole, decoding), (plain_whole, plain_decoding) = sums
    return plain_whole / whole / (plain_decoding / decoding), 1 - plain_decoding / plain_whole


def prefill(sample: Sample) -> float:
    """Seconds before the first draft began."""
    first = sample.rounds[0]
    return max(0.0, first.at - first.draft_seconds - first.verify_seconds - first.verdict_seconds)
