"""`outrider deploy`: the commands that serve a configuration on another engine; shown, or run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from ..deploy import llamacpp, sglang, vllm
from ..deploy.plan import Asked, Plan, Step
from ..errors import BadOption
from .showing import versions

ENGINES: dict[str, Callable[[Asked], Plan]] = {"vllm": vllm.plan, "sglang": sglang.plan, "llamacpp": llamacpp.plan}


def run(engine: str, asked: Asked, *, start: bool, show: bool) -> tuple[dict[str, Any], int]:
    """Plan, show, and start where that is asked for.

    Returns:
        The document that `--json` prints, and the exit code of what ran.

    Raises:
        BadOption: see the engine's plan; a command to be started is not here.
    """
    if engine not in ENGINES:
        raise BadOption(f"There is no engine {engine!r}: choose one of {', '.join(ENGINES)}.")
    if start and asked.machines > 1:
        raise BadOption(
            "--run starts one machine's server, and several are asked for: run each command where it belongs."
        )
    plan = ENGINES[engine](asked)
    if start:
        for step in plan.steps:
            _find(step, engine)
    if show:
        _show(plan)
    document = {
        "engine": engine,
        "steps": [{"where": step.where, "argv": list(step.argv), "line": step.line} for step in plan.steps],
        "speculative_config": plan.speculative_config,
        "notes": list(plan.notes),
        **versions(),
    }
    return document, _start(plan, engine) if start else 0


def _show(plan: Plan) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    where = None
    for step in plan.steps:
        if step.where != where and {one.where for one in plan.steps} != {"this machine"}:
            console.print(f"# on {step.where}", style="dim")
        where = step.where
        console.print(step.line)
    errors = Console(stderr=True, highlight=False, markup=False)
    for note in plan.notes:
        errors.print(note, style="dim")


def _start(plan: Plan, engine: str) -> int:
    """Run the commands in order; the exit code of the first that fails, or of the last. Ctrl-C goes to the server too,
    which ends by itself."""
    for step in plan.steps:
        process = subprocess.Popen(_find(step, engine))
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                continue
        if code:
            return code
    return 0


def _find(step: Step, engine: str) -> list[str]:
    """A command as it is started from here."""
    program, *rest = step.argv
    if program == "outrider":
        return [sys.executable, "-m", "outrider", *rest]
    found = shutil.which(program)
    if found is None:
        raise BadOption(
            f"There is no {program!r} here: install {engine}, or leave --run out and run the command where it is."
        )
    return [found, *rest]
