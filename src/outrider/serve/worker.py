"""The one thread that owns the loop: requests join and leave between rounds. Knows no HTTP and no text.

Whoever hands in a job hears of it through `Job.deliver`, called in this thread. A job that is cancelled has left the
batch before the next round begins.
"""

from __future__ import annotations

import logging
import statistics
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ..drafters import Drafter
from ..engine import Engine
from ..policy import Maker
from ..row import Request, Row
from ..types import FinishReason, Round
from .metrics import Metrics
from .room import Room

_logger = logging.getLogger("outrider.serve")
_RECENT = 32  # requests whose duration tells how long the queue will take


@dataclass(frozen=True, slots=True)
class Wrote:
    """A round of a job: what it made certain of the text, and the round itself.

    Attributes:
        at: when (`time.perf_counter`).
        finish: why the job ended with it, or None.
    """

    text: str
    round: Round
    at: float
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A job ended in trouble."""

    error: Exception


class Full(Exception):
    """The queue has no place for these jobs.

    Attributes:
        seconds: after which there may be one.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__("the queue is full")
        self.seconds = seconds


class Closed(Exception):
    """The worker takes no more jobs, or has ended this one, because the server shuts down."""


@dataclass(slots=True, eq=False)
class Job:
    """One row to be: a request, how to draft for it, and who wants to know.

    Attributes:
        name: of the request, for the log.
        deliver: called with each event, the last of which has a `finish` or is `Failed`.
        arrived, started, ready: when it came, when its prompt was begun, and when that had been read.
        reused: prompt tokens whose keys were known.
        cancelled: nobody listens any more.
    """

    name: str
    request: Request
    drafter: Drafter
    make_policy: Maker
    deliver: Callable[[Wrote | Failed], object]
    slots: int
    per_slot: int
    arrived: float = field(default_factory=perf_counter)
    started: float = 0.0
    ready: float = 0.0
    latest: float = 0.0
    reused: int = 0
    cancelled: bool = False


