"""Training in processes of their own: one that is killed, and two that share the work. Slow, for each loads torch."""

from __future__ import annotations

import json
import os
import shutil
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


LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--nproc_per_node", "2"),
    "accelerate": (  # its own name for it: without MPI it starts several processes on CPUs so, and not with --cpu
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    ),
}


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_two_processes_share_the_work(launcher: str, tiny: Path, tmp_path: Path) -> None:
    """One document, twice the tokens of a run alone, one drafter; each computes half of the states that are stored."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(command(tiny, tmp_path / "alone", 20), check=True, capture_output=True)
    shutil.rmtree(tiny / "data" / "features", ignore_errors=True)
    both = subprocess.run(
        [*command(tiny, tmp_path / "both", 20, *LAUNCHERS[launcher], "-m", "outrider"), "--features", "stored"],
        check=True,
        capture_output=True,
        env=environment,
    )
    ours, theirs = (json.loads(run.stdout) for run in (both, alone))
    assert ours["steps"] == theirs["steps"] == 20
    assert ours["tokens"] > 1.7 * theirs["tokens"]
    assert (tmp_path / "both" / "model.safetensors").exists()
    assert len(list((tiny / "data" / "features").glob("*.safetensors"))) == 2


@pytest.mark.parametrize("method", ["medusa2", "layerskip"])
def test_two_processes_train_a_target(method: str, tiny: Path, tmp_path: Path) -> None:
    """Parameters that take no part in a step (the target's at first, layers that are left out) stop nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = command(tiny, tmp_path / "out", 6, *LAUNCHERS["torchrun"], "-m", "outrider")
    words[words.index("eagle3")] = method
    if method == "layerskip":
        place = words.index("--draft-vocab")
        del words[place : place + 2]
    (tmp_path / "train.toml").write_text("dropout = 0.9\n" if method == "layerskip" else "heads_first = 0.5\n")
    done = subprocess.run(
        [*words, "--config", str(tmp_path / "train.toml")], check=True, capture_output=True, env=environment
    )
    assert json.loads(done.stdout)["steps"] == 6
