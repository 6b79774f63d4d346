"""What a server has behind its endpoints: the model, the worker, the limits, and in which state it is.

Loading happens in the worker's own thread, so that a server listens, and says that it is not ready, from the beginning.
Knows no HTTP.
"""

from __future__ import annotations

import copy
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic, time
from typing import Any, Literal

from ..api import Outrider
from ..errors import BadOption, UsageError
from ..grammar import Grammars
from .choices import Choices
from .faults import broken, leaving, loading
from .metrics import Metrics
from .room import Room, drafter_bytes, half_of_what_is_free
from .tokens import TokenTexts
from .worker import Worker

_logger = logging.getLogger("outrider.serve")
_PATIENCE = 5.0  # seconds for the round under way, when everything else has ended
State = Literal["loading", "ready", "draining", "failed"]
Load = Callable[[], Sequence[Outrider]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows.

    Attributes:
        max_batch: rows under way at once.
        max_queue: rows that wait beyond those.
        max_tokens: that one answer may have.
        memory: bytes for keys and values of rows under way; None takes half of what is free once the model is there.
        max_body: bytes of a request.
        drain_seconds: how long requests may take to end once the server has been asked to.
        keep_alive_seconds: after which a stream without text gets a comment, so that nobody between hangs up.

    Raises:
        BadOption: a value out of range.
    """

    max_batch: int = 8
    max_queue: int = 64
    max_tokens: int = 2048
    memory: int | None = None
    max_body: int = 4 << 20
    drain_seconds: float = 30.0
    keep_alive_seconds: float = 15.0

    def __post_init__(self) -> None:
        least = {"max_batch": 1, "max_queue": 0, "max_tokens": 1, "max_body": 1, "drain_seconds": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BadOption(f"{name} is {getattr(self, name)}: it has to be {low} or more.")
        if self.memory is not None and self.memory < 1:
            raise BadOption(f"memory is {self.memory}: it has to be some bytes.")
        if self.keep_alive_seconds <= 0:
            raise BadOption(f"keep_alive_seconds is {self.keep_alive_seconds}: it has to be above 0.")


@dataclass(frozen=True, slots=True)
class Model:
    """What there is once loading is done.

    Attributes:
        llm: the target with its usual drafter.
        choices: what requests may choose from.
        worker: serves them.
        tokens: what tokens look like.
        tokenizer: for prompts, in one thread at a time; the worker's own is another copy.
        grammars: for JSON schemas; asked for in that thread, and made when it is first.
    """

    llm: Outrider
    choices: Choices
    worker: Worker
    tokens: TokenTexts
    tokenizer: Any
    grammars: Callable[[], Grammars]


class Service:
    """One model, served.

    Args:
        load: gives the target with each drafter that may be asked for, the usual one first; called once.
        name: of the model, as clients say it.
        limits: see `Limits`.
        report: tell acceptance and timings in every answer, asked or not.
        ready: called once requests are served, with the usual parts.

    Attributes:
        metrics: the server's figures.
        encoding: one thread, in which prompts are read.
        error: why loading or serving failed, or None.
        created: when the service was made, in seconds since 1970.
    """

    def __init__(
        self,
        load: Load,
        name: str,
        limits: Limits | None = None,
        *,
        report: bool = False,
        ready: Callable[[Outrider], None] = lambda llm: None,
    ) -> None:
        self._load, self.name, self.limits, self.report = load, name, limits or Limits(), report
        self._ready = ready
        self.metrics = Metrics()
        self.encoding = ThreadPoolExecutor(1, thread_name_prefix="outrider-encode")
        self.error: Exception | None = None
        self.created = int(time())
        self._state: State = "loading"
        self._loaded = threading.Event()
        self._deadline, self._patience = 0.0, _PATIENCE
        self._model: Model | None = None
        self._thread = threading.Thread(target=self._work, name="outrider-worker", daemon=True)

    @property
    def state(self) -> State:
        """Where in its life the service is."""
        if self._state == "ready" and not self._thread.is_alive():
            return "failed"
        return self._state

    @property
    def model(self) -> Model:
        """What requests are served with.

        Raises:
            Fault: it is not there yet, or the server takes no more requests.
        """
        state = self.state
        if state == "draining":
            raise leaving()
        if self._model is None or state != "ready":
            raise broken() if state == "failed" else loading()
        return self._model

    def start(self) -> None:
        """Load, then serve, in a thread of its own; once is enough."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self, seconds: float | None = None) -> Model:
        """The model, once it is there.

        Raises:
            Exception: what went wrong in loading it.
            TimeoutError: it takes longer.
        """
        if not self._loaded.wait(seconds):
            raise TimeoutError("The model is still being loaded.")
        if self.error is not None:
            raise self.error
        assert self._model is not None
        return self._model

    def drain(self) -> None:
        """Take no more requests; those that are here may end within the limit. See `drained`."""
        self._state = "draining"
        self._deadline = monotonic() + self.limits.drain_seconds
        if self._model is not None:
            self._model.worker.close()

    @property
    def drained(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._model is None or self._model.worker.idle or monotonic() > self._deadline

    def end(self, *, at_once: bool = False) -> None:
        """End every request after the round under way, and the thread; does not wait for that, and with `at_once`
        `stop` will not either."""
        self._state = "draining"
        if at_once:
            self._patience = 0.0
        if self._model is not None:
            self._model.worker.stop()

    def stop(self) -> None:
        """`end`, and wait for it a few seconds."""
        self.end()
        self.encoding.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join(self._patience)

    def _work(self) -> None:
        try:
            model = self._prepare(self._load())
        except Exception as error:
            self.error, self._state = error, "failed"
            if not isinstance(error, UsageError):
                _logger.error("loading failed:\n%s", "".join(traceback.format_exception(error)))
            self._loaded.set()
            return
        self._model = model
        if self._state == "loading":
            self._state = "ready"
            self._ready(model.llm)
        else:  # asked to end while it was loading
            model.worker.stop()
        self._loaded.set()
        try:
            model.worker.serve()
        except Exception as error:  # a fault of ours, outside of any request
            self.error = error
            _logger.error(
                "serving failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            )

    def _prepare(self, llms: Sequence[Outrider]) -> Model:
        llm = llms[0]
        if llm.tokenizer is None:
            raise BadOption("A server needs the model's tokenizer: pass tokenizer= to load.")
        memory = half_of_what_is_free(llm.target.device) if self.limits.memory is None else self.limits.memory
        room, metrics = Room(memory, llm.target), self.metrics
        smallest = [(room.slots(1), room.per_slot(drafter_bytes(llm.drafter, llm.target)))]
        if not room.fits(smallest):
            least = room.needed(smallest)
            raise BadOption(f"memory is {memory} bytes and the smallest request needs {least}: allow more.")
        worker = Worker(llm.engine(), room, self.limits.max_batch, self.limits.max_queue, metrics)
        choices = Choices(llms)
        about = {**llm.configuration, "target": self.name, "drafter": choices.usual}
        metrics.info({name: value for name, value in about.items() if name != "note"})
        metrics.gauge("num_requests_running", "Rows under way.", lambda: worker.running)
        metrics.gauge("num_requests_waiting", "Rows in the queue.", lambda: worker.waiting)
        metrics.gauge("kv_cache_bytes", "Bytes of keys and values of rows under way.", lambda: worker.cache_bytes)
        metrics.gauge("kv_cache_budget_bytes", "Bytes that they may take at most.", lambda: memory)
        tokenizer, target = copy.deepcopy(llm.tokenizer), llm.target
        grammars = lru_cache(lambda: Grammars(tokenizer, target.vocabulary, target.eos))
        return Model(llm, choices, worker, TokenTexts(llm.tokenizer), tokenizer, grammars)
