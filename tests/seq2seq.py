"""Tiny random encoder-decoder models for text, and drafts that share their encoder."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

VOCABULARY = 97
_SIZES: dict[str, Any] = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,  # tied and random, a decoder repeats one token
}


def bart(**options: Any) -> Any:
    """A BART."""
    settings = {**_SIZES, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    return _filled(transformers.BartForConditionalGeneration(transformers.BartConfig(**{**settings, **options})))


def t5(**options: Any) -> Any:
    """A T5."""
    settings = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 3, "num_heads": 4}
    special = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}
    return _filled(transformers.T5ForConditionalGeneration(transformers.T5Config(**{**settings, **special, **options})))


def distilled(model: Any, seed: int = 9) -> Any:
    """The same encoder, and a decoder that has drifted a little: random models do not survive the loss of a layer."""
    small = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in small.named_parameters():
        if "decoder.layers" in name and parameter.dim() > 1:
            parameter.data += 0.004 * torch.randn(parameter.shape, generator=generator)
    return small


def _filled(model: Any) -> Any:
    torch.manual_seed(3)
    for name, parameter in model.eval().named_parameters():
        if "norm" not in name:
            parameter.data.normal_(0, 0.3 if "relative" in name else 0.15)
    return model
