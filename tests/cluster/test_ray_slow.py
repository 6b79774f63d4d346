"""`--ray` on a cluster of two workers on this machine: the same answers as one process, and going on after a break."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="needs outrider[ray]")

START = 120.0  # seconds


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head and one more node, each with one processor; they end with the tests."""
    port, files = free_port(), tmp_path_factory.mktemp("r")
    address = f"127.0.0.1:{port}"
    ray = [
        str(Path(sys.executable).parent / "ray"),
        "start",
        "--block",
        "--num-cpus=1",
        "--object-store-memory=100000000",
    ]
    head = [*ray, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir=/tmp/ray-{os.getpid()}"]
    settings = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    nodes = []
    try:
        for name, command in (("head", head), ("second", [*ray, f"--address={address}"])):
            with (files / name).open("w") as log:
                nodes.append(subprocess.Popen(command, env=settings, stdout=log, stderr=subprocess.STDOUT))
            wait_for(address, len(nodes))
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            node.wait(timeout=60)


def wait_for(address: str, nodes: int) -> None:
    """Until so many machines are there."""
    code = (
        f"import ray; ray.init({address!r}, logging_level='ERROR', log_to_driver=False); "
        f"print(sum(node['Alive'] for node in ray.nodes()))"
    )
    end = time.monotonic() + START
    while time.monotonic() < end:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip().endswith(str(nodes)):
            return
        time.sleep(1)
    pytest.fail(f"The cluster did not start: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """A tiny target."""
    return tiny.save(tmp_path_factory.mktemp("target"), demo_tokenizer)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine of them."""
    file = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    words = ["one two", "red blue red", "a b c a b c", "sun", "tree leaf", "x y x y x", "go", "up down up", "north"]
    file.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in words))
    return file


def command(*arguments: str) -> Any:
    """What an `outrider` command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "outrider", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The answers of a folder by their numbers."""
    found = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda answer: int(answer["number"]))


def test_data(cluster: str, target: Path, prompts: Path, tmp_path: Path) -> None:
    """Nine prompts and two samples: on the cluster, alone, and on the cluster after a break."""
    usual = ["data", "--target", str(target), "--prompts", str(prompts), "--samples", "2", "--dtype", "float32"]
    usual += ["--max-new-tokens", "10", "--batch", "2", "--offline"]
    command(*usual, "--out", str(tmp_path / "alone"))
    whole = command(*usual, "--out", str(tmp_path / "spread"), "--ray", cluster)
    assert whole["answers"] == whole["written_now"] == 18
    assert lines(tmp_path / "spread") == lines(tmp_path / "alone")
    answers = tmp_path / "spread" / "answers.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[:7]) + '{"number": 3')
    again = command(*usual, "--out", str(tmp_path / "spread"), "--ray", cluster)
    assert again["written_now"] == 11
    assert lines(tmp_path / "spread") == lines(tmp_path / "alone")


def samples(folder: Path) -> list[tuple[Any, ...]]:
    """What does not depend on the machine's speed of a bench's samples."""
    found = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    figures = [
        (one["case"], one["prompt"], one["repeat"], one["group"], one["ids"], [r["accepted"] for r in one["rounds"]])
        for one in found
    ]
    return sorted(figures)


def test_bench(cluster: str, target: Path, prompts: Path, tmp_path: Path) -> None:
    """The same answers and rounds under every case, Transformers' own among them, and the machines that gave them."""
    usual = ["bench", "--target", str(target), "--prompts", str(prompts), "--drafters", "suffix", "--k", "3"]
    usual += ["--batch", "1,2", "--repeats", "1", "--max-new-tokens", "10", "--dtype", "float32", "--offline"]
    usual += ["--baseline", "transformers"]
    alone = command(*usual, "--out", str(tmp_path / "alone"))
    spread = command(*usual, "--out", str(tmp_path / "spread"), "--ray", cluster)
    assert samples(tmp_path / "spread") == samples(tmp_path / "alone")
    assert len(spread["manifest"]["machines"]) == 2
    for mine, theirs in zip(spread["summaries"], alone["summaries"], strict=True):
        same = ("samples", "drafted", "accepted", "tokens", "acceptance_length", "tokens_per_pass", "identical")
        assert {name: mine[name] for name in same} == {name: theirs[name] for name in same}
    kept = tmp_path / "spread" / "samples.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:-1]))
    command(*usual, "--out", str(tmp_path / "spread"), "--ray", cluster)
    assert samples(tmp_path / "spread") == samples(tmp_path / "alone")


def test_what_cannot_work_is_refused(cluster: str, target: Path, prompts: Path, tmp_path: Path) -> None:
    """In one sentence, and before any folder is made."""
    own, out = ["--target", str(target), "--offline"], tmp_path / "out"
    for command_, options, message in (
        ("bench", [*own, "--ray", f"127.0.0.1:{free_port()}"], "no Ray cluster"),
        ("data", [*own, "--ray", f"127.0.0.1:{free_port()}"], "no Ray cluster"),
        ("bench", [*own, "--ray", cluster, "--keep-history"], "leave --ray out"),
        ("bench", ["--ray", cluster, "--endpoint", "http://localhost:1"], "--ray would change nothing"),
        ("data", [*own, "--ray", cluster, "--features", "auto"], "leave out --ray or --features"),
    ):
        words = [sys.executable, "-m", "outrider", command_, "--prompts", str(prompts), "--out", str(out), *options]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr[-500:]
        assert message in " ".join(done.stderr.split())
        assert not out.exists()
