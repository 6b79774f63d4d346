"""The target's laws at the tokens that it wrote, and what it costs a head to be far from them. Knows no heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..errors import BadOption
from ..heads.base import TargetOutput
from .corpus import Batch
from .recipe import ahead

Logits = Callable[[Tensor], Tensor]
"""[M, D] a head's states -> [M, n]"""

Loss = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]
"""What a step ahead costs, as `unrolled.collect` asks for it."""

LOSSES = ("kl", "lk")
_FADING = 3.0  # how soon the hybrid turns from cross-entropy to overlap (eta, 2602.23881)


@dataclass(frozen=True, slots=True)
class Aim:
    """What a head learns of the target's law.

    Attributes:
        loss: "kl", all of it, by cross-entropy; "lk", what acceptance depends on: the overlap, sum of min(p, q), which
            counts for the more the larger it is (the hybrid of LK Losses, Samarin et al., 2602.23881).
        law_temperature: of the law. Below 1 its likeliest tokens count for more, as they do where one decodes greedily.

    Raises:
        BadOption: there is no such loss, or the temperature is not above 0.
    """

    loss: str = "kl"
    law_temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise BadOption(f"There is no loss {self.loss!r}: choose {' or '.join(LOSSES)}.")
        if not self.law_temperature > 0:
            raise BadOption(f"law_temperature is {self.law_temperature}: it has to be above 0.")


_ALL = Aim()


@torch.no_grad()
def target_law(last: Tensor, output: TargetOutput, aim: Aim = _ALL) -> Tensor:
    """[M, n] the target's law over the draft vocabulary, from its states [M, D] and its output layer."""
    logits: Tensor = output(last).float() / aim.law_temperature
    return logits.softmax(-1)


class Laws:
    """The target's laws at the tokens that it wrote, computed once for all steps ahead.

    Args:
        batch: the texts.
        output: the target's output layer over the draft vocabulary.
        aim: for the temperature.
    """

    def __init__(self, batch: Batch, output: TargetOutput, aim: Aim = _ALL) -> None:
        before = ahead(batch.answer, 1)  # slots at which it had one of these to predict
        self._laws = target_law(batch.last[before], output, aim)
        self._rows = (before.flatten().cumsum(0) - 1).view_as(before)

    def __call__(self, counts: Tensor, by: int) -> Tensor:
        """[M, n] the laws `by` slots after those that `counts` [B, N] says."""
        return self._laws[ahead(self._rows, by)[counts]]


def soft_loss(logits: Tensor, law: Tensor, aim: Aim = _ALL) -> tuple[Tensor, Tensor]:
    """What it costs to be far from the target's law restricted to the draft vocabulary.

    Args:
        logits: [M, n] of the head.
        law: [M, n] of the target, for the same tokens.
        aim: for the loss.

    Returns:
        [M] losses, in nats where they are cross-entropies, and [M] bool, whether both find the same token likeliest.
    """
    own = logits.float().log_softmax(-1)
    costs = -(law * own).sum(-1)
    if aim.loss == "lk":
        overlap = torch.minimum(law, own.exp()).sum(-1)
        share = (-_FADING * overlap.detach()).exp()
        costs = share * costs + (1 - share) * (1 - overlap)
    return costs, logits.argmax(-1) == law.argmax(-1)


def hard_loss(logits: Tensor, tokens: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy against the tokens of the text.

    Args:
        logits: [M, n] of the head.
        tokens: [M] the target's ids.
        ids: [n] those of the draft vocabulary, rising. A token that is not among them costs nothing.

    Returns:
        [M] losses in nats, and [M] bool, whether the head finds the text's token likeliest.
    """
    places = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    known = ids[places] == tokens
    costs = cross_entropy(logits.float(), places, reduction="none") * known
    return costs, known & (logits.argmax(-1) == places)


def law_ahead(batch: Batch, logits: Logits, output: TargetOutput, aim: Aim = _ALL) -> Loss:
    """What a step ahead costs against the target's law: step k at slot t predicts token t + 2 + k.

    Args:
        batch: the texts.
        logits: the head's, of its states.
        output: the target's output layer over the draft vocabulary.
        aim: for temperature and loss.
    """
    laws = Laws(batch, output, aim)
    return lambda states, step, counts: soft_loss(logits(states), laws(counts, 1 + step), aim)


def text_ahead(batch: Batch, logits: Logits, ids: Tensor) -> Loss:
    """The same against the text's own token.

    Args:
        batch, logits: as above.
        ids: [n] the draft vocabulary.
    """
    return lambda states, step, counts: hard_loss(logits(states), ahead(batch.ids, 2 + step)[counts], ids)
