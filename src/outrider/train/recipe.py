"""What a method of training is: a head, the states it wants, a loss, and the drafter that it becomes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..drafters import Drafter
from ..heads.base import DraftHead, TargetOutput
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


@torch.no_grad()
def law_of(last: Tensor, output: TargetOutput) -> Tensor:
    """[M, n] the target's law over the draft vocabulary, from its states [M, D] and its output layer."""
    logits: Tensor = output(last).float()
    return logits.softmax(-1)


class Laws:
    """The target's laws at the tokens that it wrote, computed once for all steps ahead.

    Args:
        batch: the texts.
        output: the target's output layer over the draft vocabulary.
    """

    def __init__(self, batch: Batch, output: TargetOutput) -> None:
        before = ahead(batch.answer, 1)  # slots at which it had one of these to predict
        self._laws = law_of(batch.last[before], output)
        self._rows = (before.flatten().cumsum(0) - 1).view_as(before)

    def __call__(self, counts: Tensor, by: int) -> Tensor:
        """[M, n] the laws `by` slots after those that `counts` [B, N] says."""
        return self._laws[ahead(self._rows, by)[counts]]


def soft_loss(logits: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy against the target's law restricted to the draft vocabulary.

    Args:
        logits: [M, n] of the head.
        law: [M, n] of the target, for the same tokens.

    Returns:
        [M] losses in nats, and [M] bool, whether both find the same token likeliest.
    """
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
