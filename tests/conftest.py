"""What all tests share: threads, determinism, and the models that are read once per session."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before Transformers is imported: tests never ask a hub
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: waiting threads leave shared cores

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import Make, makes, read_model, read_tokenizer

from outrider import cli
from outrider.loading import demo_folder as packaged_demo_folder
from outrider.measure.reference import transformers_ids
from outrider.target import TransformersTarget

_MOST = 24  # tokens that any test asks Transformers' generate for


@pytest.fixture(scope="session", autouse=True)
def _one_thread_per_core() -> None:
    """As many threads as this process has cores: more of them wait for each other."""
    affinity = getattr(os, "sched_getaffinity", None)
    torch.set_num_threads(len(affinity(0)) if affinity else os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    """The same random tensors in every run, and deterministic kernels; memory that nobody wrote reads as NaN."""
    torch.manual_seed(0)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The packaged model, converted once into OUTRIDER_CACHE or the user's cache."""
    return packaged_demo_folder()


@pytest.fixture(scope="session")
def demo_model(demo_folder: Path) -> Any:
    """The demo model in float32; every test shares these weights."""
    return read_model(demo_folder)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_folder: Path) -> Any:
    """The demo model's tokenizer."""
    return read_tokenizer(demo_folder)


@pytest.fixture(scope="session")
def demo_writes(demo_model: Any) -> Callable[[Sequence[int], int], list[int]]:
    """`demo_writes(ids, n)`: what Transformers' own `generate` writes greedily with the demo model, at most n tokens.
    Asked once for each prompt, for as many as any test wants, since fewer are the beginning of more."""
    known: dict[tuple[int, ...], list[int]] = {}

    def look(ids: Sequence[int], count: int) -> list[int]:
        assert count <= _MOST
        if tuple(ids) not in known:
            known[tuple(ids)] = transformers_ids(demo_model, ids, _MOST)
        return known[tuple(ids)][:count]

    return look


@pytest.fixture(scope="session")
def demo_target(demo_model: Any) -> TransformersTarget:
    """The demo model ready to score trees, on shared weights."""
    return TransformersTarget(demo_model)


@pytest.fixture(scope="session")
def demo(demo_model: Any, demo_tokenizer: Any) -> Make:
    """`demo(drafter, k)`: an `Outrider` on the demo model as it is loaded by default; see `makes`."""
    return makes(demo_model, demo_tokenizer)


@pytest.fixture(scope="session")
def demo_modules(demo_model: Any, demo_tokenizer: Any) -> Make:
    """The same on Transformers' own modules."""
    return makes(demo_model, demo_tokenizer, fast=False)


@pytest.fixture(scope="session")
def models_folder() -> Path:
    """The folder of the larger models, for slow tests. Those are asked for explicitly, so its lack is a failure."""
    named = os.environ.get("OUTRIDER_MODELS")
    if not named:
        pytest.fail("Slow tests need the larger models: set OUTRIDER_MODELS to the folder that get_models.py filled.")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"OUTRIDER_MODELS names {folder}, which is no folder: run get_models.py first.")
    return folder


@pytest.fixture(name="outrider")
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command; gives exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run
