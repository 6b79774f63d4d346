"""`outrider curves`: runs side by side, the picture, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.train.saving import Progress, save


def run(folder: Path, method: str, lengths: dict[int, float | None], **about: Any) -> Path:
    """What a training run leaves: measured after so many steps of ten tokens."""
    curve = [
        {"step": step, "tokens": 10 * step, "loss": 5.0 if step else None, "acceptance_length": length,
         "survival": [] if length is None else [length - 1]}
        for step, length in lengths.items()
    ]  # fmt: skip
    best = max(
        (point for point in curve if point["acceptance_length"]), key=lambda p: p["acceptance_length"], default=None
    )
    last = max(lengths)
    progress = Progress(last, 10 * last, best and best["acceptance_length"], best and best["step"], curve)
    known = {"method": method, "target": "aa", "answers": 9, "longest": 100, **about}
    save(folder.with_name(folder.name + ".training"), {"weight.a": torch.zeros(1)}, progress, known)
    return folder


def test_runs_side_by_side(outrider, tmp_path: Path) -> None:
    one = run(tmp_path / "one", "eagle3", {0: 1.0, 100: 1.4, 200: 1.3})
    two = run(tmp_path / "two", "medusa", {100: 1.2})
    plot = tmp_path / "curves.svg"
    code, out, _ = outrider("curves", str(one), str(two), "--json", "--plot", str(plot))
    document = json.loads(out)
    assert code == 0 and document["differing"] == []
    names = ("out", "method", "steps", "tokens", "acceptance_length", "best_step")
    assert [tuple(found[name] for name in names) for found in document["runs"]] == [
        (str(one), "eagle3", 200, 2000, 1.4, 100),
        (str(two), "medusa", 100, 1000, 1.2, 100),
    ]
    assert [point["acceptance_length"] for point in document["runs"][0]["curve"]] == [1.0, 1.4, 1.3]
    assert "<svg" in plot.read_text()


def test_the_table_is_for_people(outrider, tmp_path: Path) -> None:
    """It says where runs cannot be compared."""
    one = run(tmp_path / "one", "eagle3", {100: 1.41, 200: 1.52})
    two = run(tmp_path / "two", "medusa", {100: 1.2}, answers=7)
    code, out, _ = outrider("curves", str(one), str(two))
    assert code == 0 and "1.41" in out and "1.52" in out and "2,000" in out
    assert "differ in answers" in out


def broken(folder: Path) -> None:
    """A checkpoint of which half was written."""
    checkpoint = folder.with_name(folder.name + ".training")
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: None, "There is no training run of"),
        (lambda folder: run(folder, "eagle3", {50: None}), "has measured nothing yet, after 50 steps"),
        (broken, "cannot be read"),
    ],
)
def test_refusals(outrider, tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "one")
    code, _, err = outrider("curves", str(tmp_path / "one"))
    assert code == 2 and says in err and "Traceback" not in err


def test_a_plot_that_cannot_be(outrider, tmp_path: Path) -> None:
    one = run(tmp_path / "one", "eagle3", {100: 1.4})
    code, _, err = outrider("curves", str(one), "--plot", "curves.txt")
    assert code == 2 and "no kind of image" in err
