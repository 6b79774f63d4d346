"""What a case should reach with shorter drafts, by `outrider.speed`, from what was measured. Runs nothing.

What shorter drafts would have written comes from the case's answers, gone through again (`recorded`), for the survival
of long drafts is not that of short ones; the cost of passes from the measured curve; time for drafting per token, for
verdicts and for the rest from the case itself. Rounds without a draft cost a plain pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from .. import speed
from .recorded import Answer, Behaviour, Drafted, Recording
from .results import PassCost, Results, Sample, Summary
from .shapes import Shape


@dataclass(frozen=True, slots=True)
class Prediction:
    """What speculation with a draft of `k` tokens should reach.

    Attributes:
        acceptance_length: tokens per round that has a draft, bonus included.
        tokens_per_pass: rounds without a draft included.
        decoding: speed against plain decoding from the first token on; None where costs or times are not known.
        speedup: the same over whole requests, reading the prompt included, as `Summary.speedup`.
    """

    k: int
    acceptance_length: float
    tokens_per_pass: float
    decoding: float | None
    speedup: float | None


def pass_seconds(costs: Sequence[PassCost], width: int, batch: int, context: int = 0) -> float | None:
    """Seconds of a pass over so many tokens per row: measured, or on the line between two that were.

    Args:
        costs: what was measured.
        width: tokens per row.
        batch: rows; only passes of just so many count.
        context: tokens before; the passes with the nearest context count.

    Returns:
        None where nothing was measured on both sides.
    """
    alike = [cost for cost in costs if cost.batch == batch]
    if not alike:
        return None
    nearest = min((cost.context for cost in alike), key=lambda measured: abs(measured - context))
    line = sorted((cost.width, cost.seconds) for cost in alike if cost.context == nearest)
    widths = [measured for measured, _ in line]
    place = bisect_left(widths, width)
    if place < len(line) and widths[place] == width:
        return line[place][1]
    if not 0 < place < len(line):
        return None
    (left, low), (right, high) = line[place - 1], line[place]
    return low + (high - low) * (width - left) / (right - left)


def share_with_draft(summary: Summary) -> float:
    """The share of rounds that had a draft: the others write one token each."""
    length, every = summary.acceptance_length, summary.tokens_per_pass
    if length is None or every is None or length <= 1:
        return 1.0 if summary.drafted else 0.0
    return min(1.0, max(0.0, (every - 1) / (length - 1)))


def round_seconds(summary: Summary) -> float | None:
    """The mean time of a round, all parts together; None where they were not measured."""
    parts = (summary.draft_seconds, summary.verify_seconds, summary.verdict_seconds, summary.other_seconds)
    return None if None in parts else sum(part for part in parts if part is not None)


def predictions(results: Results, samples: Sequence[Sample], case: int) -> tuple[Prediction, ...]:
    """What a case should reach with drafts of 1, 2, ... tokens, up to its own length.

    Args:
        results: with costs, and plain decoding of the same setting; without them there are no speeds.
        samples: the answers; without those of the case there is nothing to predict from.
        case: index of a case that asked for the same number of tokens every time, in chains.
    """
    asked = results.cases[case].k
    own = [sample for sample in samples if sample.case == case and sample.rounds]
    rounds = [round_ for sample in own for round_ in sample.rounds]
    if asked is None or not any(round_.drafted for round_ in rounds):
        return ()
    if any(round_.depth < round_.drafted for round_ in rounds):
        return ()  # a tree
    answers = dict.fromkeys(
        (sample.prompt, Answer(tuple(map(Drafted.of_chain, sample.rounds)), sample.finish_reason == "length"))
        for sample in own
    )  # repeats that went the same way count once
    recording = Recording(Shape.chain(asked), tuple(answer for _, answer in answers))
    return tuple(_prediction(results, case, k, recording.behaviour(Shape.chain(k))) for k in range(1, asked + 1))


def _prediction(results: Results, case: int, k: int, behaviour: Behaviour) -> Prediction:
    decoding, speedup = _speeds(results, case, behaviour) or (None, None)
    return Prediction(k, behaviour.acceptance_length, behaviour.tokens, decoding, speedup)


def _speeds(results: Results, case: int, behaviour: Behaviour) -> tuple[float, float] | None:
    """Against plain decoding, from the first token on and over whole requests."""
    summary = next((found for found in results.summaries if found.case == case), None)
    plain = plain_of(results, case)
    if summary is None or plain is None:
        return None
    whole, bare = round_seconds(summary), round_seconds(plain)
    batch = results.cases[case].batch
    widths = [(share, count + 1) for count, share in enumerate(behaviour.drafted) if share > 0]
    passes = [(share, pass_seconds(results.costs, width, batch)) for share, width in widths]
    narrow = pass_seconds(results.costs, 1, batch)
    if whole is None or bare is None or narrow is None or plain.verify_seconds is None:
        return None
    if any(seconds is None for _, seconds in passes):
        return None
    assert summary.draft_seconds is not None and summary.verify_seconds is not None
    per_token = summary.draft_seconds * summary.rounds / summary.drafted
    beside, beside_plain = whole - summary.draft_seconds - summary.verify_seconds, bare - plain.verify_seconds
    verifying = sum(share * seconds for share, seconds in passes if seconds is not None) + beside
    drafting = per_token * sum(share * (width - 1) for share, width in widths)
    decoding = speed.speedup(behaviour.tokens, narrow + beside_plain, verifying, drafting)
    return decoding, _over_requests(plain, bare, decoding)


def plain_of(results: Results, case: int) -> Summary | None:
    """Plain decoding's figures in the same setting, or None where it was not run."""
    wanted = results.cases[case].plain
    return next((found for found in results.summaries if results.cases[found.case] == wanted), None)


def _over_requests(plain: Summary, bare: float, decoding: float) -> float:
    """Speed over whole requests: reading the prompt takes as long as it does for plain decoding."""
    writing = plain.tokens / plain.samples * bare
    reading = max(0.0, (plain.time_to_first.p50 or 0.0) - bare)
    return (reading + writing) / (reading + writing / decoding)
