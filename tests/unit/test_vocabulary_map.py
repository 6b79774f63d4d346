"""The map from draft ids to target ids in a drafter's folder: how it is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import checkpoints
from outrider.checkpoints import Checkpoint, Manifest, TargetId
from outrider.errors import ModelNotFound


def kept(folder: Path, ids: torch.Tensor, vocabulary: int) -> Path:
    """A folder with this draft vocabulary."""
    target = TargetId(name="tiny", hash="aa", vocabulary=vocabulary, width=8, depth=2)
    manifest = Manifest(
        method="medusa", target=target, taps=(2,), template=None, draft_vocabulary=len(ids), shape={}, training={}
    )
    checkpoints.write(folder, Checkpoint(manifest, {"a": torch.ones(2)}, ids), "")
    return folder


@pytest.mark.parametrize(
    ("ids", "vocabulary", "dtype"),
    [
        (torch.arange(9), 9, torch.uint8),
        (torch.tensor([0, 3, 256]), 300, torch.uint8),
        (torch.tensor([0, 3, 258]), 300, torch.uint16),
        (torch.tensor([2, 49_000]), 49_152, torch.uint16),
        (torch.tensor([2, 128_000]), 128_256, torch.int32),
    ],
)
def test_it_takes_no_more_than_it_needs(ids: torch.Tensor, vocabulary: int, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = kept(tmp_path / "head", ids, vocabulary)
    assert load_file(folder / "model.safetensors")["d2t"].dtype == dtype
    found = checkpoints.read(folder, "medusa")
    assert torch.equal(found.ids, ids) and found.ids.dtype == torch.int64
    assert found.tensors.keys() == {"a"}


IDS = torch.tensor([1, 4, 7])
OFFSETS = IDS - torch.arange(3)
REACH = torch.zeros(10, dtype=torch.bool).index_fill(0, IDS, True)


@pytest.mark.parametrize("maps", [{"d2t": OFFSETS}, {"d2t": OFFSETS, "t2d": REACH}])
def test_wide_ones_and_masks_are_read(maps: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """As folders had them first."""
    folder = kept(tmp_path / "head", IDS, 10)
    save_file({"a": torch.ones(2), **maps}, folder / "model.safetensors")
    assert torch.equal(checkpoints.read(folder, "medusa").ids, IDS)


@pytest.mark.parametrize(
    "maps",
    [
        {},
        {"t2d": REACH},
        {"d2t": OFFSETS[:2]},
        {"d2t": OFFSETS.float()},
        {"d2t": torch.tensor([1, -1, 5])},
        {"d2t": torch.tensor([-1, 3, 5])},
        {"d2t": torch.tensor([1, 3, 8])},
        {"d2t": OFFSETS, "t2d": ~REACH},
        {"d2t": OFFSETS, "t2d": REACH[:9]},
    ],
    ids=["none", "mask alone", "short", "floats", "falling", "below", "above", "another mask", "short mask"],
)
def test_broken_ones_are_refused(maps: dict[str, Any], tmp_path: Path) -> None:
    folder = kept(tmp_path / "head", IDS, 10)
    save_file({"a": torch.ones(2), **maps}, folder / "model.safetensors")
    with pytest.raises(ModelNotFound, match=r"vocabulary map .* is broken"):
        checkpoints.read(folder, "medusa")
