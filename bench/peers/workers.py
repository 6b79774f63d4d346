"""A worker as its parent sees it: a process that loads one model and answers requests. Knows nothing of which systems
there are and what is measured."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

LOAD_SECONDS = 900.0  # vLLM compiles the model when it is loaded for the first time
ANSWER_SECONDS = 900.0


class Failed(Exception):
    """A worker could not do what it was asked; the message says why in one sentence."""


class Worker:
    """A running worker. Use it as a context: leaving it ends the process and all that it started.

    Attributes:
        details: what the worker says it has loaded.
        alive: it can be asked again.
    """

    def __init__(
        self, python: Path, script: Path, options: Mapping[str, Any], settings: Mapping[str, str], log: Path
    ) -> None:
        """Start it and wait until its model is loaded.

        Raises:
            Failed: it did not load.
        """
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [str(python), str(script), json.dumps(dict(options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **settings},
                start_new_session=True,
            )
        try:
            self.details: dict[str, Any] = self._answer(LOAD_SECONDS)["ready"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """See the class."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request, one answer.

        Raises:
            Failed: it answered with an error, or not at all.
        """
        try:
            _pipe(self._process.stdin).write(json.dumps(dict(request)).encode() + b"\n")
            _pipe(self._process.stdin).flush()
        except BrokenPipeError as error:
            raise Failed(self._last_words()) from error
        return self._answer(ANSWER_SECONDS)

    def _answer(self, patience: float) -> dict[str, Any]:
        stdout = _pipe(self._process.stdout)
        if not select.select([stdout], [], [], patience)[0]:
            self.close()
            raise Failed(f"it did not answer within {patience:.0f} s")
        line = stdout.readline()
        if not line:
            self._process.wait()
            raise Failed(self._last_words())
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Failed(" ".join(said["error"].split())[:600])
        return said

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else "it said nothing"
        return f"the process ended with status {self._process.returncode}: {said}"[:600]

    def close(self) -> None:
        """End the process politely, and whatever is left of its group by force."""
        _pipe(self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own group: start_new_session
        self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: Any) -> BinaryIO:
    return pipe  # Popen's pipes are there: both were asked for
