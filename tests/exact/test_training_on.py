"""Training that goes on from a drafter that was trained before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import learning
import pytest
from loaded import read_model
from safetensors.torch import load_file

from outrider import checkpoints
from outrider.commands.train import run, wanted
from outrider.drafters import TRAINED
from outrider.errors import BadOption


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A tiny target, answers to train on first, and others for later."""
    folder = tmp_path_factory.mktemp("tiny")
    learning.tiny(folder / "target")
    model = read_model(folder / "target")
    learning.answers(model, folder / "first", 8, 12)
    learning.answers(model, folder / "more", 12, 20)
    return folder / "target", folder / "first", folder / "more"


def train(method: str, target: Path, data: Path, out: Path, **given: Any) -> dict[str, Any]:
    """A short run."""
    usual = {"batch_tokens": 64, "steps": 3, "evaluate_every": 3, "measured_tokens": 12}
    return run(learning.settings(target), wanted(method, [data], out, None, {**usual, **given}), dry=False, show=False)


@pytest.mark.parametrize("method", sorted(TRAINED))
def test_it_begins_where_the_other_ended(method: str, tiny: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """With its draft vocabulary and its acceptance, which is measured first and kept unless training improves it."""
    target, first, more = tiny
    train(method, target, first, tmp_path / "first", draft_vocab=40, evaluate_every=100)
    before = load_file(tmp_path / "first" / "model.safetensors")
    small = {"lr": 1e-9, "steps": 1, "evaluate_every": 100}
    document = train(method, target, more, tmp_path / "more", start_from=str(tmp_path / "first"), **small)
    begin, end = document["curve"]
    assert (begin["step"], begin["loss"], end["step"]) == (0, None, 1)
    assert begin["survival"] == pytest.approx(end["survival"])
    assert document["best_step"] == 0
    after = load_file(tmp_path / "more" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    train(method, target, more, tmp_path / "far", start_from=str(tmp_path / "first"), lr=1e-2, evaluate_every=1)
    known, earlier = training_of(tmp_path / "far"), training_of(tmp_path / "first")
    assert known["options"]["start_from"] == "first"
    assert known["went_on_from"] == {name: earlier.get(name) for name in known["went_on_from"]}
    assert known["went_on_from"]["tokens_learnt"] > 0 and known["went_on_from"]["data"]
    card = (tmp_path / "far" / "README.md").read_text()
    assert card.count("## What it went on from") == 1 and str(tmp_path) not in card


@pytest.mark.parametrize(("layers", "heads"), [(2, 4), (1, 3), (2, 6)])
def test_medusa_may_grow(layers: int, heads: int, tiny: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """What is added begins as the identity: heads that were there draft as before, those left out do not."""
    target, first, more = tiny
    train("medusa", target, first, tmp_path / "first", draft_vocab=40, lr=1e-2, steps=6)
    before = load_file(tmp_path / "first" / "model.safetensors")
    small = {"lr": 1e-9, "steps": 1, "layers": layers, "steps_ahead": heads}
    train("medusa", target, more, tmp_path / "more", start_from=str(tmp_path / "first"), **small)
    after = load_file(tmp_path / "more" / "model.safetensors")
    blocks = {name for name in after if name.startswith("blocks.") and name.endswith(".weight")}
    assert len(blocks) == layers * heads
    for name in blocks:
        assert after[name].equal(before[name]) if name in before else not after[name].any()
    assert sum(name in before and bool(before[name].any()) for name in blocks) == min(heads, 4)


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_another_draft_vocabulary(method: str, tiny: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Where the output layer is the target's, the head stays as it is and drafts the new answers' commonest tokens."""
    target, first, more = tiny
    train(method, target, first, tmp_path / "first", draft_vocab=40, lr=1e-2, steps=6)
    small = {"lr": 1e-9, "steps": 1, "draft_vocab": 60, "start_from": str(tmp_path / "first")}
    train(method, target, more, tmp_path / "more", **small)
    before, after = (checkpoints.read(tmp_path / name, method) for name in ("first", "more"))
    assert len(after.ids) == after.manifest.draft_vocabulary == 60
    assert all(tensor.allclose(after.tensors[name], atol=1e-6) for name, tensor in before.tensors.items())
    train(method, target, more, tmp_path / "anew", **{**small, "start_from": ""})
    assert checkpoints.read(tmp_path / "anew", method).ids.equal(after.ids)
    with pytest.raises(BadOption, match="vocabulary"):
        train(method, target, more, tmp_path / "more", start_from=str(tmp_path / "first"), lr=1e-9, steps=1)


def training_of(folder: Path) -> dict[str, Any]:
    """What a drafter says of its training."""
    training: dict[str, Any] = json.loads((folder / "config.json").read_text())["training"]
    return training


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("eagle3", {"fc_norm": False}, "another fc_norm"),
        ("eagle", {}, "holds a drafter of the kind 'eagle3': write eagle3:"),
        ("eagle3", {"draft_vocab": 50}, "draft_vocab is that of the drafter to go on from"),
        ("eagle3", {"start": "layers"}, "start is that of the drafter to go on from"),
        ("exit", {}, "Training exit cannot go on from a drafter: leave start_from out"),
    ],
)
def test_what_does_not_fit(
    method: str, given: dict[str, Any], says: str, tiny: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Is refused in one sentence, before any training."""
    target, first, more = tiny
    train("eagle3", target, first, tmp_path / "first", draft_vocab=40, steps=1)
    with pytest.raises(BadOption, match=says) as caught:
        train(method, target, more, tmp_path / "more", start_from=str(tmp_path / "first"), **given)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert not (tmp_path / "more").exists()
