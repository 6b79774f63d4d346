"""What a worker and its parent say to each other: one JSON object a line. Runs in every peer's environment, so it
imports the standard library only. Knows nothing of models.

    parent starts:  python worker_X.py '{"threads": 2, ...}'
    worker answers: {"ready": {...}}                     the model is loaded; what it is
    parent asks:    {"ids": [...], "tokens": 128, "mode": "plain", "stop_ids": [...]}
    worker answers: {"first_seconds": ..., "first_tokens": 1, "seconds": ..., "ids": [...], "stats": {...}}
    instead of either answer: {"error": "one sentence"}
    parent closes the worker's input: the worker ends
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """A greedy answer to be written.

    Attributes:
        ids: the prompt.
        tokens: at most so many new ones.
        mode: how to decode, among the worker's modes.
        stop_ids: ids that end the answer.
    """

    ids: list[int]
    tokens: int
    mode: str
    stop_ids: list[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        first_seconds: from the request until the first tokens were there.
        first_tokens: how many those were.
        seconds: from the request until the last token was there.
        ids: what was written.
        stats: what the system says of itself.
    """

    first_seconds: float
    first_tokens: int
    seconds: float
    ids: list[int]
    stats: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Seconds since the request, and until its first tokens."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self.first_seconds: float | None = None
        self.first_tokens = 0

    @property
    def seconds(self) -> float:
        """Until now."""
        return perf_counter() - self._started

    def arrived(self, tokens: int) -> None:
        """So many tokens have just come."""
        if tokens and self.first_seconds is None:
            self.first_seconds, self.first_tokens = self.seconds, tokens


class Model(Protocol):
    """A loaded model of one system."""

    details: dict[str, Any]

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """The new ids (an EOS included or not, as the system does) and statistics; tells the clock what arrives."""
        ...


def answer(model: Model, request: Request) -> Answer:
    """Let the model write, under the clock."""
    clock = Clock()
    ids, stats = model.generate(request, clock)
    seconds = clock.seconds
    first = clock.first_seconds if clock.first_seconds is not None else seconds
    return Answer(first, clock.first_tokens, seconds, without_stop(ids, request.stop_ids), stats)


def without_stop(ids: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
    """The ids up to the first that ends an answer, so that systems that report it equal those that do not."""
    end = next((index for index, token in enumerate(ids) if token in stop_ids), len(ids))
    return list(ids[:end])


def serve(load: Callable[[dict[str, Any]], Model]) -> None:
    """Be a worker: load once, then answer until the input ends. Whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def attempt(step: Callable[[], dict[str, Any]]) -> None:
        try:
            said = step()
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")

    models: list[Model] = []

    def begin() -> dict[str, Any]:
        models.append(load(json.loads(sys.argv[1])))
        return {"ready": models[0].details}

    attempt(begin)
    while models and (line := sys.stdin.readline()):
        attempt(lambda line=line: asdict(answer(models[0], Request(**json.loads(line)))))
