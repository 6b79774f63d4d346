"""The answer where a bench has been run: what was measured comes before what rules say. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..errors import BadOption
from ..measure.results import PLAIN, Case, Results, Summary
from .ranking import Asked, Measured, Recommendation
from .situation import Situation


def argued(
    told: Sequence[Recommendation], results: Results, situation: Situation, asked: Asked
) -> list[Recommendation]:
    """The same methods with what was measured of them.

    First those that were measured to be faster, the fastest first; then those that were not measured, by the rules;
    then those that were measured not to be; then those that are ruled out.

    Args:
        told: by the rules.
        results: of a bench of the same target.
        situation: says which cases count.
        asked: names and commands.

    Raises:
        BadOption: nothing of the kind was measured.
    """
    best = _best(results, situation)
    found = []
    for recommendation in told:
        hit = best.get(recommendation.method.drafter)
        if hit is None or recommendation.method.drafter != recommendation.method.name:
            found.append(recommendation)
            continue
        case, measured = hit
        parts = f"--drafter {case.drafter} --verifier {case.verifier} --policy {case.policy}"
        commands = [
            f"outrider {command} --target {asked.target or 'TARGET'} {parts}{rest}"
            for command, rest in (("prove", ""), ("generate", ' --chat "..."'))
            if command in asked.commands
        ]
        changed = replace(recommendation, spec=case.drafter, measured=measured, ruled_out=None)
        found.append(replace(changed, commands=tuple(commands)))
    return sorted(found, key=_place)


def _place(told: Recommendation) -> tuple[int, float]:
    if told.ruled_out is not None:
        return 3, 0.0
    if told.measured is None:
        return 1, 0.0  # sorting is stable: by the rules
    return (0 if told.measured.verdict == "faster" else 2), -told.measured.speed


def _best(results: Results, situation: Situation) -> dict[str, tuple[Case, Measured]]:
    """Drafter -> its fastest case that counts."""
    found: dict[str, tuple[Case, Measured]] = {}
    for case, measured in _counting(results, situation):
        name = case.drafter.partition(":")[0]
        if name not in found or measured.speed > found[name][1].speed:
            found[name] = (case, measured)
    if not found:
        wanted = [f"batch {situation.batch}"]
        wanted += [] if situation.temperature is None else [f"temperature {situation.temperature:g}"]
        wanted += ["a lossless verifier"] if situation.must_be_exact else []
        raise BadOption(
            f"The results have no drafter measured with {', '.join(wanted)}: measure that with outrider bench, or "
            "leave --results out."
        )
    return found


def _counting(results: Results, situation: Situation) -> Iterator[tuple[Case, Measured]]:
    """The cases that are like the situation, with their speeds."""
    summaries = {results.cases[summary.case]: summary for summary in results.summaries}
    for case, summary in summaries.items():
        plain = summaries.get(case.plain)
        if case.system != "outrider" or case.drafter == PLAIN or plain is None or case.batch != situation.batch:
            continue
        if situation.temperature is not None and case.temperature != situation.temperature:
            continue
        if situation.must_be_exact and not summary.lossless:
            continue
        measured = _measured(case, summary, plain, situation)
        if measured is not None:
            yield case, measured


def _measured(case: Case, summary: Summary, plain: Summary, situation: Situation) -> Measured | None:
    interval = summary.speedup_interval
    low, high = (interval.low, interval.high) if interval else (None, None)
    verdict, speed = summary.verdict, summary.speedup
    if situation.goal == "throughput":
        # The interval is of paired requests; of the whole there is one figure, so it is no more than a figure.
        low = high = None
        speed = summary.throughput / plain.throughput if plain.throughput else None
        verdict = summary.verdict if speed is None else "faster" if speed > 1 else "slower"
    if speed is None:
        return None
    return Measured(case.name, case.policy, speed, low, high, verdict, summary.prompts, summary.acceptance_length)
