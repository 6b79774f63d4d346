"""Gemma 3 270M past its sliding window of 512 tokens: greedy ids equal Transformers' own in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comparing import assert_equal, transformers_ids
from conftest import Make, makes, read_model, read_tokenizer

pytestmark = pytest.mark.slow
NEW = 24


@pytest.fixture(scope="module")
def model(models_folder: Path) -> Any:
    """The model in float32."""
    return read_model(models_folder / "gemma3-float32")


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "modules"])
def make(models_folder: Path, model: Any, request: pytest.FixtureRequest) -> Make:
    """Makers of `Outrider`s on it."""
    return makes(model, read_tokenizer(models_folder / "gemma3-float32"), fast=request.param)


@pytest.fixture(scope="module")
def prompts(models_folder: Path) -> list[list[int]]:
    """About 600 tokens, which begin within the window and end past it, and a short prompt beside them."""
    tokenizer = read_tokenizer(models_folder / "gemma3-float32")
    text = " ".join(
        f"Item {place} costs {place * 7 % 50} coins and weighs {place * 3 % 11} stones." for place in range(40)
    )
    return [tokenizer(text)["input_ids"][:600], tokenizer("The capital of France is")["input_ids"]]


@pytest.fixture(scope="module")
def expected(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What Transformers writes."""
    return [transformers_ids(model, prompt, NEW) for prompt in prompts]


@pytest.mark.parametrize(("drafter", "k"), [("none", 1), ("lookup", 5), ("lookup", 20), ("model", 20)])
def test_past_the_window(make: Make, model: Any, prompts: Any, expected: Any, drafter: str, k: int) -> None:
    """Alone and in a ragged batch."""
    assert len(prompts[0]) > 540
    llm = make(drafter, k)
    together = llm.generate(prompts, max_new_tokens=NEW)
    alone = [llm.generate(prompt, max_new_tokens=NEW) for prompt in prompts]
    for prompt, right, *outputs in zip(prompts, expected, together, alone, strict=True):
        for output in outputs:
            assert_equal(model, prompt, right, output.token_ids, f"{drafter}, k {k}")
