"""A decoder layer of the Llama family in a published config: sizes, positions, and what has to be as it always is."""

from __future__ import annotations

from typing import Any

from ..checkpoints import Checkpoint
from .keys import Keys

HARMLESS = ("sliding_window", "target_vocab_size")


def take_block(keys: Keys, width: int) -> dict[str, Any]:
    """The shape of a layer (`heads.blocks.BlockShape`), but for what the tensors say.

    Raises:
        UnsupportedModel: it is none that we have.
    """
    heads = keys.size("num_attention_heads")
    theta, scaling = _positions(keys)
    block = {
        "width": width,
        "heads": heads,
        "kv_heads": keys.size("num_key_value_heads", heads),
        "head_size": keys.size("head_dim", width // heads),
        "intermediate": keys.size("intermediate_size"),
        "rope_theta": theta,
        "eps": keys.take("rms_norm_eps", float),
        "qkv_bias": keys.take("attention_bias", bool, False) or keys.take("qkv_bias", bool, False),
        "rope_scaling": scaling,
    }
    keys.expect("hidden_act", "silu")
    keys.expect("mlp_bias", False)
    keys.expect("tie_word_embeddings", False)
    keys.expect("partial_rotary_factor", 1.0)
    kinds = keys.take("layer_types", list, [])
    if any(kind != "full_attention" for kind in kinds) or keys.take("use_sliding_window", bool, False):
        raise keys.strange("layer_types", "has a window", "'full_attention' for every layer")
    return block


def _positions(keys: Keys) -> tuple[float, dict[str, Any] | None]:
    """Base and stretching of rotary positions, as Transformers 4 (`rope_theta`, `rope_scaling`) or 5 writes them."""
    old, new = keys.take("rope_scaling", dict, {}), dict(keys.take("rope_parameters", dict, {}))
    theta, inside = keys.take("rope_theta", float, None), new.pop("rope_theta", None)
    if theta is None and inside is None:
        raise keys.strange("rope_theta", "is missing", "a number")
    if theta is not None and inside is not None and theta != inside:
        raise keys.strange("rope_parameters", f"has the rope_theta {inside}", f"{theta} as in rope_theta")
    scaling = {name: value for name, value in {**old, **new}.items() if value is not None}
    kind = scaling.pop("type", None)
    scaling.setdefault("rope_type", kind or "default")
    if scaling["rope_type"] == "default":
        return float(inside if theta is None else theta), None
    if scaling["rope_type"] not in ("linear", "llama3", "yarn"):
        raise keys.strange(
            "rope_scaling", f"is of the kind {scaling['rope_type']!r}", "default, linear, llama3 or yarn"
        )
    return float(inside if theta is None else theta), scaling


def block_keys(checkpoint: Checkpoint, block: dict[str, Any], positions: int) -> dict[str, Any]:
    """The keys of a layer, with those that every reader wants to see.

    Args:
        checkpoint: for its vocabulary and the type of its weights.
        block: its shape.
        positions: longest context of the target, whose positions a drafter shares.
    """
    theta, scaling = block["rope_theta"], block.get("rope_scaling")
    parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.tensors.values()}
    return {
        "model_type": "llama",
        "hidden_size": block["width"],
        "num_hidden_layers": 1,
        "num_attention_heads": block["heads"],
        "num_key_value_heads": block["kv_heads"],
        "head_dim": block["head_size"],
        "intermediate_size": block["intermediate"],
        "rms_norm_eps": block["eps"],
        "hidden_act": "silu",
        "attention_bias": block.get("qkv_bias", False),
        "mlp_bias": False,
        "max_position_embeddings": positions,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": parameters,
        "tie_word_embeddings": False,
        "vocab_size": checkpoint.manifest.target.vocabulary,
        "torch_dtype": kinds.pop() if len(kinds) == 1 else "float32",
    }
