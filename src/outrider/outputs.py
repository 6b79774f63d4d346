"""What requests amount to, finished and under way, as callers get it. Knows no models, and of the loop its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .row import Request, Row
from .stats import Stats
from .types import FinishReason, Round
from .verify import Verifier


@dataclass(frozen=True, slots=True)
class Output:
    """One finished request.

    Attributes:
        text: what was written, without stop strings and special tokens.
        token_ids: what was written, EOS included.
        finish_reason: "stop" (EOS or a stop string) or "length" (budget or context); None if it was
            stopped on the way.
        rounds: every round, in order.
        seed: the same seed gives the same tokens again.
        prompt_ids: the prompt as the target saw it.
        exactness: "bits" if speculation cannot change a logit, "ties" if it may by rounding, so that a near tie can
            flip.
        reused: prompt tokens whose keys were known from an earlier request.
        verifier: the rule that decided.
        lossless: whether the rule keeps the target's law; if not, `stats.mean_tv` and `stats.mean_kl` say how far the
            output is from it.
        source_ids: what an encoder-decoder target read; `prompt_ids` are then those that its answer began behind.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    rounds: list[Round]
    seed: int
    prompt_ids: tuple[int, ...]
    exactness: str
    reused: int
    verifier: str
    lossless: bool
    source_ids: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """How many tokens were read."""
        return len(self.source_ids) or len(self.prompt_ids)

    @property
    def stats(self) -> Stats:
        """The figures of this output's rounds."""
        return Stats.of(self.rounds)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a recording.

    Attributes:
        start, end: seconds.
        text: what was said, without time stamps.
        token_ids: as they were written, time stamps included.
    """

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transcript(Output):
    """What was heard in a recording. `token_ids` are those of the segments, as Transformers' `generate` gives them:
    without the end of sequence, and without what was thrown away behind a chunk's last time stamp.

    Attributes:
        text, token_ids, finish_reason, rounds, seed, prompt_ids, exactness, reused, verifier, lossless, source_ids: see
            `Output`; the rounds are those of all chunks, and `prompt_ids` stood before the first.
        segments: in order.
        language: its token, such as "<|en|>", asked for or detected; None for a model of one language.
        duration: seconds of the recording.
    """

    segments: tuple[Segment, ...] = ()
    language: str | None = None
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the text (possibly nothing yet), and the round itself."""

    text: str
    round: Round


class Stream(Iterator[Piece]):
    """An answer under way. Iterating writes it; leaving early, or `stop`, ends the request.

    Attributes:
        output: what has been written so far, as an `Output`; complete once the iterator is exhausted.
    """

    def __init__(
        self, events: Iterator[tuple[Row, Round]], request: Request, exactness: str, verifier: Verifier
    ) -> None:
        self._events, self._request, self._exactness, self._verifier = events, request, exactness, verifier
        self._row: Row | None = None
        self._rounds: list[Round] = []

    def __next__(self) -> Piece:
        self._row, round_ = next(self._events)
        self._rounds.append(round_)
        return Piece(self._row.told(), round_)

    def stop(self) -> None:
        """End the request here."""
        self._events = iter(())

    @property
    def output(self) -> Output:
        """See the class."""
        return _output(self._request, self._row, self._rounds, self._exactness, self._verifier)


class Batch(Iterator[Round]):
    """Requests under way together. Iterating serves them, round by round: `Round.request` says whose a round is, and
    rounds of one pass follow each other. Leaving early ends them.

    Attributes:
        outputs: what has been written so far, one per prompt; complete once the iterator is exhausted.
    """

    def __init__(
        self, events: Iterator[tuple[Row, Round]], requests: Sequence[Request], exactness: str, verifier: Verifier
    ) -> None:
        self._events, self._requests, self._exactness, self._verifier = events, requests, exactness, verifier
        self._rows: dict[int, Row] = {}
        self._rounds: list[list[Round]] = [[] for _ in requests]

    def __next__(self) -> Round:
        row, round_ = next(self._events)
        self._rows[row.index] = row
        self._rounds[row.index].append(round_)
        return round_

    @property
    def outputs(self) -> list[Output]:
        """See the class."""
        return [
            _output(request, self._rows.get(index), rounds, self._exactness, self._verifier)
            for index, (request, rounds) in enumerate(zip(self._requests, self._rounds, strict=True))
        ]


def _output(request: Request, row: Row | None, rounds: list[Round], exactness: str, verifier: Verifier) -> Output:
    """What a request has come to; nothing yet if it never had a round."""
    text, ids, finish, reused = ("", [], None, 0) if row is None else (row.text, row.output, row.finish, row.reused)
    rule = (verifier.spec, verifier.lossless)
    read = () if request.source is None else request.source.ids
    return Output(text, ids, finish, rounds, request.seed, request.prompt, exactness, reused, *rule, read)
