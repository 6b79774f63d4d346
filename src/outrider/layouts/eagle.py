"""EAGLE as published (SafeAILab; vLLM's `EagleLlamaForCausalLM`, SGLang's `LlamaForCausalLMEagle`).

The layouts have no draft vocabulary: engines read the head's states with the target's whole output layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoints import Checkpoint
from ..errors import UnsupportedModel
from .base import Layout, Reading, Serving, View, Writing
from .eagle3 import expect_shape, take_embedding
from .folder import Found
from .keys import Keys, strange
from .llama import HARMLESS, block_keys, take_block

_NAMES = {"vllm": "EagleLlamaForCausalLM", "sglang": "LlamaForCausalLMEagle"}
_FAMILIES = ("llama", "mistral", "qwen2")  # whose layers differ in nothing but the bias of queries, keys and values


class Eagle(Layout):
    """A head of one layer over the target's last states."""

    name, methods = "eagle", ("eagle",)
    says_ids, unsaid, engines = False, ("vocabulary",), ("vllm", "sglang")

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`; the method's own repository writes the target's architecture."""
        named = set(config.get("architectures") or ())
        plain = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}
        return bool(named & {*_NAMES.values(), *plain}) and "draft_vocab_size" not in config

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`."""
        if view.scaled:
            raise strange(
                found.folder,
                "embed_tokens",
                "is scaled in this target",
                "a target that embeds with its table as it is,",
            )
        keys = Keys(found.config, found.where)
        keys.expect("model_type", *_FAMILIES)
        layers = keys.size("num_hidden_layers", 1)
        keys.expect("vocab_size", view.id.vocabulary)
        width = keys.size("hidden_size")
        if width != view.id.width:
            raise keys.strange("hidden_size", f"is {width}", f"{view.id.width}, the width of this target,")
        tensors = dict(found.tensors)
        expect_shape(found, tensors, "fc.weight", (width, 2 * width))
        bias = "fc.bias" in tensors
        keys.expect("bias", bias)
        head = tensors.pop("lm_head.weight", None)
        whole = torch.arange(view.id.vocabulary)
        if head is not None and not (head.shape == (len(whole), width) and view.answers(head, whole)):
            raise strange(found.folder, "lm_head.weight", "is not the target's", "the target's own or none")
        embedding = take_embedding(found, tensors, view, width)
        block = take_block(keys, width)
        keys.finish(HARMLESS)
        shape = {
            "block": block,
            "vocabulary": len(whole),
            "layers": layers,
            "cell": "transformer",
            "bias": bias,
            "embedding": embedding,
        }
        why = "It sees the target's last states, and the target's whole output layer reads its own."
        return Reading("eagle", (view.id.depth,), shape, tensors, whole, (why,))

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`."""
        if serving.scaled:
            raise UnsupportedModel(
                "This target scales its embeddings, and engines hand EAGLE heads unscaled ones: train eagle3, whose "
                "head norms them."
            )
        shape, manifest = checkpoint.manifest.shape, checkpoint.manifest
        if shape.get("cell", "transformer") != "transformer":
            raise UnsupportedModel(f"No published layout has a cell like {shape['cell']!r}: it runs here alone.")
        bias = shape.get("bias", True)
        config = {
            "architectures": [_NAMES[serving.engine]],
            **block_keys(checkpoint, shape["block"], serving.positions),
            "num_hidden_layers": shape.get("layers", 1),
            "bias": bias,
        }
        notes = []
        if bias and serving.engine == "vllm":
            notes.append(
                "Its fc has a bias, which vLLM refuses and SGLang takes: train with bias = false for vLLM, or use "
                "eagle3."
            )
        if len(checkpoint.ids) < manifest.target.vocabulary:
            notes.append("The layout has no draft vocabulary: engines draft from all of the target's tokens.")
        return Writing(config, dict(checkpoint.tensors), tuple(notes))
