"""The draft vocabulary of published checkpoints: `d2t` holds offsets (target id = draft id + d2t), `t2d` a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoints import is_part
from .folder import Found
from .keys import strange


def take_ids(found: Found, tensors: dict[str, Tensor], drafted: int, whole: int) -> Tensor:
    """Take the map out of the tensors.

    Args:
        found: where they lie.
        tensors: d2t and t2d are removed.
        drafted, whole: sizes of the two vocabularies.

    Returns:
        [drafted] int64 rising.

    Raises:
        UnsupportedModel: it is missing where the vocabularies differ, or contradicts itself.
    """
    offsets, reach = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        if drafted != whole:
            raise strange(
                found.folder, "d2t", "is missing", f"one of shape [{drafted}], as draft_vocab_size is not vocab_size,"
            )
        ids = torch.arange(whole)
    else:
        if offsets.shape != (drafted,) or offsets.is_floating_point():
            raise strange(found.folder, "d2t", f"has the shape {list(offsets.shape)}", f"whole numbers [{drafted}]")
        ids = offsets.long() + torch.arange(drafted)
    if not is_part(ids, whole):
        raise strange(found.folder, "d2t", "does not lead to rising target ids", "offsets, target id - draft id,")
    if reach is not None and not (reach.shape == (whole,) and torch.equal(reach.bool().nonzero().flatten(), ids)):
        raise strange(found.folder, "t2d", "contradicts d2t", f"true at exactly the target ids of d2t, of [{whole}],")
    return ids


def maps(ids: Tensor, whole: int) -> dict[str, Tensor]:
    """d2t and t2d; nothing where the vocabularies are one."""
    if len(ids) == whole:
        return {}
    reach = torch.zeros(whole, dtype=torch.bool)
    reach[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": reach}
