"""What is written is what is read, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import Config, check_new, read, write
from outrider.errors import BadOption

FULL = Config(
    target='C:\\models\\"é"',
    drafter="suffix:factor=2,longest=32",
    verifier="match",
    policy="fixed:4,8",
    dtype="bfloat16",
    device="cpu",
    offline=True,
    fast=False,
    quantize="int8",
    device_map="auto",
    draft_device="cuda:1",
    compile=False,
    prefill_chunk=256,
    batch=8,
    measured={"speedup": 1.5, "survival": [0.5, 0.25], "machine": {"cpu": "EPYC\x7f", "cores": 2}},
)


def test_there_and_back(tmp_path: Path) -> None:
    """Every key, with characters that TOML has to escape; the comment is no content."""
    path = tmp_path / "outrider.toml"
    write(FULL, path, "one\ntwo")
    assert path.read_text().startswith("# one\n# two\n")
    assert read(path) == FULL
    assert all(value is not None for _, value in FULL), "every key is tried"


def test_what_is_not_set_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "outrider.toml"
    write(Config(drafter="none"), path, "")
    assert read(path).given() == {"drafter": "none"}
    assert "target" not in path.read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "outrider.toml"
    check_new(path)
    write(Config(), path, "mine")
    with pytest.raises(BadOption, match="never overwritten"):
        check_new(path)
    with pytest.raises(FileExistsError):
        write(FULL, path, "other")
    assert "mine" in path.read_text()
    with pytest.raises(BadOption, match="no folder"):
        check_new(tmp_path / "nowhere" / "outrider.toml")