class Worker:
    """Serves jobs together.

    Args:
        engine: the loop; from `start` on nobody else may touch it.
        room: the memory for their keys.
        max_batch: rows under way at once.
        max_queue: jobs that wait, beyond those that could start at once.
        metrics: where rounds are counted.

    Attributes:
        cache_bytes: of keys and values that rows under way had after the last round.
    """

    def __init__(self, engine: Engine, room: Room, max_batch: int, max_queue: int, metrics: Metrics) -> None:
        self._engine, self.room, self._max_batch, self._max_queue = engine, room, max_batch, max_queue
        self._metrics, self.cache_bytes = metrics, 0
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: dict[Row, Job] = {}
        self._starting = 0  # jobs whose prompt is being read
        self._closed, self._stopped = False, False
        self._recent: deque[float] = deque([1.0], _RECENT)
        self._threads = torch.get_num_threads()

    @property
    def running(self) -> int:
        """Rows under way, one whose prompt is being read included."""
        return len(self._running) + self._starting

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        with self._changed:
            return not self._waiting and not self.running

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs in, all or none.

        Raises:
            Full: the queue has no place.
            Closed: the worker takes none any more.
        """
        with self._changed:
            if self._closed:
                raise Closed
            if len(jobs) > self._places:
                raise Full(self._patience())
            self._waiting.extend(jobs)
            self._changed.notify()

    def has_place(self) -> bool:
        """Whether one more job would be taken in."""
        with self._changed:
            return not self._closed and self._places > 0

    @property
    def _places(self) -> int:
        """How many jobs may be taken in now."""
        return self._max_queue + max(0, self._max_batch - self.running) - len(self._waiting)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody listens to these any more: they leave before the next round."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """Take no more jobs; those that are here are served to their end."""
        with self._changed:
            self._closed = True

    def stop(self) -> None:
        """End every job after the round under way, and the thread."""
        with self._changed:
            self._closed = self._stopped = True
            self._changed.notify()

    def serve(self) -> None:
        """The thread's work, until `stop`."""
        torch.set_num_threads(self._threads)  # OpenMP keeps that number per thread
        try:
            while self._wait():
                self._leave()
                self._join()
                self._round()
                self.cache_bytes = self._engine.cache_bytes
        finally:
            self.stop()
            for job in [*self._waiting, *self._running.values()]:
                self._tell(job, Failed(Closed()))
            with self._changed:
                self._waiting.clear()
            for row in list(self._running):
                self._engine.remove(row)
            self._running.clear()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting or self._running)
            return not self._stopped

    def _leave(self) -> None:
        """Cancelled jobs go."""
        with self._changed:
            gone = [job for job in self._waiting if job.cancelled]
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
        left = [row for row, job in self._running.items() if job.cancelled]
        for row in left:
            self._engine.remove(row)
            del self._running[row]
        self._metrics.cancelled.inc(len(gone) + len(left))

    def _join(self) -> None:
        """Waiting jobs start, in their order, while there is room; beside rows under way one a round, so that these
        wait for one prompt at most."""
        while True:
            with self._changed:
                rows = [(job.slots, job.per_slot) for job in self._running.values()]
                if not self._waiting or len(rows) >= self._max_batch:
                    return
                job = self._waiting[0]
                if not self.room.fits([*rows, (job.slots, job.per_slot)]):
                    return
                self._waiting.popleft()
                self._starting = 1
            self._start(job)
            with self._changed:
                self._starting = 0
            if rows:
                return

    def _start(self, job: Job) -> None:
        job.started = perf_counter()
        try:
            row = self._engine.add(job.request, job.drafter, job.make_policy())
        except Exception as error:
            self._fail(job, error)
            return
        job.ready = perf_counter()
        job.reused = row.reused
        self._running[row] = job
        self._metrics.queued.observe(job.started - job.arrived)
        self._metrics.prefill.observe(job.ready - job.started)
        self._metrics.prompt_tokens.inc(len(job.request.prompt))
        self._metrics.reused_tokens.inc(row.reused)

    def _round(self) -> None:
        """One round for all, and everybody hears of it."""
        try:
            told = self._engine.step()
        except Exception as error:  # of the pass, which is everybody's
            for row, job in list(self._running.items()):
                self._engine.remove(row)
                del self._running[row]
                self._fail(job, error)
            return
        now = perf_counter()
        for row, round_ in told:
            self._hear(row, round_, now)
        for row in [row for row in self._running if row.error is not None]:
            assert row.error is not None
            self._fail(self._running.pop(row), row.error)

    def _hear(self, row: Row, round_: Round, now: float) -> None:
        """Count a round and pass its text on. What has finished has finished, whatever its drafter says at the end."""
        job = self._running[row]
        self._metrics.round(round_, now - job.latest if job.latest else None)
        if not job.latest:
            self._metrics.first.observe(now - job.arrived)
        job.latest = now
        if row.error is not None and round_.finish is None:
            return
        try:
            text = row.told()
        except Exception as error:
            self._engine.remove(row)
            row.error = error
            return
        if round_.finish is not None:
            del self._running[row]
            self._recent.append(now - job.started)
            self._metrics.whole.observe(now - job.arrived)
            self._metrics.finished.labels(round_.finish).inc()
        self._tell(job, Wrote(text, round_, now, round_.finish))

    def _fail(self, job: Job, error: Exception) -> None:
        """The reason goes into the log without what the exception says, for that may quote somebody's text."""
        where = "".join(traceback.format_tb(error.__traceback__))
        _logger.error("request %s failed: %s\n%s", job.name, type(error).__name__, where)
        self._metrics.failed.inc()
        self._tell(job, Failed(error))

    def _tell(self, job: Job, event: Wrote | Failed) -> None:
        try:
            job.deliver(event)
        except Exception as error:  # its listener has gone
            _logger.debug("request %s cannot be told: %s", job.name, type(error).__name__)

    def _patience(self) -> int:
        """Seconds after which the queue may have a place, by how long requests have taken."""
        rounds = 1 + len(self._waiting) / self._max_batch
        return max(1, min(60, round(statistics.median(self._recent) * rounds / self._max_batch)))
