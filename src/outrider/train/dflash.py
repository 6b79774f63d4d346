"""DFlash: blocks behind random places of the answers, filled in at one go, against what the target wrote there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import features
from ..drafters import Drafter
from ..drafters.dflash import DFlash
from ..drafters.trained import borrowed
from ..heads.base import quiet_norm
from ..heads.dflash import DFlashHead, DFlashShape
from ..target import Target
from .corpus import Batch
from .laws import law_ahead, text_ahead
from .recipe import Losses, Material, Recipe, ahead
from .start import begin
from .unrolled import collect


class DFlashRecipe(Recipe):
    """Trains a DFlash head.

    Args:
        material: what it starts from; its steps are the tokens of a block that can be drafted.
        layers: of the head.
        anchors: blocks per text and step of training, at most.
        soft: learn the target's law at each token, rather than the token that it wrote.
        fc_norm: see `DFlashShape`.
        start: what it begins from, see `start.begin`.
    """

    method, rate, steps = "dflash", 1e-3, 7
    head: DFlashHead

    def __init__(
        self,
        material: Material,
        *,
        layers: int = 3,
        anchors: int = 32,
        soft: bool = False,
        fc_norm: bool = True,
        start: str = "small",
    ) -> None:
        super().__init__()
        target = material.target
        self.taps = features.spread_taps(features.depth_of(target))
        block, size = features.block_shape(target), material.steps + 1
        shape = DFlashShape(block, layers, len(self.taps), len(material.ids), size, material.spare, fc_norm)
        self.head = DFlashHead(shape, features.output(target, material.ids).float())
        begin(start, self.head.fc, list(self.head.layers), target)
        with torch.no_grad():
            self.head.norm.weight.fill_(quiet_norm(self.head.output.linear.weight))
        self._embed, self._anchors, self._soft = features.embedding(target), anchors, soft
        self._ids, self._whole = material.reduced, material.ids.to(target.device)
        # The first tokens of a block decide whether the others count: 7, 5 and 4 for blocks of 16, 10 and 8 (DFlash).
        self._decay = math.exp(-1 / (1 + 0.375 * size))

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`. Slot t's block begins with token t + 1, and its place k + 1 is the slot's step k."""
        head = self.head
        soft = self._soft
        loss = law_ahead(batch, head.logits, head.output) if soft else text_ahead(batch, head.logits, self._whole)
        slots, real = anchors(batch, self._anchors)
        chosen = torch.zeros_like(batch.answer).scatter(1, slots, real)

        found = self._filled(batch, slots)[real][:, 1:]
        outputs = found.new_zeros(*batch.ids.shape, *found.shape[1:]).index_put((chosen,), found)
        return collect(iter(outputs.unbind(2)), batch, self._decay, loss, chosen)

    def _filled(self, batch: Batch, slots: Tensor) -> Tensor:
        """[B, A, size, D] what the blocks behind these slots become."""
        head, length = self.head, batch.ids.shape[1]
        text = torch.arange(length, device=slots.device)
        known = batch.ids.gather(1, (slots + 1).clamp(max=length - 1))
        blocks = head.masked(known)
        positions = slots[..., None] + 1 + torch.arange(blocks.shape[-1], device=slots.device)
        keys = head.keys(head.fuse(batch.features), text.expand_as(batch.ids))
        attend = _Blocks(keys, text <= slots[..., None], blocks.shape[-1])
        embedded = self._embed(blocks.flatten(1)).to(batch.features.device, batch.features.dtype)
        states: Tensor = head(embedded, positions.flatten(1), attend)
        return states.view(*blocks.shape, -1)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return DFlash(self.head, borrowed(target, torch.float32), self.taps, self._ids, self.method)


class _Blocks:
    """`heads.blocks.Attends` of many blocks of one text side by side, which do not see each other.

    Args:
        keys: of the text, for each layer; see `DFlashHead.keys`.
        seen: [B, A, N] bool, which of the text each block may see.
        size: of a block.
    """

    def __init__(self, keys: list[tuple[Tensor, Tensor]], seen: Tensor, size: int) -> None:
        self._keys, self._unseen, self._size = keys, ~seen[:, None, :, None], size

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `heads.blocks.Attends`."""
        groups = query.shape[1] // key.shape[1]
        before, known, key, value = (part.repeat_interleave(groups, 1) for part in (*self._keys[layer], key, value))
        text = self._apart(query @ before.transpose(-1, -2)).masked_fill(self._unseen, -math.inf)
        query, key, value = (self._apart(part) for part in (query, key, value))
        scores = torch.cat([text, query @ key.transpose(-1, -2)], -1) * query.shape[-1] ** -0.5
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        length = before.shape[2]
        out: Tensor = (weights[..., :length].flatten(2, 3) @ known) + (weights[..., length:] @ value).flatten(2, 3)
        return out.transpose(1, 2)

    def _apart(self, x: Tensor) -> Tensor:
        """[B, H, A * size, ...] -> [B, H, A, size, ...]"""
        return x.reshape(*x.shape[:2], -1, self._size, *x.shape[3:])


def anchors(batch: Batch, most: int) -> tuple[Tensor, Tensor]:
    """Where blocks are put: at random, where the target wrote the token behind a block's first.

    Args:
        batch: the texts; its seed decides.
        most: per text.

    Returns:
        [B, A] the slots before the blocks' first tokens, rising, and [B, A] bool which of them are real: texts have
        more or fewer of them.
    """
    fitting = ahead(batch.answer, 2).cpu()
    width = min(most, int(fitting.sum(1).max()))
    chance = torch.rand(fitting.shape, generator=torch.Generator().manual_seed(batch.seed))
    picked = chance.masked_fill(~fitting, 2.0).argsort(-1)[:, :width]
    length = fitting.shape[1]
    ordered = (picked + length * ~fitting.gather(1, picked)).sort(-1).values  # those that are not real come last
    return (ordered % length).to(batch.ids.device), (ordered < length).to(batch.ids.device)
