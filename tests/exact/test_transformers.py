"""Greedy output equals Transformers' own `generate`, token for token, on a real model with twenty prompts.

In float32, for every drafter ("model" drafts with the target itself, so whole blocks of k are accepted) and every k. By
default each drafter writes all twenty prompts once in batches of four and once alone, the k rotating from one to the
next; plain decoding writes all of them in batches, and a few alone. What is left out of the complete cross
product is marked slow. Without a drafter k means nothing, so it occurs once.

In bfloat16 a difference is allowed where the model's two likeliest tokens lie within rounding, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import assert_equal, assert_near, first_divergence, transformers_ids
from loaded import makes, read_model, read_tokenizer
from prompts import PROMPTS

from outrider.text import encode

NEW = 22  # room for a draft of 20, its bonus token, and a round after it
LENGTHS = (1, 2, 5, 20)
PARTS = [("none", 1), *((drafter, k) for drafter in ("lookup", "model") for k in LENGTHS)]
NAMES = list(PROMPTS)
BATCHES = [NAMES[start::5] for start in range(5)]  # each of four prompts of different lengths, one token first
BF16_NAMES = ["copy", "russian", "question"]


@pytest.fixture(scope="module")
def ids(demo_tokenizer: Any) -> dict[str, list[int]]:
    """The prompts' ids."""
    return {name: encode(demo_tokenizer, prompt) for name, prompt in PROMPTS.items()}


@pytest.fixture(scope="module")
def expected(demo_writes: Any, ids: dict[str, list[int]]) -> Callable[[str], list[int]]:
    """What Transformers writes after a prompt."""
    return lambda name: demo_writes(ids[name], NEW)


def test_prompts_are_varied(ids: dict[str, list[int]]) -> None:
    """The prompts are what the other tests take them for: twenty, from one token to about four hundred."""
    lengths = {name: len(tokens) for name, tokens in ids.items()}
    assert len(lengths) == 20
    assert lengths["one token"] == 1
    assert 350 < lengths["four hundred tokens"] < 450
    assert sorted(name for batch in BATCHES for name in batch) == sorted(NAMES)
    assert BATCHES[0][0] == "one token"


def alone(k: int) -> list[str]:
    """The prompts whose turn it is to be written alone."""
    return NAMES[LENGTHS.index(k) :: len(LENGTHS)]


def together(drafter: str, k: int) -> list[list[str]]:
    """The batches whose turn it is."""
    return BATCHES if drafter == "none" else BATCHES[LENGTHS.index(k) :: len(LENGTHS)]


def check(make: Any, model: Any, ids: dict[str, list[int]], expected: Any, names: list[str], part: Any) -> None:
    """Write these prompts together and compare each with Transformers."""
    drafter, k = part
    llm = make(drafter, k)
    outputs = llm.generate([ids[name] for name in names], max_new_tokens=NEW)
    for name, output in zip(names, outputs, strict=True):
        label = f"{name!r} with {drafter}, k {k}, batch of {len(names)}"
        assert_equal(model, ids[name], expected(name), output.token_ids, label, llm.tokenizer)
        if drafter == "model":  # the target agrees with itself: blocks must be accepted whole, or this tests little
            assert all(round_.accepted == round_.drafted for round_ in output.rounds[:-1]), label
            assert output.stats.accepted > 0, label


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]}-{part[1]}")
def test_batches_of_four(demo: Any, demo_model: Any, ids: Any, expected: Any, part: tuple[str, int]) -> None:
    """Prompts of different lengths and languages, four at a time."""
    for names in together(*part):
        check(demo, demo_model, ids, expected, names, part)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]}-{part[1]}")
def test_alone(demo: Any, demo_model: Any, ids: Any, expected: Any, part: tuple[str, int]) -> None:
    """The prompts whose turn it is, one at a time."""
    for name in alone(part[1]):
        check(demo, demo_model, ids, expected, [name], part)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]}-{part[1]}")
def test_complete(demo: Any, demo_model: Any, ids: Any, expected: Any, part: tuple[str, int]) -> None:
    """Whatever the default tests leave out of the cross product of prompts, drafters, k and batch sizes."""
    for names in BATCHES:
        if names not in together(*part):
            check(demo, demo_model, ids, expected, names, part)
    for name in NAMES:
        if name not in alone(part[1]):
            check(demo, demo_model, ids, expected, [name], part)


def test_the_comparison_can_fail(demo_model: Any, ids: Any, expected: Any) -> None:
    """A changed token is found, is no near tie, and is described; a shortened output is never a near tie."""
    right = expected("numbers")
    wrong = [*right[:3], (right[3] + 1) % 1000, *right[4:]]
    found = first_divergence(demo_model, ids["numbers"], right, wrong)
    assert found is not None
    assert (found.place, found.expected, found.got) == (3, right[3], wrong[3])
    assert not found.allowed
    assert found.best == right[3]
    assert "token 3" in found.describe()
    shorter = first_divergence(demo_model, ids["numbers"], right, right[:-1])
    assert shorter is not None
    assert shorter.got is None
    assert not shorter.allowed
    assert first_divergence(demo_model, ids["numbers"], right, list(right)) is None


def compare_bf16(model: Any, tokenizer: Any, names: list[str], parts: list[tuple[str, int]]) -> None:
    """Write prompts in bfloat16 and let differences pass only where they are near ties."""
    make = makes(model, tokenizer)
    ids = {name: encode(tokenizer, PROMPTS[name]) for name in names}
    right = {name: transformers_ids(model, ids[name], NEW) for name in names}
    differing = []
    for drafter, k in parts:
        for start in range(0, len(names), 3):
            batch = names[start : start + 3]
            for company in (batch, batch[:1]):
                outputs = make(drafter, k).generate([ids[name] for name in company], max_new_tokens=NEW)
                for name, output in zip(company, outputs, strict=True):
                    label = f"{name!r} in bfloat16 with {drafter}, k {k}, batch of {len(company)}"
                    if assert_near(model, ids[name], right[name], output.token_ids, label, tokenizer):
                        differing.append(label)
    runs = len(parts) * len(names) * 4 // 3
    assert len(differing) <= runs // 2, f"Near ties are rare, but {len(differing)} of {runs} outputs differ."


@pytest.mark.slow
def test_bfloat16(models_folder: Any) -> None:
    """All prompts with every part in bfloat16."""
    folder = models_folder / "smollm2-bfloat16"
    compare_bf16(read_model(folder, torch.bfloat16), read_tokenizer(folder), NAMES, PARTS)


def test_bfloat16_some(demo_folder: Any, demo_tokenizer: Any) -> None:
    """A few prompts in bfloat16, the demo model's weights cast."""
    model = read_model(demo_folder, torch.bfloat16)
    compare_bf16(model, demo_tokenizer, BF16_NAMES, [("lookup", 5), ("model", 5)])
