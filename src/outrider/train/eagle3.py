"""EAGLE-3 (2503.01840): unrolled steps, each against the target's own law over the draft vocabulary."""

from __future__ import annotations

import torch

from .. import features
from ..drafters import Drafter
from ..drafters.eagle3 import Eagle3
from ..drafters.trained import borrowed
from ..heads.base import quiet_norm
from ..heads.eagle3 import Eagle3Head, Eagle3Shape
from ..target import Target
from .corpus import Batch
from .laws import Aim, law_ahead
from .recipe import Losses, Material, Recipe
from .start import begin
from .unrolled import collect, unroll

DECAY = 0.8  # weight of a step against the one before


class Eagle3Recipe(Recipe):
    """Trains an EAGLE-3 head.

    Args:
        material: what it starts from; `steps` are those of the training-time test.
        norm_output, fc_norm: see `Eagle3Shape`.
        start: what it begins from, see `start.begin`.
        loss, law_temperature: see `laws.Aim`.
    """

    method, rate, steps = "eagle3", 5e-4, 3
    head: Eagle3Head

    def __init__(
        self,
        material: Material,
        *,
        norm_output: bool = False,
        fc_norm: bool = True,
        start: str = "state",
        loss: str = "kl",
        law_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        target = material.target
        self.taps = features.default_taps(features.depth_of(target))
        shape = Eagle3Shape(features.block_shape(target), len(self.taps), len(material.ids), fc_norm, norm_output)
        self.head = Eagle3Head(shape)
        begin(start, self.head.fc, list(self.head.layers), target)
        self._steps, self._ids, self._aim = material.steps, material.reduced, Aim(loss, law_temperature)
        self._embed = features.embedding(target)
        self._output = features.output(target, material.ids).float()
        with torch.no_grad():
            rows = self._output.linear.weight
            self.head.lm_head.weight.copy_(rows)
            self.head.norm.weight.fill_(quiet_norm(rows))

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        head = self.head
        loss = law_ahead(batch, head.logits, self._output, self._aim)
        outputs = unroll(head, self._embed, batch, head.fuse(batch.features), self._steps)
        return collect(outputs, batch, DECAY, loss)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return Eagle3(self.head, borrowed(target, torch.float32), self.taps, self._ids, self.method)
