"""Tiny random models of many families, built from their configurations in a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCABULARY = 100
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
# Tied and random, these would repeat one token.
_GEMMA = {"sliding_window": 8, "layer_types": _WINDOWS, "tie_word_embeddings": False}
_OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32, "tie_word_embeddings": False}
_DEEPSEEK = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

# name -> (configuration class, what differs from _COMMON). Windows are far shorter than the texts of the tests.
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama tied": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, **_GEMMA}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, **_GEMMA}),
    "cohere2": ("Cohere2Config", {"sliding_window": 8, "layer_types": _WINDOWS}),
    "phi": ("PhiConfig", {"num_key_value_heads": 4}),
    "opt": ("OPTConfig", _OPT),
    "neox": ("GPTNeoXConfig", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "phi3": ("Phi3Config", {}),
    "deepseek3": ("DeepseekV3Config", _DEEPSEEK),
}
NAMES = ["gpt2", *_FAMILIES]


def gpt2(context: int = 160, **options: Any) -> Any:
    """A GPT-2 with learned positions, as many as its context."""
    settings = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": context, "eos_token_id": None, **options}
    return build(transformers.GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, **settings))


def make(name: str, **options: Any) -> Any:
    """A model of that family in float32, with weights large enough that its texts do not stand still."""
    if name == "gpt2":
        return gpt2(**options)
    kind, special = _FAMILIES[name]
    return build(getattr(transformers, kind)(**{**_COMMON, **special, **options}))


def build(config: Any) -> Any:
    """A model with random weights from a configuration."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def prompts(*lengths: int, seed: int = 5) -> list[list[int]]:
    """Random prompts of these lengths, without the special ids; the second half of a long one repeats the first."""
    generator = torch.Generator().manual_seed(seed)

    def one(length: int) -> list[int]:
        half = torch.randint(3, VOCABULARY, (-(-length // 2),), generator=generator).tolist()
        return (half + half)[:length]

    return [one(length) for length in lengths]


def random_tree(nodes: int, seed: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of a tree that branches anywhere; siblings differ."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(VOCABULARY - 3, generator=generator)[:nodes].add(3).tolist()
    draw: Callable[[int], int] = lambda below: int(torch.randint(0, below, (), generator=generator))  # noqa: E731
    return tokens, [-1, *(draw(node) for node in range(1, nodes))]
