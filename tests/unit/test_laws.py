"""The target's laws in training: computed once, and found again however many slots ahead a step looks."""

from __future__ import annotations

import pytest
import torch

from outrider.heads.base import TargetOutput
from outrider.train.corpus import Batch
from outrider.train.recipe import Laws, ahead, law_of


@pytest.mark.parametrize("by", [0, 1, 2, 5])
@pytest.mark.parametrize("some", [False, True])
def test_laws_ahead_are_those_of_the_states_ahead(by: int, some: bool) -> None:
    """Texts whose answers begin and end elsewhere, one that has none, and slots of which only some count."""
    chance = torch.Generator().manual_seed(by)
    output = TargetOutput(torch.randn(7, 5, generator=chance))
    answer = torch.zeros(4, 9, dtype=torch.bool)
    answer[0, 2:8] = answer[1, 0:9] = answer[3, 7:9] = True
    last = torch.randn(4, 9, 5, generator=chance)
    laws = Laws(Batch(torch.zeros(4, 9, dtype=torch.long), answer, last[..., :0], last), output)
    counts = ahead(answer, 1 + by)
    if some:
        counts &= torch.rand(4, 9, generator=chance) < 0.5
    found = laws(counts, by)
    assert found.shape == (int(counts.sum()), 7)
    torch.testing.assert_close(found, law_of(ahead(last, by)[counts], output))
