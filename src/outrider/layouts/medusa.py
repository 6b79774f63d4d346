"""Medusa as published: vLLM's layout, and the first one of the method's own repository.

vLLM: `blocks.{head}.layers.{layer}`, `lm_heads.{head}` or one `lm_head` (`original_lm_head`), `token_map` for a reduced
vocabulary. The first one: `{head}.{layer}.linear`, then `{head}.{layers}` for the output layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..checkpoints import Checkpoint, is_part
from ..errors import UnsupportedModel
from .base import Layout, Reading, Serving, View, Writing
from .folder import Found
from .keys import Keys, strange

_HARMLESS = ("max_paths", "topk", "max_seq_len", "medusa_choices")
_BIAS = re.compile(r"blocks\.\d+\.layers\.\d+\.bias")


class Medusa(Layout):
    """Heads that look ahead each by itself."""

    name, methods, unsaid = "medusa", ("medusa",), ("ranks",)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`."""
        named = config.get("architectures") or ()
        return config.get("model_type") == "medusa" or "MedusaModel" in named or "medusa_num_heads" in config

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`."""
        keys = Keys(found.config, found.where)
        keys.expect("model_type", "medusa")
        keys.expect("hidden_size", view.id.width)
        keys.expect("vocab_size", view.id.vocabulary)
        tensors = {_renamed(name): tensor for name, tensor in found.tensors.items()}
        heads, layers = _counts(keys, found, tensors)
        ids = _take_ids(keys, found, tensors, view)
        outputs = _take_outputs(keys, found, tensors, view, heads, ids)
        bias = any(_BIAS.fullmatch(name) for name in tensors)
        keys.expect("medusa_fc_bias", bias)
        keys.expect("logit_scale", 1.0)
        keys.finish(_HARMLESS)
        shape = {
            "width": view.id.width,
            "heads": heads,
            "layers": layers,
            "vocabulary": len(ids),
            "bias": bias,
            "outputs": outputs,
        }
        whose = {0: "the target's output layer", 1: "an output layer of their own"}.get(
            outputs, "one each of their own"
        )
        why = f"{heads} heads see the target's last state and are read by {whose}."
        return Reading("medusa", (view.id.depth,), shape, tensors, ids, (why,))

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`."""
        shape, manifest = checkpoint.manifest.shape, checkpoint.manifest
        tensors, ids, whole = dict(checkpoint.tensors), checkpoint.ids, manifest.target.vocabulary
        outputs, bias = shape.get("outputs", 0), shape.get("bias", True)
        if outputs == 0:
            assert serving.rows is not None
            tensors["lm_head.weight"] = serving.rows(ids)
        elif outputs == 1:
            tensors["lm_head.weight"] = tensors.pop("lm_heads.0.weight")
        elif len(ids) < whole:
            raise UnsupportedModel(
                "vLLM's layout has no reduced vocabulary for heads with an output layer each: train medusa anew, whose "
                "heads share one."
            )
        if len(ids) < whole:
            tensors["token_map"] = ids.clone()
        config = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": shape["width"],
            "vocab_size": whole,
            "truncated_vocab_size": len(ids),
            "num_heads": shape["heads"],
            "num_hidden_layers": shape["layers"],
            "medusa_fc_bias": bias,
            "original_lm_head": outputs < 2,
        }
        return Writing(config, tensors, ("vLLM drafts a chain of each head's likeliest token: no tree.",))


def _renamed(name: str) -> str:
    """A tensor's name in vLLM's layout."""
    name = name.removeprefix("medusa_heads.").removeprefix("medusa_head.")
    parts = name.split(".")
    if len(parts) > 2 and parts[0].isdigit() and parts[1].isdigit():
        if parts[2] == "linear":
            return f"blocks.{parts[0]}.layers.{parts[1]}.{parts[3]}"
        return f"lm_heads.{parts[0]}.{parts[2]}"
    return name


def _counts(keys: Keys, found: Found, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Heads and layers, by config and by weights."""
    there = [match for name in tensors if (match := re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name))]
    if not there:
        raise strange(found.folder, "blocks.0.layers.0.weight", "is missing", "at least one residual layer")
    heads, layers = (1 + max(int(match[place]) for match in there) for place in (1, 2))
    for name, count in (
        ("num_heads", heads),
        ("medusa_num_heads", heads),
        ("num_hidden_layers", layers),
        ("medusa_num_layers", layers),
    ):
        said = keys.take(name, int, count)
        if said != count:
            raise keys.strange(name, f"is {said}", f"{count}, as there are in the weights,")
    return heads, layers


def _take_ids(keys: Keys, found: Found, tensors: dict[str, Tensor], view: View) -> Tensor:
    """Take the draft vocabulary out of the tensors."""
    whole = view.id.vocabulary
    size, ids = keys.size("truncated_vocab_size", whole), tensors.pop("token_map", None)
    if ids is None:
        if size != whole:
            raise strange(
                found.folder, "token_map", "is missing", f"one of shape [{size}], as truncated_vocab_size says,"
            )
        return torch.arange(whole)
    ids = ids.long()
    if ids.shape != (size,) or not is_part(ids, whole):
        raise strange(
            found.folder, "token_map", f"of shape {list(ids.shape)} does not fit", f"{size} rising target ids"
        )
    return ids


def _take_outputs(keys: Keys, found: Found, tensors: dict[str, Tensor], view: View, heads: int, ids: Tensor) -> int:
    """How many output layers of its own the head has; those that are the target's are dropped."""
    shared = keys.take("original_lm_head", bool, "lm_head.weight" in tensors)
    if shared:
        one = tensors.pop("lm_head.weight", None)
        one = tensors.pop("lm_heads.0.weight", None) if one is None else one
        layers = {} if one is None else {"lm_heads.0.weight": one}
    else:
        layers = {name: tensors.pop(name) for name in [*tensors] if name.startswith("lm_heads.")}
    expected = {f"lm_heads.{head}.weight" for head in range(1 if shared else heads)}
    if layers.keys() != expected:
        missing = min(expected ^ layers.keys())
        what = "is missing" if missing in expected else "is there"
        raise strange(found.folder, missing, what, f"{len(expected)} output layers (original_lm_head {shared})".lower())
    for name, layer in layers.items():
        if layer.shape[0] == view.id.vocabulary > len(ids):
            layers[name] = layer = layer[ids]
        if layer.shape != (len(ids), view.id.width):
            raise strange(
                found.folder, name, f"has the shape {list(layer.shape)}", f"one of shape [{len(ids)}, {view.id.width}]"
            )
    if all(view.answers(layer, ids) for layer in layers.values()):
        return 0
    tensors.update(layers)
    return len(layers)
