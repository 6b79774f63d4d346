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
_FEWEST = 8  # tokens to be looked at
_DRAWN = 0.25  # share of them that is drawn
_FADING = 3.0  # how soon the hybrid turns from cross-entropy to overlap (eta, 2602.23881)


@dataclass(frozen=True, slots=True)
class Aim:
    """What a head learns of the target's law.

    Attributes:
        loss: "kl", all of it, by cross-entropy; "lk", what acceptance depends on: the overlap, sum of min(p, q), which
            counts for the more the larger it is (the hybrid of LK Losses, Samarin et al., 2602.23881).
        law_temperature: of the law. Below 1 its likeliest tokens count for more, as they do where one decodes greedily.
        sampled: how many tokens of the draft vocabulary a step looks at; 0 for all. Most are those that its laws find
            likeliest, the others are drawn and stand for what is left out (sampled softmax, Jean et al., 1412.2007).
        off_greedy: for heads that do not see the tokens between: what counts a law behind a token that was not the
            likeliest one, against 1; behind two of them its square, and so on. Below 1, heads learn what comes where
            the target is followed, and not what sampling happened to write.

    Raises:
        BadOption: there is no such loss, the temperature is not above 0, too few tokens are looked at, or off_greedy
            is not a share.
    """

    loss: str = "kl"
    law_temperature: float = 1.0
    sampled: int = 0
    off_greedy: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise BadOption(f"There is no loss {self.loss!r}: choose {' or '.join(LOSSES)}.")
        if not self.law_temperature > 0:
            raise BadOption(f"law_temperature is {self.law_temperature}: it has to be above 0.")
        if self.sampled and self.sampled < _FEWEST:
            raise BadOption(
                f"sampled is {self.sampled}: it has to be {_FEWEST} or more, or 0 for the whole vocabulary."
            )
        if not 0 <= self.off_greedy <= 1:
            raise BadOption(f"off_greedy is {self.off_greedy}: it has to be from 0 to 1.")


_ALL = Aim()


@torch.no_grad()
def target_law(last: Tensor, output: TargetOutput, aim: Aim = _ALL) -> Tensor:
    """[M, n] the target's law over the draft vocabulary, from its states [M, D] and its output layer."""
    logits: Tensor = output(last).float() / aim.law_temperature
    return logits.softmax(-1)


class Laws:
    """The target's laws at the tokens that it wrote, computed once for all steps ahead.

    Attributes:
        sample: the tokens that are looked at, if they are not all.

    Args:
        batch: the texts.
        output: the target's output layer over the draft vocabulary.
        aim: for the temperature, and how many tokens are looked at.
        ids: [n] int64, the target's ids of the draft vocabulary, rising; asked for by `trust` alone.
    """

    def __init__(self, batch: Batch, output: TargetOutput, aim: Aim = _ALL, ids: Tensor | None = None) -> None:
        before = ahead(batch.answer, 1)  # slots at which it had one of these to predict
        self._laws = target_law(batch.last[before], output, aim)
        self._rows = (before.flatten().cumsum(0) - 1).view_as(before)
        self._weights = torch.ones(before.shape, device=self._laws.device)  # behind the token after each slot
        if ids is not None and aim.off_greedy < 1:
            strays = ids[self._laws.argmax(-1)] != ahead(batch.ids, 1)[before]
            self._weights[before] = torch.where(strays, aim.off_greedy, 1.0)
        self.sample: Sample | None = None
        if 0 < aim.sampled < self._laws.shape[1]:
            self.sample = Sample(self._laws, output, aim.sampled, batch.seed)
            self._laws = self._laws[:, self.sample.places]

    def __call__(self, counts: Tensor, by: int) -> Tensor:
        """[M, n] the laws `by` slots after those that `counts` [B, N] says."""
        return self._laws[ahead(self._rows, by)[counts]]

    def trust(self, step: int) -> Tensor:
        """[B, N] what the law 1 + `step` slots after each counts, for the tokens between: see `Aim.off_greedy`."""
        found = self._weights
        for by in range(1, 1 + step):
            found = found * ahead(self._weights, by)
        return found


class Sample:
    """Tokens of the draft vocabulary that a step looks at: the likeliest ones, and some that stand for the others.

    Attributes:
        places: [m] int64, which they are.
        weights: [m] how many tokens each stands for.
        logits: [M, D] states to their [M, m] logits, by the target's output layer.

    Args:
        laws: [M, n] what the target expects.
        output: its output layer for those n.
        size: m.
        seed: of what is drawn.
    """

    def __init__(self, laws: Tensor, output: TargetOutput, size: int, seed: int) -> None:
        drawn = max(1, round(_DRAWN * size))
        ranked = laws.sum(0).argsort(descending=True)
        likely, others = ranked[: size - drawn], ranked[size - drawn :]
        chance = torch.Generator().manual_seed(seed)
        some = others[torch.randperm(len(others), generator=chance)[:drawn].to(others.device)]
        self.places = torch.cat([likely, some])
        self.weights = torch.ones(len(self.places), device=laws.device)
        self.weights[len(likely) :] = len(others) / len(some)
        self.logits = output.part(self.places)


def soft_loss(logits: Tensor, law: Tensor, aim: Aim = _ALL, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What it costs to be far from the target's law restricted to the draft vocabulary.

    Args:
        logits: [M, n] of the head.
        law: [M, n] of the target, for the same tokens.
        aim: for the loss.
        weights: [n] how many tokens each stands for; one if not given.

    Returns:
        [M] losses, in nats where they are cross-entropies, and [M] bool, whether both find the same token likeliest.
    """
    logits = logits.float()
    if weights is None:
        own, weighed = logits.log_softmax(-1), law
    else:
        own, weighed = logits - (logits + weights.log()).logsumexp(-1, keepdim=True), law * weights
    costs = -(weighed * own).sum(-1)
    if aim.loss == "lk":
        least = torch.minimum(law, own.exp())
        overlap = (least if weights is None else least * weights).sum(-1)
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


def law_ahead(batch: Batch, logits: Logits, output: TargetOutput, aim: Aim = _ALL, ids: Tensor | None = None) -> Loss:
    """What a step ahead costs against the target's law: step k at slot t predicts token t + 2 + k.

    Args:
        batch: the texts.
        logits: the head's, of its states; where not all tokens are looked at, they have to be what `output` makes.
        output: the target's output layer over the draft vocabulary.
        aim: for temperature and loss, and how many tokens are looked at.
        ids: [n] the draft vocabulary, of heads that do not see the tokens between.
    """
    laws = Laws(batch, output, aim, ids)
    read, weights = (logits, None) if laws.sample is None else (laws.sample.logits, laws.sample.weights)

    def loss(states: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
        costs, same = soft_loss(read(states), laws(counts, 1 + step), aim, weights)
        return (costs, same) if aim.off_greedy == 1 else (costs * laws.trust(step)[counts], same)

    return loss


def text_ahead(batch: Batch, logits: Logits, ids: Tensor) -> Loss:
    """The same against the text's own token.

    Args:
        batch, logits: as above.
        ids: [n] the draft vocabulary.
    """
    return lambda states, step, counts: hard_loss(logits(states), ahead(batch.ids, 2 + step)[counts], ids)
