"""`outrider serve` as people and service managers start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_tiny import until
from typer.main import get_command

from outrider import cli

REFUSED: list[tuple[list[str], str]] = [
    (["--host", "0.0.0.0"], "--api-key-file"),
    (["--host", "0.0.0.0", "--api-key-file", "{folder}/missing"], "cannot be read"),
    (["--host", "0.0.0.0", "--api-key-file", "{folder}/empty"], "holds no key"),
    (["--memory", "plenty"], "--memory"),
    (["--max-body", "-3"], "--max-body"),
    (["--max-batch", "0"], "max_batch is 0"),
    (["--keep-alive", "0"], "keep_alive_seconds"),
    (["--log-level", "loud"], "log level"),
    (["--host", "192.0.2.1", "--unprotected"], "cannot be used"),
]


@pytest.mark.parametrize(("arguments", "word"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    outrider, tmp_path: Path, arguments: list[str], word: str
) -> None:
    """Exit code 2 and one sentence; the target does not even exist."""
    (tmp_path / "empty").write_text("# no key\n")
    given = [argument.format(folder=tmp_path) for argument in arguments]
    code, out, err = outrider("serve", "--target", str(tmp_path / "no-model"), "--port", "0", *given)
    assert (code, out) == (2, "")
    assert word in err and err.count("\n") == 1


def test_a_model_that_is_not_there(outrider, tmp_path: Path) -> None:
    """The server has listened already; it ends all the same, with the sentence and the exit code."""
    code, _, err = outrider("serve", "--target", str(tmp_path / "no-model"), "--port", "0", "--json")
    assert code == 2 and "There is no model" in err


def test_every_option_has_an_environment_variable() -> None:
    """Named after it."""
    command = get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    for option in command.params:
        name = option.name.removesuffix("_").upper()
        assert option.envvar == f"OUTRIDER_{name}" or option.name == "help", option.name


def test_an_environment_variable_counts(outrider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if it were written out."""
    monkeypatch.setenv("OUTRIDER_MAX_BATCH", "0")
    code, _, err = outrider("serve", "--target", str(tmp_path / "no-model"), "--port", "0")
    assert code == 2 and "max_batch is 0" in err


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command in a process of its own, once it is ready; what it printed."""
    command = [sys.executable, "-m", "outrider", "serve", "--target", str(folder), "--drafter", "lookup:3"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTRIDER_DTYPE": "float32"},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


BODY = {"model": "tiny", "prompt": "Hello", "max_tokens": 480, "n": 8, "seed": 1, "stream": True, "ignore_eos": True}


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_signals(tiny_folder: Path, signals: int) -> None:
    """One lets the stream end and exits with 0; a second one ends it at once."""
    with started(tiny_folder) as (process, about), httpx.Client(timeout=60) as http, httpx.Client() as other:
        assert about["name"] == "tiny" and about["configuration"]["dtype"] == "float32"
        with http.stream("POST", f"{about['url']}/v1/completions", json=BODY) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            until(lambda: other.get(f"{about['url']}/health").status_code == 503)
            if signals == 2:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) is not None
                return
            rest = [first, *lines]
        assert answer.status_code == 200, rest
        assert rest[-2] == "data: [DONE]" and len(rest) > 20
        assert process.wait(20) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "POST /v1/completions 200" in log and "Hello" not in log and "Traceback" not in log
