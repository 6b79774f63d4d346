"""`outrider serve`: load in the background, serve until told to end."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..api import Outrider
from ..errors import BadOption
from ..serve.choices import label
from ..serve.guard import read_keys
from ..serve.room import parse_size
from ..serve.server import Server, rules_for
from ..serve.service import Limits, Service
from .settings import Settings
from .showing import versions

_LARGEST_FILE = 1 << 20  # bytes of keys


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to serve.

    Attributes:
        host, port: where.
        name: of the model, as clients say it; None takes it from the target.
        drafters: further ones, of which requests may choose.
        api_key_file: keys, one a line, one of which clients have to show.
        unprotected: other machines may come in without a key.
        report: acceptance and timings in every answer.
        log_level: of the log on standard error.
    """

    host: str
    port: int
    name: str | None
    drafters: tuple[str, ...]
    api_key_file: Path | None
    unprotected: bool
    report: bool
    log_level: str

    def keys(self) -> tuple[str, ...]:
        """The keys.

        Raises:
            BadOption: the file cannot be read or holds none.
        """
        if self.api_key_file is None:
            return ()
        try:
            if self.api_key_file.stat().st_size > _LARGEST_FILE:
                raise BadOption(f"{self.api_key_file} is larger than a file of keys: name another one.")
            keys = read_keys(self.api_key_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(
                f"The keys in {self.api_key_file} cannot be read: name a file with a key a line."
            ) from error
        if not keys:
            raise BadOption(f"{self.api_key_file} holds no key: write one a line, or leave the option out.")
        return keys


def limits(
    *,
    max_batch: int,
    max_queue: int,
    max_tokens: int,
    memory: str | None,
    max_body: str,
    drain: float,
    keep_alive: float,
) -> Limits:
    """The limits, as the options of the command line say them.

    Raises:
        BadOption: one of them cannot be used.
    """
    bytes_ = None if memory is None else parse_size(memory, "--memory")
    return Limits(max_batch, max_queue, max_tokens, bytes_, parse_size(max_body, "--max-body"), drain, keep_alive)


def run(settings: Settings, wanted: Wanted, allowed: Limits, *, show: bool) -> None:
    """Serve until a signal. The address is told at once, and again once the model is there; with `show` to a person on
    standard error, otherwise as one JSON document on standard output.

    Raises:
        UsageError: what cannot work; of the address and the keys before anything is loaded.
    """
    _log(wanted.log_level)
    rules = rules_for(wanted.host, wanted.keys(), allowed, unprotected=wanted.unprotected)
    name = wanted.name or label(settings.target)
    told = _Told(show)

    def load() -> Sequence[Outrider]:
        first = settings.load()
        return [first, *(first.using(drafter=spec) for spec in wanted.drafters)]

    def ready(llm: Outrider) -> None:
        told.ready(server.url, name, llm)

    service = Service(load, name, allowed, report=wanted.report, ready=ready)
    server = Server(service, rules, wanted.host, wanted.port)
    told.listening(server.url)
    server.run()
    if service.error is not None:
        raise service.error


class _Told:
    """What whoever started the server learns of it."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._errors = Console(stderr=True, highlight=False)

    def listening(self, url: str) -> None:
        """Requests are answered, if only with 503."""
        if self._show:
            self._errors.print(f"{url} (loading; Ctrl-C ends)")

    def ready(self, url: str, name: str, llm: Outrider) -> None:
        """The model is there."""
        about: dict[str, Any] = {"url": url, "name": name, "configuration": llm.configuration, "versions": versions()}
        if not self._show:
            print(json.dumps(about, ensure_ascii=False), flush=True)
            return
        how = f"drafter {llm.drafter.spec}, verifier {llm.verifier.spec}, policy {llm.configuration['policy']}"
        self._errors.print(f"{name} is ready: {how}")
        self._errors.print(f"  page     {url}/\n  OpenAI   {url}/v1\n  metrics  {url}/metrics", style="dim")
        if llm.drafter.note:
            self._errors.print(llm.drafter.note, style="dim")


def _log(level: str) -> None:
    """A log on standard error: a line per request, with its id, address, status and time, and none of its text."""
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise BadOption(f"There is no log level {level!r}: choose debug, info, warning or error.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("outrider")
    logger.setLevel(names[level.upper()])
    logger.addHandler(handler)
