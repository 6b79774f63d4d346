"""Training-time test (EAGLE-3, 2503.01840): a head is trained on the states that it will meet while it drafts.

Step k feeds each slot its own output of step k - 1, together with the text's own token k + 1 further on. Attention is
what drafting has: the keys of the first step before and at the slot, and of later steps the slot's own only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..features import Embed
from ..heads.recurrent import RecurrentHead
from .corpus import Batch
from .recipe import Losses, ahead


class Unrolled:
    """`heads.blocks.Attends` over a whole text, called by each layer once for each step."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # by layer

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `heads.blocks.Attends`."""
        groups = query.shape[1] // key.shape[1]
        self._steps[layer].append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
        (keys, values), *later = self._steps[layer]
        if not later:
            return scaled_dot_product_attention(query, keys, values, is_causal=True).transpose(1, 2)
        size = query.shape[2]
        unseen = torch.ones(size, size, dtype=torch.bool, device=query.device).triu(1)
        text = (query @ keys.transpose(-1, -2)).masked_fill(unseen, -math.inf)
        own = torch.stack([(query * k).sum(-1) for k, _ in later], -1)
        weights = (
            (torch.cat([text, own], -1) * query.shape[-1] ** -0.5).softmax(-1, dtype=torch.float32).to(query.dtype)
        )
        out: Tensor = weights[..., :size] @ values
        for place, (_, v) in enumerate(later):
            out = out + weights[..., size + place, None] * v
        return out.transpose(1, 2)


def unroll(head: RecurrentHead, embed: Embed, batch: Batch, states: Tensor, steps: int) -> Iterator[Tensor]:
    """[B, N, D] what the head gives at each slot, step by step.

    Args:
        head: at work.
        embed: the target's.
        batch: the texts.
        states: [B, N, D] what goes in at the first step.
        steps: how many.
    """
    attend = Unrolled()
    slots = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
    for step in range(steps):
        embedded = embed(ahead(batch.ids, 1 + step)).to(states.device, states.dtype)
        states = head(embedded, states, (slots + step).expand(len(batch.ids), -1), attend)
        yield states


def collect(
    outputs: Iterator[Tensor],
    batch: Batch,
    decay: float,
    loss: Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]],
    slots: Tensor | None = None,
    lead: int = 2,
) -> Losses:
    """The losses of steps ahead.

    Args:
        outputs: [B, N, D] of each step, from `unroll` for example.
        batch: the texts; step k at slot t predicts token t + lead + k, and counts where the target wrote that one.
        decay: the weight of a step against that of the one before.
        loss: ([M, D] outputs at slots that count, step, [B, N] bool which) -> [M] losses, [M] bool agreement.
        slots: [B, N] bool, those that count; all if not given.
        lead: see `batch`.
    """
    each, valid, agreed = [], [], []
    for step, states in enumerate(outputs):
        counts = ahead(batch.answer, lead + step)
        if slots is not None:
            counts = counts & slots
        costs, same = loss(states[counts], step, counts)
        each.append(torch.zeros(counts.shape, device=costs.device).masked_scatter(counts, costs.float()))
        valid.append(counts)
        agreed.append(same.float().mean() if len(same) else torch.zeros((), device=costs.device))
    weights = torch.tensor([decay**step for step in range(len(each))], device=each[0].device)
    return Losses(torch.stack(each), torch.stack(valid), torch.stack(agreed), weights)
