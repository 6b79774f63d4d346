"""How far rounding moves a model's logits at one place: measured, by computing them in several ways.

A sum depends on the order in which it is made, and kernels choose the order by how much they are given at once. So the
same text is read again in passes of other widths, one token at a time, and in company, all of which mean the same. By
the largest difference that any logit shows every logit may be off, in plain decoding as in speculation, so two of them
may approach each other by twice that. Knows no requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..kv import KVCache
from ..target import Encoder, Target, prefill
from ..types import Source, Tree

LogitsOf = Callable[[Sequence[int]], Tensor]
"""Ids of a whole text -> [V], the model's own logits of the token after it."""

_APPROACH = 2  # of two logits, each may be off by what was measured
_TAIL = 32  # tokens at the end of a text that are read anew in narrow passes
_WIDTHS = (1, 4, 8)  # plain decoding, and drafts of 3 and 7 tokens
_COMPANY = 4  # rows


def moved(first: Tensor, others: Sequence[Tensor]) -> float:
    """The largest difference of any logit between the first way and another; 0 if there is no other.

    Args:
        first: [V] logits.
        others: [V] each, of the same place.
    """
    wide = first.double()
    return max((float((other.double() - wide).abs().max()) for other in others), default=0.0)


def left_open(logit: float, by: float, dtype: torch.dtype) -> float:
    """How much two logits may move against each other for rounding alone.

    At least by one rounding of each, for ways that agree by chance say nothing; and not at all beyond that where the
    ways disagree by more than half of the digits, which no rounding explains: then the model computes something else.

    Args:
        logit: the likeliest token's.
        by: see `moved`.
        dtype: of the weights.
    """
    height = 2.0 ** math.floor(math.log2(max(abs(logit), 1e-30)))
    precision = torch.finfo(dtype).eps
    least = _APPROACH * precision * height
    return max(least, _APPROACH * by) if by <= math.sqrt(precision) * height else least


def plain_logits(target: Target, source: Source | None = None) -> LogitsOf:
    """A target's own logits by a pass over the last token alone, the others in its cache.

    Args:
        target: the model.
        source: what it has read, if it is an encoder-decoder model.
    """
    return _passes_of(target, 1, 1, source)


def other_logits(target: Target, source: Source | None = None) -> tuple[LogitsOf, ...]:
    """The same in other ways, see the module: whole, in narrow passes from a little before the end, and in company."""

    def together(ids: Sequence[int]) -> Tensor:
        cache = _cache(target, _COMPANY, len(ids), source)
        if ids[:-1]:
            target.forward([Tree.chain(ids[:-1])] * _COMPANY, cache, last_only=True)
            cache.keep([range(len(ids) - 1)] * _COMPANY)
        return target.forward([Tree.chain(ids[-1:])] * _COMPANY, cache)[0].logits[-1]

    whole = _passes_of(target, 1 << 30, 1 << 30, source)
    return (whole, *(_passes_of(target, width, _TAIL, source) for width in _WIDTHS), together)


def _passes_of(target: Target, width: int, tail: int, source: Source | None = None) -> LogitsOf:
    """Logits by passes over so many tokens each, behind all but a tail, which are read at once."""

    def logits_of(ids: Sequence[int]) -> Tensor:
        cache, here = _cache(target, 1, len(ids), source), max(0, len(ids) - tail)
        prefill(target, ids[:here], cache)
        while True:
            part = ids[here : here + width]
            (scores,) = target.forward([Tree.chain(part)], cache, last_only=True)
            cache.keep([range(len(part))])
            here += len(part)
            if here == len(ids):
                return scores.logits[-1]

    return logits_of


def _cache(target: Target, rows: int, tokens: int, source: Source | None) -> KVCache:
    """An empty one, with what an encoder has read."""
    cache = target.new_cache(rows, tokens)
    if source is not None and isinstance(target, Encoder):
        cache.encoded = [target.encode(source)] * rows
    return cache
