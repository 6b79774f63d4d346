"""Transformers' own decoding of a model, which Outrider's output is held against. Knows nothing of Outrider's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rounding import LogitsOf

_MORE, _COMPANY = 7, 4  # tokens behind the text, and rows


@torch.no_grad()
def transformers_ids(model: Any, prompt: Sequence[int], max_new_tokens: int, processors: Any = None) -> list[int]:
    """What Transformers' own `generate` writes greedily after a prompt, alone and without padding; what an
    encoder-decoder model writes when it has read it.

    Args:
        model: a `PreTrainedModel`, with whatever attention it has.
        prompt: ids.
        max_new_tokens: at most so many.
        processors: a `LogitsProcessorList`, or None.
    """
    from transformers import GenerationConfig

    ids = torch.tensor([list(prompt)], device=model.device)
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=model.generation_config.pad_token_id or 0,
    )
    options = {"logits_processor": processors} if processors is not None else {}
    if model.config.is_encoder_decoder:  # whose own configuration forces and suppresses tokens
        out = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, **options)
        return [int(token) for token in out[0, 1:]]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings, **options)
    return [int(token) for token in out[0, len(prompt) :]]


def transformers_logits(model: Any) -> LogitsOf:
    """The model's own logits by one plain pass over a whole text, in its own precision and with its own attention."""

    @torch.no_grad()
    def logits_of(ids: Sequence[int]) -> Tensor:
        batch = torch.tensor([list(ids)], device=model.device)
        logits: Tensor = model(batch, attention_mask=torch.ones_like(batch), use_cache=False).logits[0, -1]
        return logits

    return logits_of


def transformers_again(model: Any) -> tuple[LogitsOf, ...]:
    """The same in other ways: as `generate` computes it, in a pass over the last token; with more text behind it, which
    it cannot see; and in company."""
    whole = transformers_logits(model)

    @torch.no_grad()
    def as_generated(ids: Sequence[int]) -> Tensor:
        from transformers import GenerationConfig, LogitsProcessorList

        *before, last = ids
        if not before:
            return whole(ids)
        batch = torch.tensor([before], device=model.device)
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=2,
            pad_token_id=model.generation_config.pad_token_id or 0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        forced = LogitsProcessorList([_Forced(len(before), last)])
        out = model.generate(
            batch, attention_mask=torch.ones_like(batch), generation_config=settings, logits_processor=forced
        )
        return out.logits[1][0] if len(out.logits) > 1 else whole(ids)  # the text has an end of sequence there

    @torch.no_grad()
    def with_more(ids: Sequence[int]) -> Tensor:
        batch = torch.tensor([[*ids, *list(ids[-1:]) * _MORE]], device=model.device)
        logits: Tensor = model(batch, use_cache=False).logits[0, len(ids) - 1]
        return logits

    @torch.no_grad()
    def together(ids: Sequence[int]) -> Tensor:
        batch = torch.tensor([list(ids)] * _COMPANY, device=model.device)
        logits: Tensor = model(batch, use_cache=False).logits[0, -1]
        return logits

    return as_generated, with_more, together


class _Forced:
    """A processor of Transformers' kind that has one token written at one place.

    Args:
        place: number of tokens before it.
        token: its id.
    """

    def __init__(self, place: int, token: int) -> None:
        self._place, self._token = place, token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `transformers.LogitsProcessor`."""
        if input_ids.shape[1] != self._place:
            return scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._token] = 0
        return forced
