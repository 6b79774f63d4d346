"""Training in processes of their own: one that is killed, and two that share the work. Slow, for each loads torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import learning
import pytest
from loaded import read_model

pytestmark = pytest.mark.slow
OPTIONS = ["--draft-vocab", "60", "--batch-tokens", "64", "--evaluate-every", "20", "--checkpoint-every", "7"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and answers."""
    folder = tmp_path_factory.mktemp("tiny")
    learning.tiny(folder / "target")
    learning.answers(read_model(folder / "target"), folder / "data", 16, 16)
    return folder


def command(tiny: Path, out: Path, steps: int, *launcher: str) -> list[str]:
    """The command line of a run."""
    where = ["--target", str(tiny / "target"), "--data", str(tiny / "data"), "--out", str(out)]
    start = [sys.executable, "-m", *(launcher or ("outrider",))]
    return [
        *start,
        "train",
        "eagle3",
        *where,
        *OPTIONS,
        "--steps",
        str(steps),
        "--dtype",
        "float32",
        "--offline",
        "--json",
    ]


def test_a_killed_run_equals_another(tiny: Path, tmp_path: Path) -> None:
    """Killed without warning between two checkpoints, and taken up again."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(tiny, whole, 60), check=True, capture_output=True)
    state = tmp_path / "killed.training" / "state.json"
    with subprocess.Popen(command(tiny, killed, 60), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert json.loads(state.read_text())["progress"]["step"] < 60
    subprocess.run(command(tiny, killed, 60), check=True, capture_output=True)
    for name in ("state.safetensors", "state.json"):
        ours, theirs = ((tmp_path / f"{run}.training" / name).read_bytes() for run in ("whole", "killed"))
        assert ours == theirs
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()


def test_two_processes_share_the_work(tiny: Path, tmp_path: Path) -> None:
    """One document, twice the tokens of a run alone, one drafter."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(command(tiny, tmp_path / "alone", 20), check=True, capture_output=True)
    launcher = ("torch.distributed.run", "--nproc_per_node", "2", "-m", "outrider")
    both = subprocess.run(
        command(tiny, tmp_path / "both", 20, *launcher), check=True, capture_output=True, env=environment
    )
    ours, theirs = (json.loads(run.stdout) for run in (both, alone))
    assert ours["steps"] == theirs["steps"] == 20
    assert ours["tokens"] > 1.7 * theirs["tokens"]
    assert (tmp_path / "both" / "model.safetensors").exists()
