"""Coloured answers: what each token of a few answers came from. Knows no layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..results import Results

ORIGINS = {
    "drafted": "drafted and kept",
    "corrected": "the target's own, where it left the draft",
    "bonus": "the target's own, after a draft that was kept whole, or without a draft",
}


class Step(NamedTuple):
    """One round: (text, origin) pieces as they are read, the rejected ones among them, and a line that tells all."""

    pieces: tuple[tuple[str, str], ...]
    told: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one case."""

    key: str
    case: str
    prompt: str
    rounds: tuple[Step, ...]


def answers(results: Results) -> tuple[Answer, ...]:
    """The traces, in order."""
    return tuple(
        Answer(
            f"trace-{place}",
            results.cases[trace.case].name,
            trace.prompt,
            tuple(
                Step(_in_order(round_.pieces, round_.rejected), _told(number, round_.pieces, round_.rejected))
                for number, round_ in enumerate(trace.rounds, 1)
            ),
        )
        for place, trace in enumerate(results.traces)
    )


def _in_order(pieces: tuple[tuple[str, str], ...], rejected: str) -> tuple[tuple[str, str], ...]:
    """What was kept, what was rejected behind it, and what the target wrote instead."""
    kept = tuple(piece for piece in pieces if piece[1] == "drafted")
    own = tuple(piece for piece in pieces if piece[1] != "drafted")
    return (*kept, *(((rejected, "rejected"),) if rejected else ()), *own)


def _told(number: int, pieces: tuple[tuple[str, str], ...], rejected: str) -> str:
    kept = "".join(text for text, origin in pieces if origin == "drafted")
    own = "".join(text for text, origin in pieces if origin != "drafted")
    parts = [f"drafted and kept {kept!r}"] * bool(kept)
    parts += [f"drafted and rejected {rejected!r}"] * bool(rejected)
    parts += [f"the target's own {own!r}"] * bool(own)
    return f"round {number}: {', '.join(parts)}"
