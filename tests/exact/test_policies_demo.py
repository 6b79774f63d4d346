"""Policies on the demo model: they choose lengths by the clock, and the tokens are Transformers' all the same."""

from __future__ import annotations

from typing import Any

import pytest
from comparing import assert_equal
from prompts import PROMPTS

from outrider import Sampling
from outrider.text import encode

NEW = 24
NAMES = ["copy", "one token", "python"]
PARTS = [
    ("suffix", "goodput"),
    ("recycle", "goodput"),
    ("recycle", "fixed:4,12"),
    ("early_exit:29", "confidence:0.3"),
    ("early_exit:29", "entropy"),
    ("cascade:suffix,early_exit:29", "goodput"),
    ("cascade:lookup,recycle", "heuristic"),
]


@pytest.fixture(scope="module")
def expected(demo_writes: Any, demo_tokenizer: Any) -> dict[str, tuple[list[int], list[int]]]:
    """Name -> ids of the prompt, and what Transformers writes after it."""
    ids = {name: encode(demo_tokenizer, PROMPTS[name]) for name in NAMES}
    return {name: (prompt, demo_writes(prompt, NEW)) for name, prompt in ids.items()}


@pytest.mark.parametrize(("drafter", "policy"), PARTS)
def test_greedy_as_transformers(demo: Any, demo_model: Any, expected: Any, drafter: str, policy: str) -> None:
    """Three prompts together, one alone."""
    llm = demo("none").using(drafter, policy=policy)
    outputs = llm.generate([expected[name][0] for name in NAMES], max_new_tokens=NEW)
    outputs.append(llm.generate(expected["copy"][0], max_new_tokens=NEW))
    for name, output in zip([*NAMES, "copy"], outputs, strict=True):
        assert_equal(demo_model, *expected[name], output.token_ids, f"{name!r}, {drafter}, {policy}", llm.tokenizer)
    assert sum(output.stats.drafted for output in outputs) > 0


@pytest.mark.parametrize(("drafter", "policy"), PARTS[-2:])
def test_same_seed_same_tokens(demo: Any, drafter: str, policy: str) -> None:
    """Sampled, in company."""
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=5)
    prompts = [PROMPTS[name] for name in NAMES[:2]]
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": NEW}
    plain = demo("none").generate(prompts, **options)
    got = demo("none").using(drafter, policy=policy).generate(prompts, **options)
    assert [output.token_ids for output in got] == [output.token_ids for output in plain]
