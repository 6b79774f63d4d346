"""What a method of training is: a head, the states it wants, a loss, and the drafter that it becomes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..drafters import Drafter
from ..heads.base import DraftHead
from ..target import Target
from .corpus import Batch
from .generation import Loop


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


def _unasked(*_: Any) -> Any:
    raise AssertionError("this method was said to need neither a model nor a loop")


@dataclass(frozen=True, slots=True)
class Material:
    """What a method starts from.

    Attributes:
        target: frozen.
        ids: [n] int64, the draft vocabulary.
        steps: how many tokens ahead are trained, where the method has a choice.
        options: the method's own, from the command line or --config.
        spare: an id that texts do not have, to stand for a token that is not known.
        model: reads the target once more, as Transformers has it, in float32, for methods that train a model.
        loop: the decode loop over a target, without drafts.
    """

    target: Target
    ids: Tensor
    steps: int
    options: dict[str, Any]
    spare: int = 0
    model: Callable[[], Any] = _unasked
    loop: Callable[[Target], Loop] = _unasked

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
        kind: the drafter's name in specs; empty where it is the method's.
        lead: at slot t the first step predicts token t + lead.
        chooses_steps, reduces: `steps` and a draft vocabulary mean something to it.
        changes: the target is trained too, and its output is another afterwards.
        parts: its weights can be parted among processes (FSDP).
        resizes: of its shape, what a drafter that it goes on from may have other values of: what is added begins as the
            identity, and what is left out is dropped; another draft vocabulary is other rows of the target's output.
        share: of the slots of its texts, what a step learns at; below 1 only where each is looked at by itself.
    """

    method: str
    rate: float
    steps: int
    taps: tuple[int, ...]
    head: DraftHead
    kind: str = ""
    lead: int = 2
    chooses_steps: bool = True
    reduces: bool = True
    changes: bool = False
    parts: bool = True
    resizes: frozenset[str] = frozenset()
    share: float = 1.0

    @abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """What a batch costs, slot by slot."""

    @abstractmethod
    def drafter(self, target: Target) -> Drafter:
        """The head as it stands, drafting."""

    def served(self, target: Target) -> Target:
        """The target that the drafter is for: this one, which it was trained on, unless the method changes it."""
        return target

    def use(self, out: str, target: str) -> tuple[str, str]:
        """What `--target` and `--drafter` have to be to use what was written to the folder `out`."""
        return target, f"{self.kind or self.method}:{out}"

    def facts(self) -> dict[str, Any]:
        """What else its card should say, after `settle`."""
        return {}

    def fill(self, work: Path, checkpoint: Checkpoint, card: str, tokenizer: Any) -> None:
        """Write what was trained into an empty folder."""
        checkpoints.fill(work, checkpoint, card)

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
