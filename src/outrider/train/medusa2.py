"""Medusa-2 (2401.10774, section 2.2.2): heads and target are trained together, the heads first and then both.

The target's layers change by low-rank matrices, and learn the old target's law besides, so that it stays close to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoints, features
from ..checkpoints import Checkpoint
from ..drafters import Drafter
from ..drafters.medusa import Medusa, search_ranks
from ..drafters.trained import borrowed
from ..errors import BadOption
from ..heads.base import DraftHead
from ..heads.medusa import MedusaHead, MedusaShape
from ..heads.whole import Whole, loosen
from ..target import Target
from .changing import Changing
from .corpus import Batch
from .laws import Laws, soft_loss, target_law
from .medusa import DECAY, NODES, accuracies
from .recipe import Losses, Material
from .unrolled import collect


class Both(DraftHead):
    """Heads and target.

    Args:
        heads: of Medusa.
        whole: the target.
    """

    def __init__(self, heads: MedusaHead, whole: Whole) -> None:
        super().__init__()
        self.heads, self.whole = heads, whole

    def trained(self) -> dict[str, Tensor]:
        """See `DraftHead`."""
        return {name: parameter.detach() for name, parameter in self.named_parameters() if parameter.requires_grad}


class Medusa2Recipe(Changing):
    """Trains Medusa heads and the target.

    Args:
        material: what it starts from; its steps are the heads.
        layers: residual layers of each head.
        lora_rank: of the target's changes.
        heads_first: share of the run in which the target stays as it is.
        heads_weight: of the heads' losses against the target's own.
    """

    method, rate, steps, kind = "medusa2", 5e-4, 4, "medusa"
    head: Both

    def __init__(
        self,
        material: Material,
        *,
        layers: int = 1,
        lora_rank: int = 32,
        heads_first: float = 0.3,
        heads_weight: float = 0.2,
    ) -> None:
        super().__init__()
        if lora_rank < 1 or not 0 <= heads_first < 1 or heads_weight <= 0:
            raise BadOption("lora_rank has to be 1 or more, heads_first a share below 1, heads_weight above 0.")
        target = material.target
        self.taps = (features.depth_of(target),)
        shape = MedusaShape(features.width_of(target), material.steps, layers, len(material.ids))
        self._reduced = features.output(target, material.ids).float()
        heads = MedusaHead(shape, self._reduced)
        model = material.model()
        loosen(model, lora_rank)
        self.whole = Whole(model)
        self.head = Both(heads, self.whole)
        self._output = features.output(target).float()  # the old target's, and the new one's: it stays
        self._ids, self._vocabulary = material.reduced, material.ids.to(target.device)
        self._first, self._weight = heads_first, heads_weight

    @property
    def shape(self) -> dict[str, Any]:
        """See `Recipe`: of the heads."""
        return asdict(self.head.heads.shape)

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`; the first step is the target's own next token, the others are the heads'."""
        heads, states = self.head.heads, self.whole.states(batch.ids)
        if batch.done < self._first:
            states = states.detach() + 0.0 * (states - states.detach())  # a gradient of zeros
        laws = Laws(batch, self._reduced)

        def loss(states: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
            if step == 0:
                return soft_loss(self._output(states), target_law(batch.last[counts], self._output))
            return soft_loss(heads.logits(states), laws(counts, step))

        found = collect(iter([states, *heads(states).unbind(-2)]), batch, DECAY, loss, lead=self.lead)
        weights = [1.0, *(self._weight * DECAY**step for step in range(heads.shape.heads))]
        return found._replace(weights=torch.tensor(weights, device=found.weights.device))

    @torch.no_grad()
    def settle(self, batches: Iterable[Batch]) -> None:
        """See `Recipe`: the static tree, by the new target's states, and how far that one is from the old."""
        batches = list(batches)
        heads = self.head.heads
        own = [replace(batch, last=self.whole.states(batch.ids)) for batch in batches]
        accuracy, seen = accuracies(heads, self._vocabulary, own)
        if seen:
            heads.shape = replace(heads.shape, ranks=search_ranks(accuracy, NODES))
        self.compare(batches, self._output)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return Medusa(self.head.heads, borrowed(target, torch.float32), self.taps, self._ids, self.method)

    def use(self, out: str, target: str) -> tuple[str, str]:
        """See `Recipe`."""
        return f"{out}/target", f"medusa:{out}"

    def fill(self, work: Path, checkpoint: Checkpoint, card: str, tokenizer: Any) -> None:
        """See `Recipe`: the heads, and the new target in a folder beneath."""
        tensors = self.head.heads.trained()
        checkpoints.fill(work, Checkpoint(checkpoint.manifest, tensors, checkpoint.ids), card)
        self.save_target(work / "target", tokenizer)
