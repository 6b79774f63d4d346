"""The demo model's drafters that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider import checkpoints
from outrider.drafters.trained import SHIPPED
from outrider.text import encode

QUESTION = "A shop sells pens at 3 dollars each. Anna buys 4 pens and pays with 20 dollars. How much does she get back?"
LARGEST = 25_000_000  # bytes of all of them
LEAST = {"eagle3": 1.4, "medusa": 1.2}  # tokens of a round, on a question of a kind that they were trained on


def test_they_are_small() -> None:
    """All that is shipped: two folders, each with its card."""
    assert {folder.name for folder in SHIPPED.iterdir()} == LEAST.keys()
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < LARGEST
    for method in LEAST:
        card = (SHIPPED / method / checkpoints.CARD).read_text()
        assert f"--target demo --drafter {method}" in card and "bench/train_demo.py" in card


@pytest.mark.parametrize("method", sorted(LEAST))
def test_they_draft(method: str, demo_folder: Path, demo_tokenizer: Any) -> None:
    """By their bare names, with the tokens of plain decoding."""
    llm = outrider.load(str(demo_folder), method, policy="fixed:4")
    prompt = encode(demo_tokenizer, [{"role": "user", "content": QUESTION}])
    assert llm.drafter.spec == method
    output = llm.generate(prompt, max_new_tokens=48)
    assert output.token_ids == llm.using("none").generate(prompt, max_new_tokens=48).token_ids
    assert output.stats.acceptance_length > LEAST[method]
