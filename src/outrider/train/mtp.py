"""MTP: one layer, recursed, against what the target wrote so many tokens on (DeepSeek-V3, 2412.19437; FastMTP).

Steps are unrolled as EAGLE-3's are, so that the layer is trained on the states that it will meet.
"""

from __future__ import annotations

import torch

from .. import features
from ..drafters import Drafter
from ..drafters.mtp_trained import TrainedMtp
from ..drafters.trained import borrowed
from ..heads.base import quiet_norm
from ..heads.mtp import MtpHead, MtpShape
from ..target import Target
from .corpus import Batch
from .laws import law_ahead, text_ahead
from .recipe import Losses, Material, Recipe
from .start import begin
from .unrolled import collect, unroll

DECAY = 0.6  # weight of a step against the one before (FastMTP)


class MtpRecipe(Recipe):
    """Trains an MTP layer.

    Args:
        material: what it starts from; its steps are how often the layer is recursed.
        soft: learn the target's law at each token, rather than the token that it wrote.
        start: what it begins from, see `start.begin`.
    """

    method, rate, steps = "mtp", 5e-4, 3
    head: MtpHead

    def __init__(self, material: Material, *, soft: bool = False, start: str = "state") -> None:
        super().__init__()
        target = material.target
        self.taps = (features.depth_of(target),)
        shape = MtpShape(features.block_shape(target), len(material.ids))
        self.head = MtpHead(shape, features.output(target, material.ids).float())
        begin(start, self.head.depth.eh_proj, [self.head.depth.block], target)
        with torch.no_grad():
            self.head.depth.norm.weight.fill_(quiet_norm(self.head.output.linear.weight))  # type: ignore[operator]
        self._embed, self._steps, self._soft = features.embedding(target), material.steps, soft
        self._ids, self._whole = material.reduced, material.ids.to(target.device)

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        head = self.head
        soft = self._soft
        loss = law_ahead(batch, head.logits, head.output) if soft else text_ahead(batch, head.logits, self._whole)
        outputs = unroll(head, self._embed, batch, head.fuse(batch.features), self._steps)
        return collect(outputs, batch, DECAY, loss)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return TrainedMtp(self.head, borrowed(target, torch.float32), self.taps, self._ids, self.method)
