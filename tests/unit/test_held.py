"""Memory: what a thing holds, what drafters add to a target, and how much a process held at most."""

from __future__ import annotations

from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from toy import ToyDrafter

from outrider.measure import held

CPU = torch.device("cpu")


@dataclass(slots=True)
class Slotted:
    """An object of no package of ours, with slots."""

    part: Tensor


class Holder(ToyDrafter):
    """A drafter, which is what makes its attributes worth looking at."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        self.parts = parts


def test_weights_are_found_wherever_they_are_held() -> None:
    """In modules, lists and dictionaries, each storage once however many views it has."""
    linear = nn.Linear(10, 20, bias=False)  # 800 bytes
    extra = torch.zeros(5, dtype=torch.float64)  # 40 bytes
    holder = Holder(module=linear, list=[extra, extra[2:], linear.weight.T], foreign=Slotted(torch.zeros(1000)))
    assert sum(held.weights(holder).values()) == 840
    assert held.weights(Holder(none=torch.zeros(0), text="abc", kind=Tensor)) == {}


def test_a_ring_of_objects_ends() -> None:
    holder = Holder(weight=torch.zeros(2))
    holder.parts["self"] = holder
    assert sum(held.weights(holder).values()) == 8


def test_shares() -> None:
    """What is the target's adds nothing; what two drafters use counts for each, and for neither as the others'."""
    base, shared, own = torch.zeros(100), torch.zeros(10), torch.zeros(25)
    drafters = {3: Holder(a=base), 5: Holder(a=base, b=shared), 7: Holder(b=shared, c=own)}
    assert held.shares(drafters, Holder(a=base)) == {3: (0, 140), 5: (40, 100), 7: (140, 0)}


def test_the_peak_is_that_since_the_reset() -> None:
    if not held.reset_peak(CPU):
        pytest.skip("this system does not set the mark back")
    before = held.peak(CPU)
    with mmap(-1, 64 << 20) as block:  # from the system: a heap that had been larger would have room for it
        for page in range(0, len(block), PAGESIZE):
            block[page] = 1
        during = held.peak(CPU)
    assert before is not None and during is not None and during - before > 32 << 20
    assert held.reset_peak(CPU)
    after = held.peak(CPU)
    assert after is not None and during - after > 32 << 20


def test_no_figure_where_the_mark_cannot_be_set_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(held, "_RESET", tmp_path)  # a folder cannot be written
    assert not held.reset_peak(CPU)
    monkeypatch.setattr(held, "_STATUS", tmp_path / "nothing")
    assert held.peak(CPU) is None
