"""On which held-out prompts training measures acceptance."""

from __future__ import annotations

import pytest

from outrider.commands.train import spread
from outrider.train.answers import Answer


def answer(number: int, category: str) -> Answer:
    return Answer(number=number, prompt=(number,), answer=(1,), temperature=0.0, category=category, held_out=True)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(4, [0, 100, 5, 101]), (6, [0, 100, 2, 101, 5, 7]), (1, [0]), (50, [0, 100, 1, 101, 2, 3, 4, 5, 6, 7, 8, 9])],
)
def test_categories_alike_and_all_folders(count: int, expected: list[int]) -> None:
    """Ten prompts of one kind in several folders, one after the other, each answered twice, and two of another."""
    answers = [answer(n, "a") for n in range(10) for _ in range(2)] + [answer(n, "b") for n in (100, 101)]
    assert [one.prompt[0] for one in spread(answers, count)] == expected
