"""How likely a target finds an answer: one pass over all of it, when no clock runs. Knows no drafters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..target import Encoder, Target, prefill
from ..types import Source, Tree


@torch.no_grad()
def perplexity(target: Target, prompt: Sequence[int], ids: Sequence[int], source: Source | None = None) -> float:
    """The exponential of the mean surprise (negative log-likelihood at temperature 1) at the tokens of an answer.

    Args:
        target: that judges.
        prompt: ids before the answer, at least one.
        ids: of the answer, at least one.
        source: what an encoder-decoder model has read.
    """
    cache = target.new_cache(1, len(prompt) + len(ids))
    if source is not None and isinstance(target, Encoder):
        cache.encoded = [target.encode(source)]
    prefill(target, prompt[:-1], cache)
    (scores,) = target.forward([Tree.chain([prompt[-1], *ids[:-1]])], cache)
    laws = scores.logits.float().log_softmax(-1)
    surprise = -laws[torch.arange(len(ids)), torch.tensor(ids, device=laws.device)]
    return math.exp(float(surprise.double().mean()))
