"""Learning at a share of the slots, in pieces of texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import learning
import pytest
import torch

import outrider
from outrider.commands.train import run, wanted
from outrider.errors import BadOption
from outrider.train.corpus import Batch, pieces
from outrider.train.medusa import MedusaRecipe
from outrider.train.recipe import Material

WIDTH = 32  # of the tiny targets


def batch_of(*lengths: int, seed: int = 0) -> Batch:
    """Texts of random tokens and states; the first three tokens of each are a prompt's."""
    rows, size = len(lengths), max(lengths)
    there = torch.arange(size) < torch.tensor(lengths)[:, None]
    chance = torch.Generator().manual_seed(9)
    last = torch.randn(rows, size, WIDTH, generator=chance) * there[..., None]
    ids = torch.randint(100, (rows, size), generator=chance) * there
    return Batch(ids, there & (torch.arange(size) > 2), last, last, seed)


def origins(batch: Batch, share: float) -> torch.Tensor:
    """[pieces, slots] where in the batch, flat, the slots of its pieces were."""
    numbered = torch.arange(batch.ids.numel()).view_as(batch.ids)
    return pieces(replace(batch, ids=numbered), share).ids


def test_pieces_are_of_the_text() -> None:
    """All that a batch has, from the same slots, which follow each other; and no piece without a token to learn."""
    batch = batch_of(100, 61, 27)
    for seed in range(20):
        one = replace(batch, seed=seed)
        places, found = origins(one, 0.4), pieces(one, 0.4)
        assert bool((places.diff(dim=1) == 1).all()) and len(places.unique(dim=0)) == len(places)
        for name in ("ids", "answer", "features", "last"):
            whole = getattr(batch, name)
            assert torch.equal(getattr(found, name), whole.flatten(0, 1)[places]), name
        assert bool(found.answer.any(1).all())
        assert 0.2 < found.tokens / batch.tokens < 0.6


def test_every_slot_has_its_turn() -> None:
    batch = batch_of(100, 61, 27)
    seen = torch.cat([origins(replace(batch, seed=seed), 0.3).flatten() for seed in range(60)])
    counts = torch.bincount(seen, minlength=batch.ids.numel()).view_as(batch.ids)
    assert int(counts[batch.answer].min()) > 4


def test_a_short_text_is_one_piece() -> None:
    assert torch.equal(pieces(batch_of(9), 0.1).ids, batch_of(9).ids)


def test_a_slot_costs_the_same() -> None:
    """In a piece as in the whole text."""
    target = outrider.load(families.make("llama"), "none", fast=False).target
    recipe = MedusaRecipe(Material(target, torch.arange(100), 3, {}), share=0.5)
    for parameter in recipe.head.blocks.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    batch = batch_of(100, 61, 27)
    whole, part, places = recipe.losses(batch), recipe.losses(pieces(batch, 0.5)), origins(batch, 0.5)
    compared = 0
    for step in range(3):
        valid = part.valid[step]
        torch.testing.assert_close(part.each[step][valid], whole.each[step].flatten()[places][valid])
        assert bool(whole.valid[step].flatten()[places][valid].all())
        compared += int(valid.sum())
    assert compared > 100


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and its answers."""
    return learning.answered(tmp_path_factory.mktemp("tiny"), 12, 60)


def train(tiny: tuple[Path, Path], out: Path, share: float, **given: Any) -> dict[str, Any]:
    """Medusa."""
    usual = {"batch_tokens": 200, "epochs": 4.0, "evaluate_every": 4, "checkpoint_every": 2, "measured_tokens": 8}
    wish = wanted("medusa", [tiny[1]], out, None, {"share": share, "draft_vocab": 40, **usual, **given})
    return run(learning.settings(tiny[0]), wish, dry=False, show=False)


def test_a_run_counts_what_it_learnt(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Fewer tokens in as many steps, the same when it is run again."""
    every, some = train(tiny, tmp_path / "every", 1.0), train(tiny, tmp_path / "some", 0.3)
    assert every["steps"] == some["steps"] and 0.2 < some["tokens"] / every["tokens"] < 0.45
    again = train(tiny, tmp_path / "again", 0.3)
    assert again["curve"] == some["curve"]
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "some/model.safetensors").read_bytes()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_there_is_no_such_share(share: float, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="it has to be above 0, and 1 at most"):
        train(tiny, tmp_path / "out", share)
