"""Methods that train the target itself, and what follows from that: it is another model afterwards.

It is saved as a whole, bears a mark in its configuration by which its drafters know it, and everything says that
losslessness then means: with respect to the new target. How far the new one is from the old is measured, too.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import features
from ..heads.base import TargetOutput
from ..heads.whole import Whole
from ..target import Target, TransformersTarget
from .corpus import Batch
from .draft import save_model
from .recipe import Recipe, ahead

PROMISE = (
    "The target was trained, too: it is another model than the one that it was made from. Losslessness is with respect "
    "to the new target: with and without a drafter it writes the same, which is not what the old one wrote."
)


class Changing(Recipe):
    """A method that trains the target. `self.whole` is the target as it stands, which takes part in `self.head`."""

    lead, changes = 1, True
    whole: Whole
    _apart: dict[str, Any] | None = None

    def served(self, target: Target) -> Target:
        """See `Recipe`: a copy of the target as it stands."""
        return TransformersTarget(self.copied(), own=True)

    def copied(self) -> Any:
        """The target as it stands, in plain modules with copied weights, and with its mark."""
        model, weights = self.whole.model, self.whole.plain()
        found = type(model)(copy.deepcopy(model.config)).to(model.device, model.dtype).eval()
        found.load_state_dict(weights)
        found.generation_config = model.generation_config
        digest = hashlib.sha256()
        for _, tensor in sorted(self.head.trained().items()):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        setattr(found.config.get_text_config(), features.MARK, f"{self.method} {digest.hexdigest()[:16]}")
        return found

    def save_target(self, folder: Path, tokenizer: Any) -> None:
        """Write the target as it stands, as Transformers reads it."""
        save_model(self.copied(), tokenizer, folder)

    @torch.no_grad()
    def compare(self, batches: Iterable[Batch], output: TargetOutput) -> None:
        """Find out how far the new target is from the old.

        Args:
            batches: of held-out texts, with the old target's states.
            output: the old target's output layer.
        """
        away: list[Tensor] = []
        same: list[Tensor] = []
        for batch in batches:
            counts = ahead(batch.answer, 1)
            old = output(batch.last[counts]).float().log_softmax(-1)
            new = self.whole.logits(batch.ids)[counts].float().log_softmax(-1)
            away.append((old.exp() * (old - new)).sum(-1))
            same.append((old.argmax(-1) == new.argmax(-1)).float())
        if away:
            self._apart = {
                "divergence_from_the_old_target": f"{float(torch.cat(away).mean()):.4g} nats per token",
                "same_likeliest_token_as_the_old_target": f"{float(torch.cat(same).mean()):.1%}",
            }

    def facts(self) -> dict[str, Any]:
        """See `Recipe`."""
        return self._apart or {}
