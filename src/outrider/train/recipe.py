"""What a method of training is: a head, the states it wants, a loss, and the drafter that it becomes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..drafters import Drafter
from ..heads.base import DraftHead, TargetOutput
from ..target import Target
from .corpus import Batch


class Losses(NamedTuple):
    """What a batch costs.

    Attributes:
        each: [S, B, N] the loss at each slot of each step ahead; 0 where nothing is predicted.
        valid: [S, B, N] bool, where something is.
        agreed: [S] how often the head's likeliest token was the target's.
        weights: [S] of the steps.
    """

    each: Tensor
    valid: Tensor
    agreed: Tensor
    weights: Tensor

    @property
    def mean(self) -> Tensor:
        """The loss: the weighted mean over steps of the mean over tokens."""
        counts = self.valid.flatten(1).sum(1).clamp(min=1)
        return (self.each.flatten(1).sum(1) / counts * self.weights).sum() / self.weights.sum()


@dataclass(frozen=True, slots=True)
class Material:
    """What a method starts from.

    Attributes:
        target: frozen.
        ids: [n] int64, the draft vocabulary.
        steps: how many tokens ahead are trained, where the method has a choice.
        options: the method's own, from the command line or --config.
        spare: an id that texts do not have, to stand for a token that is not known.
    """

    target: Target
    ids: Tensor
    steps: int
    options: dict[str, Any]
    spare: int = 0

    @property
    def reduced(self) -> Tensor | None:
        """The draft vocabulary, None where it is the target's."""
        return None if len(self.ids) == self.target.vocabulary else self.ids


class Recipe(nn.Module):
    """A method at work. Its parameters are the head's.

    Attributes:
        method: its name.
        taps: target layers whose states the head fuses.
        head: what is trained.
        rate: the learning rate that suits it.
        steps: how many tokens ahead it is trained for, if nobody says.
    """

    method: str
    rate: float
    steps: int
    taps: tuple[int, ...]
    head: DraftHead

    @abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """What a batch costs, slot by slot."""

    @abstractmethod
    def drafter(self, target: Target) -> Drafter:
        """The head as it stands, drafting."""

    def settle(self, batches: Iterable[Batch]) -> None:
        """Before the head is written: find out on held-out texts what its configuration says of it."""

    def forward(self, batch: Batch) -> Losses:
        """`losses`, for wrappers that gather gradients."""
        return self.losses(batch)

    @property
    def shape(self) -> dict[str, Any]:
        """The head's sizes, for config.json."""
        return asdict(self.head.shape)  # type: ignore[call-overload, no-any-return]


def ahead(tensor: Tensor, by: int) -> Tensor:
    """[B, N, ...] moved forward in the text: slot t holds what was at t + by; behind the end zeros."""
    moved = torch.zeros_like(tensor)
    if by < tensor.shape[1]:
        moved[:, : tensor.shape[1] - by] = tensor[:, by:]
    return moved


def soft_loss(logits: Tensor, last: Tensor, output: TargetOutput) -> tuple[Tensor, Tensor]:
    """Cross-entropy against the target's law restricted to the draft vocabulary.

    Args:
        logits: [M, n] of the head.
        last: [M, D] the target's states from which it predicts the same tokens.
        output: the target's output layer over the draft vocabulary.

    Returns:
        [M] losses in nats, and [M] bool, whether both find the same token likeliest.
    """
    with torch.no_grad():
        law = output(last).float().softmax(-1)
    return -(law * logits.float().log_softmax(-1)).sum(-1), logits.argmax(-1) == law.argmax(-1)


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
