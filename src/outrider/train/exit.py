"""An exit for a frozen target (after LayerSkip, 2404.16710): from a middle state to its law of the next token."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import features
from ..drafters import Drafter
from ..drafters.early_exit import Adapter, EarlyExit
from ..drafters.trained import borrowed
from ..errors import BadOption
from ..heads.exit import ExitHead, ExitShape
from ..layers import Layered, layered
from ..target import Target
from .corpus import Batch
from .laws import soft_loss, target_law
from .recipe import Losses, Material, Recipe, ahead
from .unrolled import collect


class ExitRecipe(Recipe):
    """Trains an exit.

    Args:
        material: what it starts from.
        exit_layer: after how many layers; 0 takes a quarter of them.
        rank: of the step beside the norm.
    """

    method, rate, steps, kind, lead, chooses_steps = "exit", 1e-3, 1, "early_exit", 1, False
    head: ExitHead

    def __init__(self, material: Material, *, exit_layer: int = 0, rank: int = 256) -> None:
        super().__init__()
        target = material.target
        self.taps = (exit_of(layered(target), exit_layer),)
        output = features.output(target, material.ids).float()
        self.head = ExitHead(ExitShape(features.width_of(target), rank, len(material.ids)), output)
        with torch.no_grad():
            weight = layered(target).normed(torch.ones(1, features.width_of(target), dtype=target.dtype)).float()[0]
            if bool(weight.any()):  # an RMS norm's, which is where to begin
                self.head.norm.weight.copy_(weight)
        self._ids = material.reduced

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        head = self.head

        def loss(states: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
            return soft_loss(head.logits(states), target_law(ahead(batch.last, step)[counts], head.output))

        return collect(iter([head(batch.features)]), batch, 1.0, loss, lead=self.lead)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        adapter = Adapter(self.head, borrowed(target, torch.float32), self._ids)
        return EarlyExit(layered(target), self.taps[0], adapter, self.method)


def exit_of(target: Layered, wanted: int) -> int:
    """After how many layers a target is left.

    Args:
        target: whose layers.
        wanted: so many; 0 for a quarter of them.

    Raises:
        BadOption: that leaves nothing to draft or to verify with.
        UnsupportedModel: the target cannot be parted there.
    """
    layer = wanted or max(1, target.depth // 4)
    if not 1 <= layer < target.depth:
        raise BadOption(
            f"exit_layer is {wanted}: this target has {target.depth} layers, so give one from 1 to {target.depth - 1}."
        )
    target.check(layer)
    return layer
