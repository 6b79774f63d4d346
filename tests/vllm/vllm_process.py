"""vLLM in its own environment, asked by the tests of this folder: one engine at a time, for they are large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench" / "peers"))
from environments import ENVIRONMENTS
from systems import vllm_settings

ROOT = Path(__file__).parents[2]
SECONDS = 1800  # other work may hold the machine


def environment() -> Path:
    """vLLM's interpreter. The tests are asked for explicitly, so its lack is a failure."""
    python = ENVIRONMENTS["vllm"].python
    if not python.exists():
        pytest.fail(f"There is no {python}: run make vllm-env, or set OUTRIDER_VLLM_ENV to such an environment.")
    return python


def settings() -> dict[str, str]:
    """Environment variables for it: on all cores, on the host alone, with our package to be found."""
    cores = sorted(os.sched_getaffinity(0))
    given = {**dict(vllm_settings(cores)), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    return {**os.environ, **given}


def answers(model: Path, prompts: list[list[int]], tokens: int, **engine: Any) -> dict[str, Any]:
    """What `run_vllm.py` says of these prompts under these options of `LLM`."""
    job = {"model": str(model), "prompts": prompts, "tokens": tokens, "engine": engine}
    script = Path(__file__).parent / "run_vllm.py"
    command = [str(environment()), str(script), json.dumps(job)]
    done = subprocess.run(command, env=settings(), capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        pytest.fail("vLLM failed:\n" + "\n".join(done.stderr.splitlines()[-300:]))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
