"""A multi-token-prediction layer as MiMo publishes it: SGLang's `mimo_mtp` computes a layer like ours.

In MiMo's checkpoints it lies beside the model, as `model.mtp_layers.0`; here it lies with embedding and output layer
alone. vLLM 0.32 builds the layer from the target's configuration (`vllm_config.model_config`), which for other targets
than MiMo lacks its keys and has other rotary positions. It differs from ours in names and in what comes first: the
state and then the embedding go into `input_proj`. The layer is Qwen 2's, so queries, keys and values have biases, of
zeros where `attention_bias` is false. DeepSeek-V3's layout is `drafters/mtp_files.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..checkpoints import Checkpoint
from ..errors import UnsupportedModel
from .base import Layout, Reading, Serving, View, Writing
from .eagle3 import expect_shape, take_embedding
from .folder import Found
from .keys import Keys, strange
from .llama import HARMLESS, block_keys, take_block

_ARCHITECTURE = "MiMoForCausalLM"
_START, _TABLE, _HEAD = "model.mtp_layers.0.", "model.embed_tokens.weight", "lm_head.weight"
_OURS = {
    "token_layernorm.": "depth.enorm.",
    "hidden_layernorm.": "depth.hnorm.",
    "final_layernorm.": "depth.norm.",
    "input_proj.": "depth.eh_proj.",
}
_BLOCK, _JOINT = "depth.block.", "depth.eh_proj.weight"
_BIASES = tuple(f"{_BLOCK}self_attn.{name}_proj.bias" for name in "qkv")


class Mtp(Layout):
    """One layer, recursed."""

    name, methods = "mtp", ("mtp",)
    says_ids, unsaid = False, ("vocabulary",)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`."""
        return _ARCHITECTURE in (config.get("architectures") or ())

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`."""
        _check_scale(view.scaled)
        keys = Keys(found.config, found.where)
        keys.expect("model_type", "qwen2", "mimo")
        keys.size("num_hidden_layers")  # of the target that it lies beside
        keys.expect("num_nextn_predict_layers", 1)
        keys.expect("vocab_size", view.id.vocabulary)
        width = keys.size("hidden_size")
        if width != view.id.width:
            raise keys.strange("hidden_size", f"is {width}", f"{view.id.width}, the width of this target,")
        block = take_block(keys, width)
        block["qkv_bias"] = block["qkv_bias"] or "attention_bias" not in found.config
        keys.finish(HARMLESS)
        expect_shape(found, found.tensors, _their_name(_JOINT), (width, 2 * width))
        tensors = {_our_name(name, found): tensor for name, tensor in found.tensors.items()}
        whole = torch.arange(view.id.vocabulary)
        head = tensors.pop(_HEAD, None)
        if head is not None and not (head.shape == (len(whole), width) and view.answers(head, whole)):
            raise strange(found.folder, _HEAD, "is not the target's", "the target's own or none")
        if take_embedding(found, tensors, view, width):
            raise strange(found.folder, _TABLE, "is not the target's", "the target's own or none")
        tensors[_JOINT] = _swapped(tensors[_JOINT])
        if not block["qkv_bias"]:
            _drop_biases(tensors, found)
        shape = {"block": block, "vocabulary": len(whole), "joined": "embedding, state"}
        why = "It sees the target's last states, and the target's whole output layer reads its own."
        return Reading("mtp", (view.id.depth,), shape, tensors, whole, (why,))

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`; embedding and output layer are the target's, without which engines load no such folder."""
        _check_scale(serving.scaled)
        manifest, block = checkpoint.manifest, checkpoint.manifest.shape["block"]
        if block["heads"] * block["head_size"] != block["width"]:
            raise UnsupportedModel(
                f"The layout's layer has heads of width {block['width']} / {block['heads']}, and this one has heads of "
                f"{block['head_size']}: train eagle3, whose layout says how wide they are."
            )
        config = {
            "architectures": [_ARCHITECTURE],
            **block_keys(checkpoint, block, serving.positions),
            "model_type": "qwen2",
            "num_hidden_layers": manifest.target.depth,
            "num_nextn_predict_layers": 1,
        }
        tensors = {_their_name(name): tensor for name, tensor in checkpoint.tensors.items()}
        tensors[_their_name(_JOINT)] = _swapped(checkpoint.tensors[_JOINT])
        for name in _BIASES:
            like = checkpoint.tensors[name.replace(".bias", ".weight")]
            tensors.setdefault(_their_name(name), like.new_zeros(len(like)))
        head = serving.rows(torch.arange(manifest.target.vocabulary))
        tensors |= {_TABLE: _narrowed(serving.table()), _HEAD: _narrowed(head)}
        notes = ["Engines leave the embedding out at a text's first position: its first draft may differ from ours."]
        if len(checkpoint.ids) < manifest.target.vocabulary:
            notes.append("The layout has no draft vocabulary: engines draft from all of the target's tokens.")
        return Writing(config, tensors, tuple(notes))


def _check_scale(scaled: bool) -> None:
    if scaled:
        raise UnsupportedModel(
            "This target scales its embeddings, and engines hand multi-token-prediction layers unscaled ones: use "
            "eagle3."
        )


def _our_name(name: str, found: Found) -> str:
    if name in (_TABLE, _HEAD):
        return name.removeprefix("model.")
    if not name.startswith(_START):
        raise strange(found.folder, name, "is there", f"{_START}*, {_TABLE} and {_HEAD} alone")
    inside = name.removeprefix(_START)
    for theirs, ours in _OURS.items():
        if inside.startswith(theirs):
            return ours + inside.removeprefix(theirs)
    return _BLOCK + inside


def _their_name(name: str) -> str:
    for theirs, ours in _OURS.items():
        if name.startswith(ours):
            return _START + theirs + name.removeprefix(ours)
    return _START + name.removeprefix(_BLOCK)


def _narrowed(table: Tensor) -> Tensor:
    """In half the bytes, where those hold all that it says."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(table.to(dtype).float(), table):
            return table.to(dtype)
    return table


def _swapped(joint: Tensor) -> Tensor:
    """The halves of its inputs, the other way round."""
    first, second = joint.chunk(2, 1)
    return torch.cat([second, first], 1)


def _drop_biases(tensors: dict[str, Tensor], found: Found) -> None:
    """Take biases out that are none.

    Raises:
        UnsupportedModel: they are some, which the config denies.
    """
    for name in _BIASES:
        bias = tensors.pop(name, None)
        if bias is not None and bool(bias.any()):
            raise strange(found.where, "attention_bias", "is false", f"true, as {_their_name(name)} is not zero,")
