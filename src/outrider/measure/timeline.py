"""Samples as a timeline for Perfetto or chrome://tracing. Knows no models and no text: prompts appear by their ids.

A case is a process and an answer of it a thread. Where samples say when they started, answers lie where they lay;
otherwise each begins at 0, one above the other. Within a round drafting, the pass and the verdict are laid out back
from the moment at which its tokens were there; what is left before them is the rest of the loop, and, in a batch, the
verdicts of the other prompts.

Source: the Trace Event Format, as Perfetto reads it (complete events "X", counters "C", metadata "M"; microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .results import Case, RoundFigures, Sample

Event = dict[str, Any]


def write(cases: Sequence[Case], samples: Sequence[Sample], path: Path) -> Path:
    """Write a trace file.

    Args:
        cases: that the samples speak of.
        samples: in any order.
        path: of the JSON file; its folder has to be there.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for place, event in enumerate(events(cases, samples)):
            file.write((",\n" if place else "") + json.dumps(event, allow_nan=False))
        file.write("\n]}\n")
    return path


def events(cases: Sequence[Case], samples: Sequence[Sample]) -> Iterator[Event]:
    """All events, the names of processes and threads first."""
    for index in sorted({sample.case for sample in samples}):
        yield _named("process_name", index, 0, cases[index].name)
    begun = [sample.started for sample in samples if sample.started]
    first = min(begun, default=0.0)
    for thread, sample in enumerate(samples, 1):
        name = f"{sample.prompt}, repeat {sample.repeat}" if sample.repeat else sample.prompt
        yield _named("thread_name", sample.case, thread, name)
        start = sample.started - first if sample.started else 0.0
        yield from _answer(sample, thread, start)


def _answer(sample: Sample, thread: int, start: float) -> Iterator[Event]:
    place = (sample.case, thread)
    told = {"category": sample.category, "prompt_tokens": sample.prompt_tokens, "finish_reason": sample.finish_reason}
    yield _span("answer", place, start, sample.seconds, told)
    if sample.rounds:
        yield from _rounds(sample, place, start)
    else:
        yield from _stream(sample, place, start)
    written = 0
    for at, tokens in sample.arrivals:
        written += tokens
        yield {"name": "tokens", "ph": "C", "pid": sample.case, "tid": thread, "id": thread, "ts": _micro(start + at),
               "args": {"written": written}}  # fmt: skip


def _rounds(sample: Sample, place: tuple[int, int], start: float) -> Iterator[Event]:
    before = max(0.0, sample.rounds[0].at - _work(sample.rounds[0]))
    yield _span("prefill", place, start, before, {"prompt_tokens": sample.prompt_tokens})
    for number, round_ in enumerate(sample.rounds, 1):
        told = {
            "drafted": round_.drafted, "depth": round_.depth, "accepted": round_.accepted, "tokens": round_.tokens,
            "rows": round_.rows, "nodes": round_.nodes,
        }  # fmt: skip
        yield _span(f"round {number}", place, start + before, round_.at - before, told)
        parts = (
            ("verdict", round_.verdict_seconds),
            ("verify", round_.verify_seconds),
            ("draft", round_.draft_seconds),
        )
        end = round_.at
        for name, seconds in parts:
            begin = max(before, end - seconds)
            if end > begin:
                yield _span(name, place, start + begin, end - begin, {})
            end = begin
        before = max(before, round_.at)


def _stream(sample: Sample, place: tuple[int, int], start: float) -> Iterator[Event]:
    """What an endpoint tells: when tokens came."""
    before = 0.0
    for number, (at, tokens) in enumerate(sample.arrivals):
        name = "first token" if number == 0 else "event"
        yield _span(name, place, start + before, at - before, {"tokens": tokens})
        before = at


def _work(round_: RoundFigures) -> float:
    return round_.draft_seconds + round_.verify_seconds + round_.verdict_seconds


def _span(name: str, place: tuple[int, int], start: float, seconds: float, told: Event) -> Event:
    event = {"name": name, "ph": "X", "pid": place[0], "tid": place[1], "ts": _micro(start)}
    return {**event, "dur": _micro(max(0.0, seconds)), "args": told}


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
