"""The path of the reference text, GPT-2 Medium with DistilGPT2, on tiny models of the same build: the commands that
docs/training.md has for machines with hub access, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import learning
import pytest


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A GPT-2 and an independent smaller one with the same tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    learning.tiny(folder / "medium", "gpt2", n_layer=5, eos_token_id=5)
    learning.tiny(folder / "distil", "gpt2", n_layer=2, eos_token_id=5)
    return folder / "medium", folder / "distil"


@pytest.fixture(scope="module")
def data(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of prompts."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = [" ".join(f"w{(n * 7 + place) % 90 + 6}" for place in range(2 + n % 5)) for n in range(16)]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return file


def test_from_gpt2_to_its_drafters(models: tuple[Path, Path], data: Path, outrider: Any, tmp_path: Path) -> None:
    """Plain, an independent draft, then data, a head and a draft model of its own: the same tokens always."""
    target = ["--target", str(models[0]), "--dtype", "float32", "--offline"]
    answers, few = tmp_path / "data", ["--max-new-tokens", "12", "--json"]
    asked = ["generate", *target, "--prompt", "w7 w8 w9", "--temperature", "0.8", "--seed", "3", *few]

    def tokens(*options: str) -> tuple[list[int], int]:
        code, text, _ = outrider(*asked, *options)
        (output,) = json.loads(text)["outputs"]
        assert code == 0
        return output["token_ids"], output["stats"]["drafted"]

    plain, _ = tokens("--drafter", "none")
    independent, drafted = tokens("--drafter", f"model:{models[1]}", "--policy", "fixed:4")
    assert independent == plain and drafted

    options = ["--prompts", str(data), "--out", str(answers), "--held-out", "0.3", "--features", "auto"]
    code, text, _ = outrider("data", *target, *options, *few)
    assert code == 0 and json.loads(text)["answers"] == 16
    for method in ("eagle3", "draft"):
        out = tmp_path / method
        options = ["--data", str(answers), "--out", str(out), "--steps", "2", "--batch-tokens", "64"]
        code, text, _ = outrider("train", method, *target, *options, "--features", "stored", "--json")
        assert code == 0, method
        use = json.loads(text)["use"]
        assert use["target"] == str(models[0])
        found, drafted = tokens("--drafter", use["drafter"], "--policy", "fixed:3")
        assert found == plain and drafted, method


def test_a_distilled_draft_beats_the_layers_it_began_as(
    models: tuple[Path, Path], data: Path, outrider: Any, tmp_path: Path
) -> None:
    """Acceptance rises with training, on the very prompts."""
    target = ["--target", str(models[0]), "--dtype", "float32", "--offline"]
    options = ["--prompts", str(data), "--out", str(tmp_path / "data"), "--held-out", "0.4", "--max-new-tokens", "16"]
    assert outrider("data", *target, *options, "--temperatures", "0.3")[0] == 0
    options = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--batch-tokens", "400"]
    options += ["--lr", "0.005", "--steps", "25", "--evaluate-every", "1000", "--features", "stored", "--json"]
    file = tmp_path / "train.toml"
    file.write_text("layers = 4\non_policy = 0.1\ndrawn = 4\nmeasured_tokens = 24\n")
    code, text, _ = outrider("train", "draft", *target, *options, "--config", str(file))
    document = json.loads(text)
    assert code == 0
    other = ["--lr", "0.0000000001", "--steps", "1", "--out", str(tmp_path / "first")]
    code, text, _ = outrider("train", "draft", *target, *options, *other, "--config", str(file))
    assert code == 0 and document["acceptance_length"] > json.loads(text)["acceptance_length"] + 0.1
