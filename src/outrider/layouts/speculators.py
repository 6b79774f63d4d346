"""The format of the speculators library, which vLLM serves by `vllm serve FOLDER`: the target's name lies inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoints import Checkpoint
from . import dflash
from .base import Layout, Reading, Serving, View, Writing
from .eagle3 import VARIANTS, Outline, read_body, write_body
from .folder import Found
from .keys import Keys
from .llama import HARMLESS, block_keys
from .taps import KEY, take_taps

_VERSION = "0.3.0"  # of the format that is written
_KINDS = {False: "llama", True: "qwen3"}  # of an EAGLE-3 layer, by whether its queries and keys are normed
_HARMLESS = ("speculators_version", "embed_requires_grad")


class Speculators(Layout):
    """EAGLE-3 and DFlash in the speculators format."""

    name, methods, says_tokens = "speculators", ("eagle3", "dflash"), True

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """See `Layout`."""
        return "speculators_model_type" in config

    def read(self, found: Found, view: View) -> Reading:
        """See `Layout`; `norm_before_residual` has to be there, for vLLM and speculators differ where it is not."""
        keys = Keys(found.config, found.where)
        if found.config.get("speculators_model_type") == "dflash":
            return _read_dflash(keys, found, view)
        keys.expect("speculators_model_type", *self.methods)
        variants = {name: keys.take(name, bool, False) for name in VARIANTS}
        variants["norm_before_residual"] = keys.take("norm_before_residual", bool)
        taps, why = take_taps(keys, view.id.depth, speculators=True)
        layer = keys.table("transformer_layer_config")
        kind = layer.take("model_type", str, _KINDS[False])
        if kind not in _KINDS.values():
            raise layer.strange("model_type", f"is {kind!r}", " or ".join(map(repr, _KINDS.values())))
        variants["qk_norm"] = kind == _KINDS[True]
        layer.expect("num_hidden_layers", 1)
        layer.expect("vocab_size", view.id.vocabulary)
        layer.expect("num_aux_hidden_states", len(taps))
        drafted = keys.size("draft_vocab_size", view.id.vocabulary)
        wide = keys.size("target_hidden_size", view.id.width)
        body = read_body(found, layer, view, Outline(taps, drafted, wide, variants))
        verifier = keys.table("speculators_config").table("verifier").take("name_or_path", str, None)
        layer.finish(HARMLESS)
        keys.finish(_HARMLESS)
        return Reading("eagle3", taps, notes=(why,), verifier=verifier, **body)

    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """See `Layout`."""
        manifest, shape = checkpoint.manifest, checkpoint.manifest.shape
        if manifest.method == "dflash":
            return _write_dflash(checkpoint, serving)
        layer = block_keys(checkpoint, shape["block"], serving.positions)
        layer["model_type"] = _KINDS[bool(shape.get("qk_norm"))]
        if len(manifest.taps) != 3:
            layer["num_aux_hidden_states"] = len(manifest.taps)
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": _VERSION,
            "draft_vocab_size": manifest.draft_vocabulary,
            **{name: shape.get(name, False) for name in (*VARIANTS, "norm_before_residual")},
            "target_hidden_size": shape.get("target_width") or None,
            KEY: list(manifest.taps),
            "transformer_layer_config": layer,
            "speculators_config": speculators_config("eagle3", serving),
        }
        return Writing(config, write_body(checkpoint, serving))


def _read_dflash(keys: Keys, found: Found, view: View) -> Reading:
    keys.expect("speculators_model_type", "dflash")
    taps = keys.ids("aux_hidden_state_layer_ids")
    if taps is None:
        raise keys.strange("aux_hidden_state_layer_ids", "is missing", "a list")
    keys.expect("sample_from_anchor", False)
    keys.expect("target_hidden_size", view.id.width)
    keys.expect("sliding_window_non_causal", True, False)  # without windows it says nothing of the head
    sizes = (
        keys.size("draft_vocab_size", view.id.vocabulary),
        keys.size("block_size"),
        keys.take("mask_token_id", int),
    )
    layer = keys.table("transformer_layer_config")
    body = dflash.read_body(found, layer, view, taps, sizes)
    verifier = keys.table("speculators_config").table("verifier").take("name_or_path", str, None)
    layer.finish(HARMLESS)
    keys.finish(_HARMLESS)
    why = f"It sees the target's layers {', '.join(map(str, taps))} (aux_hidden_state_layer_ids, as vLLM counts)."
    return Reading("dflash", taps, notes=(why,), verifier=verifier, **body)


def _write_dflash(checkpoint: Checkpoint, serving: Serving) -> Writing:
    manifest, shape = checkpoint.manifest, checkpoint.manifest.shape
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": _VERSION,
        "draft_vocab_size": manifest.draft_vocabulary,
        "block_size": shape["size"],
        "mask_token_id": shape["mask"],
        "target_hidden_size": None,
        "aux_hidden_state_layer_ids": list(manifest.taps),
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "transformer_layer_config": dflash.layer_keys(checkpoint, serving),
        "speculators_config": speculators_config("dflash", serving),
    }
    return Writing(config, dflash.write_body(checkpoint, serving))


def speculators_config(algorithm: str, serving: Serving) -> dict[str, Any]:
    """The table that names method, draft length and target."""
    greedy = {"speculative_tokens": serving.tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", **greedy}],
        "verifier": {"name_or_path": serving.name, "architectures": list(serving.architectures)},
    }
