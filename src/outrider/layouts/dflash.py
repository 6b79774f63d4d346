"""DFlash as published: flat (z-lab, SpecForge; `DFlashDraftModel`), and in the speculators format.

The flat `target_layer_ids` name layer outputs: id i is `hidden_states[i + 1]`. `aux_hidden_state_layer_ids` of
speculators count as vLLM does, which is how we count. A head drafts from slot 1 on; slot 0 is the known token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..checkpoints import Checkpoint
from ..errors import UnsupportedModel
from .base import Layout, Reading, Serving, View, Writing
from .eagle3 import expect_shape, take_embedding
from .folder import Found
from .keys import Keys, strange
from .llama import HARMLESS, block_keys, take_block
from .vocabulary import maps, take_ids

NAMES = ("DFlashDraftModel", "DFlashSpeculator")
_HEAD = "lm_head.weight"


class DFlash(Layout):
    """The flat layout."""

    name, methods = "dflash", ("dflash",)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`."""
        return NAMES[0] in (config.get("architectures") or ()) and "speculators_model_type" not in config

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`."""
        keys = Keys(found.config, found.where)
        inside = keys.table("dflash_config")
        ids = inside.ids("target_layer_ids")
        if ids is None:
            raise inside.strange("target_layer_ids", "is missing", "a list")
        taps, mask = tuple(one + 1 for one in ids), inside.take("mask_token_id", int)
        size = inside.size("block_size") if "block_size" not in found.config else keys.size("block_size")
        inside.expect("use_aux_hidden_state", True)
        inside.expect("causal", False)
        inside.expect("use_swa", False)
        inside.expect("sample_from_anchor", False)
        inside.finish()
        keys.expect("num_target_layers", view.id.depth)
        drafted = keys.size("draft_vocab_size", view.id.vocabulary)
        body = read_body(found, keys, view, taps, (drafted, size, mask))
        keys.finish(HARMLESS)
        why = f"It sees the target's layers {_listed(taps)} (outputs of target_layer_ids {list(ids)})."
        return Reading("dflash", taps, notes=(why,), **body)

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`."""
        manifest, shape = checkpoint.manifest, checkpoint.manifest.shape
        config = {
            "architectures": [NAMES[0]],
            **layer_keys(checkpoint, serving),
            "block_size": shape["size"],
            "num_target_layers": manifest.target.depth,
            "dflash_config": {"mask_token_id": shape["mask"], "target_layer_ids": [one - 1 for one in manifest.taps]},
        }
        notes = []
        if manifest.draft_vocabulary < manifest.target.vocabulary:
            config["draft_vocab_size"] = manifest.draft_vocabulary
            notes.append("The draft vocabulary is reduced, which vLLM takes; z-lab's own code does not.")
        return Writing(config, write_body(checkpoint, serving), tuple(notes))


def read_body(
    found: Found, layer: Keys, view: View, taps: tuple[int, ...], sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """Shape, tensors and ids of a head.

    Args:
        found: the folder.
        layer: the keys of its layers, which are taken.
        view: of the target.
        taps: in our numbering.
        sizes: of the draft vocabulary and of a block, and the mask's id.
    """
    drafted, size, mask = sizes
    if view.scaled:
        raise strange(
            found.folder, "embed_tokens", "is scaled in this target", "a target that embeds with its table as it is,"
        )
    if len(set(taps)) != len(taps) or not all(0 <= tap < view.id.depth for tap in taps):
        raise strange(
            found.where, "the tapped layers", f"are {list(taps)}", f"different ones from 0 to {view.id.depth - 1}"
        )
    if not 0 <= mask < view.id.vocabulary:
        raise strange(found.where, "mask_token_id", f"is {mask}", f"an id below {view.id.vocabulary}")
    layer.expect("model_type", "qwen3")
    layer.expect("vocab_size", view.id.vocabulary)
    layers, width = layer.size("num_hidden_layers"), layer.size("hidden_size")
    if width != view.id.width:
        raise layer.strange("hidden_size", f"is {width}", f"{view.id.width}, the width of this target,")
    tensors = dict(found.tensors)
    expect_shape(found, tensors, "fc.weight", (width, len(taps) * width))
    ids = take_ids(found, tensors, drafted, view.id.vocabulary)
    head = tensors.pop(_HEAD, None)
    if head is not None and not (head.shape == (drafted, width) and view.answers(head, ids)):
        raise strange(found.folder, _HEAD, "is not the target's", "the target's own rows or none")
    if take_embedding(found, tensors, view, width):
        raise strange(found.folder, "embed_tokens.weight", "is not the target's", "the target's own or none")
    block = take_block(layer, width)
    if block["qkv_bias"]:
        raise layer.strange("attention_bias", "is True", "false")
    shape = {
        "block": block,
        "layers": layers,
        "taps": len(taps),
        "vocabulary": drafted,
        "size": size,
        "mask": mask,
        "fc_norm": False,
    }
    return {"shape": shape, "tensors": tensors, "ids": ids}


def layer_keys(checkpoint: Checkpoint, serving: Serving) -> dict[str, Any]:
    """The keys of its layers, which are Qwen 3's.

    Raises:
        UnsupportedModel: the head has norms that no layout has.
    """
    shape = checkpoint.manifest.shape
    if shape.get("fc_norm", True):
        raise UnsupportedModel("No published layout of DFlash has fc_norm: train it with fc_norm = false (--config).")
    if serving.scaled:
        raise UnsupportedModel("This target scales its embeddings, and engines hand DFlash heads unscaled ones.")
    keys = block_keys(checkpoint, shape["block"], serving.positions)
    kinds = ["full_attention"] * shape["layers"]
    return keys | {"model_type": "qwen3", "num_hidden_layers": shape["layers"], "layer_types": kinds}


def write_body(checkpoint: Checkpoint, serving: Serving) -> dict[str, Tensor]:
    """The tensors; with a reduced vocabulary its map and the target's output layer for it, or vLLM would take the first
    ids."""
    tensors = dict(checkpoint.tensors)
    vocabulary = maps(checkpoint.ids, checkpoint.manifest.target.vocabulary)
    if vocabulary:
        tensors |= {**vocabulary, _HEAD: serving.rows(checkpoint.ids)}
    return tensors


def _listed(taps: tuple[int, ...]) -> str:
    return ", ".join(map(str, taps))
