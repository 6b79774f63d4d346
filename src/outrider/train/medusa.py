"""Medusa-1 (2401.10774): heads on a frozen target, each against the target's own law so many tokens further on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .. import features
from ..drafters import Drafter
from ..drafters.medusa import Medusa, search_ranks
from ..drafters.trained import borrowed
from ..errors import BadOption
from ..heads.medusa import MedusaHead, MedusaShape
from ..target import Target
from .corpus import Batch
from .laws import Aim, law_ahead
from .recipe import Losses, Material, Recipe, ahead
from .unrolled import collect

DECAY = 0.8  # weight of a head against the one before
WIDTH, NODES = 10, 64  # ranks that the static tree may have, and its nodes


class MedusaRecipe(Recipe):
    """Trains Medusa heads.

    Args:
        material: what it starts from; its steps are the heads.
        layers: residual layers of each head.
        loss, law_temperature, sampled, off_greedy: see `laws.Aim`.
        share: of the slots of its texts, what a step learns at, in pieces drawn at random: heads look at each slot by
            itself, and slots of many texts teach more than as many of few.
    """

    method, rate, steps = "medusa", 1e-3, 4
    resizes = frozenset({"heads", "layers", "vocabulary"})
    head: MedusaHead

    def __init__(
        self,
        material: Material,
        *,
        layers: int = 1,
        loss: str = "kl",
        law_temperature: float = 1.0,
        sampled: int = 0,
        off_greedy: float = 1.0,
        share: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise BadOption(f"share is {share}: it has to be above 0, and 1 at most.")
        target = material.target
        self.taps = (features.depth_of(target),)
        shape = MedusaShape(features.width_of(target), material.steps, layers, len(material.ids))
        self.head = MedusaHead(shape, features.output(target, material.ids).float())
        self._ids, self._whole = material.reduced, material.ids.to(target.device)
        self._aim, self.share = Aim(loss, law_temperature, sampled, off_greedy), share

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        head = self.head
        assert head.output is not None
        loss = law_ahead(batch, head.logits, head.output, self._aim, self._whole)
        outputs = head(batch.features).unbind(-2)
        return collect(iter(outputs), batch, DECAY, loss)

    def settle(self, batches: Iterable[Batch]) -> None:
        """See `Recipe`: the static tree."""
        accuracy, seen = accuracies(self.head, self._whole, batches)
        if seen:
            self.head.shape = replace(self.head.shape, ranks=search_ranks(accuracy, NODES))

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return Medusa(self.head, borrowed(target, torch.float32), self.taps, self._ids, self.method)


@torch.no_grad()
def accuracies(
    head: MedusaHead, ids: Tensor, batches: Iterable[Batch], width: int = WIDTH
) -> tuple[Sequence[Sequence[float]], int]:
    """How often each head's r-th likeliest token is the text's, r = 0, 1, ... below `width`.

    Args:
        head: at work.
        ids: [n] int64, the target's ids of the draft vocabulary.
        batches: texts that it was not trained on, with states in the head's precision.
        width: ranks.

    Returns:
        By head and rank, and at how many places they were compared.
    """
    shape, width = head.shape, min(width, head.shape.vocabulary)
    right, seen = torch.zeros(shape.heads, width, dtype=torch.float64), 0
    for batch in batches:
        counts = ahead(batch.answer, 1 + shape.heads)  # slots whose heads all have a token to be compared with
        ranked = head.logits(head(batch.last[counts])).topk(width).indices
        seen += int(counts.sum())
        for step in range(shape.heads):
            texts = ahead(batch.ids, 2 + step)[counts]
            right[step] += (ids[ranked[:, step]] == texts[:, None]).double().sum(0).cpu()
    return (right / max(1, seen)).tolist(), seen
