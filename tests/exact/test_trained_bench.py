"""`outrider bench --preset architectures` with all that belongs to it: a draft model, Medusa, EAGLE and EAGLE-3.

The heads are trained here in seconds on what a tiny target writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import learning
import pytest
from loaded import read_model, read_tokenizer

from outrider.measure.results import Results

PROMPTS, TOKENS = 3, 9
METHODS = ("medusa", "eagle", "eagle3")
FAST = ("--dtype", "float32", "--offline", "--json")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return learning.tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its answers to a few prompts, which the heads will have by heart."""
    return learning.answers(read_model(target), tmp_path_factory.mktemp("answers") / "data", 8, TOKENS)


def test_the_whole_comparison(outrider: Any, target: Path, data: Path, tmp_path: Path) -> None:
    """Every kind is measured at every length, writes what plain decoding writes, and has something accepted."""
    heads = {method: tmp_path / method for method in METHODS}
    for method, folder in heads.items():
        where = ("--target", str(target), "--data", str(data), "--out", str(folder))
        steps = ("--draft-vocab", "100", "--steps", "60", "--evaluate-every", "60", "--batch-tokens", "128")
        code, _, err = outrider("train", method, *where, *steps, "--lr", "0.01", *FAST)
        assert code == 0, err
    words, questions = read_tokenizer(target), tmp_path / "questions.txt"
    known = [line["prompt"] for line in learning.lines(data) if not line["held_out"]][:PROMPTS]
    questions.write_text("\n".join(words.decode(prompt) for prompt in known))
    assert [words(line)["input_ids"] for line in questions.read_text().splitlines()] == known
    drafters = ",".join(f"{method}:{folder}" for method, folder in heads.items())
    preset = ("--preset", "architectures", "--target", str(target), "--draft-model", str(target))
    asked = ("--drafters", drafters, "--prompts", str(questions), "--k", "1,2", "--max-new-tokens", str(TOKENS))
    code, text, err = outrider("bench", *preset, *asked, "--repeats", "1", "--report", str(tmp_path / "out"), *FAST)
    assert code == 0, err
    results = Results.model_validate_json(text)
    specs = [f"model:{target}", *(f"{method}:{folder}" for method, folder in heads.items())]
    assert [(case.drafter, case.k) for case in results.cases] == [
        ("none", None), *((spec, k) for spec in specs for k in (1, 2))
    ]  # fmt: skip
    assert [told for told in results.manifest["left_out"] if "Medusa" in told or "EAGLE" in told] == []
    plain, *others = results.summaries
    for found in others:
        name = results.cases[found.case].name
        assert (found.compared, found.identical) == (PROMPTS, PROMPTS), name
        assert found.accepted > 0 and found.drafter_memory, name
        assert found.perplexity == plain.perplexity and found.speedup is not None, name
    deep = {results.cases[found.case].drafter.partition(":")[0]: found for found in others}
    assert all(len(found.survival) == 2 for found in deep.values()), "second tokens are kept as well"
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(method in page for method in METHODS)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["drafter_memory"]["3"] > 0
