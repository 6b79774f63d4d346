"""Transformers' own decoding of a model, which Outrider's output is held against. Knows nothing of Outrider's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .divergence import LogitsOf


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
