"""Training on whole texts: the prompts' tokens teach, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import learning
import pytest

from outrider.commands.train import run, wanted
from outrider.errors import BadOption
from outrider.train.answers import read_answers
from outrider.train.corpus import usable, whole


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and its answers."""
    return learning.answered(tmp_path_factory.mktemp("tiny"), 8, 12)


def train(tiny: tuple[Path, Path], out: Path, **given: Any) -> dict[str, Any]:
    """An epoch."""
    usual = {"batch_tokens": 64, "epochs": 1.0, "evaluate_every": 100, "measured_tokens": 8, "draft_vocab": 40}
    return run(
        learning.settings(tiny[0]), wanted("eagle3", [tiny[1]], out, None, {**usual, **given}), dry=False, show=False
    )


def test_whole_texts_are_the_same_texts(tiny: tuple[Path, Path]) -> None:
    answers = usable(read_answers(tiny[1], 100), 30)
    for answer, text in zip(answers, whole(answers), strict=True):
        assert text.ids == answer.ids and len(text.prompt) == 1
        assert (text.number, text.held_out) == (answer.number, answer.held_out)


@pytest.mark.parametrize("features", ["online", "stored"])
def test_prompts_count(features: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Every token of a text is learnt but its first; cut texts too, and from stored states."""
    answers = usable(read_answers(tiny[1], 100), 18)
    for learn, tokens in (("answers", [len(a.answer) for a in answers]), ("texts", [len(a.ids) - 1 for a in answers])):
        document = train(tiny, tmp_path / learn, learn=learn, features=features, longest=18)
        assert document["tokens"] == sum(tokens)
    assert sum(len(a.answer) for a in answers) < sum(len(a.ids) - 1 for a in answers)


def test_there_is_nothing_else_to_learn(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="learn is 'prompts': choose answers or texts"):
        train(tiny, tmp_path / "out", learn="prompts")
