"""A real model with windows of 512 tokens, Gemma 3 270M, on texts that outgrow them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from comparing import assert_equal, transformers_ids
from loaded import makes, read_model, read_tokenizer

pytestmark = pytest.mark.slow

NEW = 24
_TEXT = (
    "The keeper of the lighthouse wrote down the weather every morning and the ships every evening. "
    "On day {day} there were {ships} ships, and the wind came from the {wind}. "
)


@pytest.fixture(scope="module")
def gemma(models_folder: Any) -> Any:
    """The model in float32."""
    return read_model(models_folder / "gemma3-float32")


@pytest.fixture(scope="module")
def tokenizer(models_folder: Any) -> Any:
    """Its tokenizer."""
    return read_tokenizer(models_folder / "gemma3-float32")


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    """One prompt past the window from the start, one that crosses its border as it is continued, and a short one."""
    winds = ("north", "east", "south", "west")
    days = (_TEXT.format(day=day, ships=day * 7 % 11, wind=winds[day % 4]) for day in range(1, 40))
    ids = tokenizer("".join(days))["input_ids"]
    return [ids[:605], ids[:501], tokenizer("The capital of France is")["input_ids"]]


@pytest.fixture(scope="module")
def expected(gemma: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What Transformers writes."""
    return [transformers_ids(gemma, prompt, NEW) for prompt in prompts]


def test_windows_matter(gemma: Any, prompts: list[list[int]]) -> None:
    """With wider windows the model's logits are others, so the tests below can tell."""
    assert gemma.config.sliding_window == 512
    assert len(prompts[0]) > 600
    assert len(prompts[1]) < 512 < len(prompts[1]) + NEW
    ids = torch.tensor([prompts[0]])
    wide = copy.deepcopy(gemma)
    wide.config.sliding_window = 4096
    for layer in wide.model.layers:
        layer.self_attn.sliding_window = None
    with torch.no_grad():
        right, wrong = (
            model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1] for model in (gemma, wide)
        )
    assert float((right - wrong).abs().max()) > 0.05


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "modules"])
@pytest.mark.parametrize("part", [("none", 1), ("lookup", 5), ("lookup", 20), ("model", 5), ("model", 20)])
def test_greedy_equals_transformers(
    gemma: Any, tokenizer: Any, prompts: Any, expected: Any, part: tuple[str, int], fast: bool
) -> None:
    """Together, at different places in the window, and each alone."""
    llm = makes(gemma, tokenizer, fast=fast)(*part)
    assert llm.target.build == ("lean" if fast else "modules")
    for company in ([0, 1, 2], [1], [0]):
        outputs = llm.generate([prompts[index] for index in company], max_new_tokens=NEW)
        for index, output in zip(company, outputs, strict=True):
            label = f"prompt {index} with {part}, in a batch of {len(company)}"
            assert_equal(gemma, prompts[index], expected[index], output.token_ids, label, tokenizer)
            assert part[0] == "none" or index == 2 or output.stats.drafted > 0, label
