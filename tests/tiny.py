"""A tiny random model in a folder, with a tokenizer, for commands that take a model by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers


def save(folder: Path, tokenizer: Any, **options: Any) -> Path:
    """A Llama of two layers that knows the tokenizer's vocabulary, with weights large enough that its texts move."""
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        **options,
    }
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**settings), dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
