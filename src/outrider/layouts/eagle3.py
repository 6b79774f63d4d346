"""EAGLE-3 as published: flat (`LlamaForCausalLMEagle3`) for vLLM and SGLang, and the body of the speculators format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..checkpoints import Checkpoint
from ..errors import UnsupportedModel
from .base import Layout, Reading, Serving, View, Writing
from .folder import Found
from .keys import Keys, strange
from .llama import HARMLESS, block_keys, take_block
from .taps import take_taps, taps_keys
from .vocabulary import maps, take_ids

_MIDDLE, _FIRST = "midlayer.", "layers.0."
_EMBEDDING = "embed_tokens.weight"
_FLAT = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
VARIANTS = ("norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True, slots=True)
class Outline:
    """What a config says of a head, but for its layer.

    Attributes:
        taps: in our numbering.
        drafted: size of the draft vocabulary.
        wide: of the target's states.
        variants: its norms, by key.
    """

    taps: tuple[int, ...]
    drafted: int
    wide: int
    variants: dict[str, bool]


class Eagle3(Layout):
    """The flat layout."""

    name, methods = "eagle3", ("eagle3",)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`; the method's own repository writes the target's architecture and a `draft_vocab_size`."""
        named = set(config.get("architectures") or ())
        return bool(named & set(_FLAT)) or ("draft_vocab_size" in config and "LlamaForCausalLM" in named)

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`."""
        keys = Keys(found.config, found.where)
        keys.expect("model_type", "llama")
        keys.expect("num_hidden_layers", 1)
        keys.expect("bias", False)
        variants = {name: keys.take(name, bool, False) for name in (*VARIANTS, "norm_before_residual")}
        taps, why = take_taps(keys, view.id.depth, speculators=False)
        keys.expect("vocab_size", view.id.vocabulary)
        drafted = keys.size("draft_vocab_size", view.id.vocabulary)
        wide = keys.size("target_hidden_size", view.id.width)
        body = read_body(found, keys, view, Outline(taps, drafted, wide, variants))
        keys.expect("num_aux_hidden_states", len(taps))
        keys.finish(HARMLESS)
        return Reading("eagle3", taps, notes=(why,), **body)

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`."""
        shape, manifest = checkpoint.manifest.shape, checkpoint.manifest
        if shape.get("qk_norm"):
            raise UnsupportedModel("The flat layout has no norms of queries and keys: write --format speculators.")
        config = {
            "architectures": [_FLAT[0]],
            **block_keys(checkpoint, shape["block"], serving.positions),
            "draft_vocab_size": manifest.draft_vocabulary,
            **taps_keys(manifest.taps, manifest.target.depth),
            **{name: shape.get(name, False) for name in (*VARIANTS, "norm_before_residual")},
        }
        if shape.get("target_width"):
            config["target_hidden_size"] = shape["target_width"]
        if len(manifest.taps) != 3:
            config["num_aux_hidden_states"] = len(manifest.taps)
        tensors = {name.replace(_FIRST, _MIDDLE): tensor for name, tensor in write_body(checkpoint, serving).items()}
        notes = []
        variants = [name for name in (*VARIANTS, "norm_before_residual") if shape.get(name)]
        if variants:
            notes.append(
                f"SGLang knows no {' and no '.join(variants)}: it would draft badly with this head; vLLM does."
            )
        if len(manifest.taps) != 3:
            notes.append("SGLang fuses three layers, and this head another number: vLLM alone can load it.")
        return Writing(config, tensors, tuple(notes))


def read_body(found: Found, layer: Keys, view: View, outline: Outline) -> dict[str, Any]:
    """Shape, tensors and ids of a head.

    Args:
        found: the folder.
        layer: the keys of its layer, which are taken.
        view: of the target.
        outline: what the other keys said.
    """
    taps, drafted, wide = outline.taps, outline.drafted, outline.wide
    if outline.variants["norm_before_fc"] and outline.variants["fc_norm"]:
        raise strange(found.where, "fc_norm", "is true", "false, as norm_before_fc is true,")
    if wide != view.id.width:
        raise strange(found.where, "target_hidden_size", f"is {wide}", f"{view.id.width}, the width of this target,")
    tensors, width = named(found), layer.size("hidden_size")
    expect_shape(found, tensors, "fc.weight", (width, len(taps) * wide))
    expect_shape(found, tensors, "lm_head.weight", (drafted, width))
    ids = take_ids(found, tensors, drafted, view.id.vocabulary)
    shape = {
        "block": take_block(layer, width),
        "taps": len(taps),
        "vocabulary": drafted,
        **outline.variants,
        "target_width": 0 if width == wide else wide,
        "embedding": take_embedding(found, tensors, view, width),
    }
    return {"shape": shape, "tensors": tensors, "ids": ids}


def named(found: Found) -> dict[str, Tensor]:
    """The tensors by our names: `layers.0` where a flat layout says `midlayer`."""
    if any(name.startswith(_MIDDLE) for name in found.tensors) and any(
        name.startswith(_FIRST) for name in found.tensors
    ):
        raise strange(found.folder, f"{_MIDDLE}* beside {_FIRST}*", "is there", "one of the two")
    return {name.replace(_MIDDLE, _FIRST): tensor for name, tensor in found.tensors.items()}


def take_embedding(found: Found, tensors: dict[str, Tensor], view: View, width: int) -> int:
    """Drop an embedding that is the target's; the rows of one of its own, or 0."""
    table = tensors.get(_EMBEDDING)
    if table is None:
        if width != view.id.width:
            raise strange(found.folder, _EMBEDDING, "is missing", f"one of shape [{view.id.vocabulary}, {width}]")
        return 0
    expect_shape(found, tensors, _EMBEDDING, (view.id.vocabulary, width))
    if width == view.id.width and view.embeds(table):
        del tensors[_EMBEDDING]
        return 0
    return len(table)


def expect_shape(found: Found, tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> None:
    """That a tensor is there and has this shape.

    Raises:
        UnsupportedModel: it is not, or has another.
    """
    there = tensors.get(name)
    if there is None or there.shape != shape:
        what = "is missing" if there is None else f"has the shape {list(there.shape)}"
        raise strange(found.folder, name, what, f"one of shape {list(shape)}")


def write_body(checkpoint: Checkpoint, serving: Serving) -> dict[str, Tensor]:
    """The tensors with the vocabulary map, and with the target's embeddings where engines would take others."""
    tensors = {**checkpoint.tensors, **maps(checkpoint.ids, checkpoint.manifest.target.vocabulary)}
    if serving.scaled and _EMBEDDING not in tensors:
        tensors[_EMBEDDING] = serving.table()
    return tensors
