"""Multi-token-prediction layers read from a checkpoint's files: Transformers leaves them out when it loads the model.

The layout is that of DeepSeek-V3 and GLM-4.5: behind the N decoder layers come more, `model.layers.N`, each with
`enorm`, `hnorm`, `eh_proj`, `shared_head.norm`, a decoder layer of the model's kind, and often copies of embedding and
head.
Reading is strict: every tensor of these layers has its place, and every place gets its tensor.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .. import attention
from ..errors import ModelNotFound, UnsupportedModel, first_line
from ..heads.mtp import MtpDepth
from ..quiet import quiet

_INDEX = "model.safetensors.index.json"
_NORMS = ("enorm", "hnorm", "shared_head.norm")
_COPIES = ("embed_tokens", "shared_head.head")


def read_depths(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> list[MtpDepth]:
    """The layers of a checkpoint, first to last.

    Args:
        folder: where its safetensors lie.
        config: the target's, of its text part.
        dtype, device: of the modules.

    Raises:
        ModelNotFound: there are no such layers, or no readable files.
        UnsupportedModel: they are not laid out as described, or hold more or less than that.
    """
    layers = int(config.num_hidden_layers)
    files = _Files(folder)
    start = re.compile(rf"(.*\.)?layers\.({layers}|\d+)\.eh_proj\.weight")
    found = {int(match[2]): match[1] or "" for name in files.names if (match := start.fullmatch(name))}
    numbers = sorted(number for number in found if number >= layers)
    if not numbers:
        raise ModelNotFound(
            f"{folder} holds no multi-token-prediction layers in the layout of DeepSeek-V3 and GLM-4.5 (no "
            f"model.layers.{layers}.eh_proj.weight): choose another drafter."
        )
    promised = getattr(config, "num_nextn_predict_layers", None)
    if numbers != list(range(layers, layers + len(numbers))) or promised not in (None, len(numbers)):
        raise UnsupportedModel(
            f"{folder} should hold the multi-token-prediction layers {layers} to {layers + (promised or 1) - 1}, and "
            f"holds {', '.join(map(str, numbers))}: check that its files are whole."
        )
    root = found[layers]
    parts = [files.under(f"{root}layers.{number}.") for number in numbers]
    own = _own_copies(files, parts, root)
    blocks, norm, rotary = _blocks(parts, config, dtype, str(folder))
    depths = []
    for part, block, copies in zip(parts, blocks, own, strict=True):
        norms = (copy.deepcopy(norm), copy.deepcopy(norm), copy.deepcopy(norm))
        depth = MtpDepth(int(config.hidden_size), block, norms, rotary, *(_module(*pair) for pair in copies.items()))
        places = (*((name, module) for name, module in zip(_NORMS, norms, strict=True)), ("eh_proj", depth.eh_proj))
        for name, module in places:
            _fill(module, part.get(f"{name}.weight"), f"{folder} lacks {name} of a multi-token-prediction layer")
        depths.append(depth.to(device, dtype).eval().requires_grad_(False))
    return depths


class _Files:
    """The tensors of a folder, by name; read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        index = folder / _INDEX
        try:
            if index.is_file():
                where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                self._where = {name: folder / file for name, file in where.items()}
            else:
                self._where = {name: file for file in folder.glob("*.safetensors") for name in _names(file)}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelNotFound(
                f"The files in {folder} cannot be read ({error}): check that they are whole."
            ) from error

    @property
    def names(self) -> list[str]:
        return list(self._where)

    def get(self, name: str) -> Tensor | None:
        if name not in self._where:
            return None
        try:
            with safe_open(self._where[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelNotFound(f"{self._where[name]} cannot be read ({error}): check that it is whole.") from error
        return tensor

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        found = {name: self.get(name) for name in self._where if name.startswith(prefix)}
        return {name.removeprefix(prefix): tensor for name, tensor in found.items() if tensor is not None}


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def _own_copies(files: _Files, parts: list[dict[str, Tensor]], root: str) -> list[dict[str, Tensor | None]]:
    """Take the copies of embedding and head out of the layers; None where the target's own is the same."""
    embedding = files.get(f"{root}embed_tokens.weight")
    head = files.get("lm_head.weight")
    originals = {"embed_tokens": embedding, "shared_head.head": embedding if head is None else head}
    own = []
    for part in parts:
        copies = {name: part.pop(f"{name}.weight", None) for name in _COPIES}
        for name, original in originals.items():
            found = copies[name]
            if found is not None and original is not None and torch.equal(found, original):
                copies[name] = None
        own.append(copies)
    return own


def _module(name: str, weight: Tensor | None) -> nn.Module | None:
    """An embedding or a head of its own."""
    if weight is None:
        return None
    module: nn.Embedding | nn.Linear = (
        nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
        if name == "embed_tokens"
        else nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    )
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module


def _blocks(
    parts: list[dict[str, Tensor]], config: Any, dtype: torch.dtype, where: str
) -> tuple[list[nn.Module], nn.Module, Any]:
    """The decoder layers, read by Transformers, which knows how each family stores them; a norm and a rotary embedding
    of their kind.

    They are put into a model of their own that has nothing but them: as many layers as there are, one token.
    """
    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(small, name, None)
        if kinds:
            setattr(small, name, [kinds[-1]] * len(parts))
    small.num_hidden_layers, small.vocab_size, small.pad_token_id = len(parts), 1, None
    small.tie_word_embeddings = False
    if hasattr(small, "first_k_dense_replace"):
        small.first_k_dense_replace = 0  # these layers are of the kind of the last ones
    if hasattr(small, "quantization_config"):
        del small.quantization_config
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(small))
    root, row = kind.base_model_prefix, torch.zeros(1, int(config.hidden_size), dtype=dtype)
    state = {
        f"{root}.layers.{place}.{name}": tensor
        for place, part in enumerate(parts)
        for name, tensor in part.items()
        if name.removesuffix(".weight") not in (*_NORMS, "eh_proj")
    }
    state |= {f"{root}.embed_tokens.weight": row, f"{root}.norm.weight": row[0], "lm_head.weight": row}
    try:
        with quiet():
            options = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
            model, report = kind.from_pretrained(None, config=small, state_dict=state, **options)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedModel(_strange(where, first_line(error))) from error
    _check(report, where)
    model.set_attn_implementation(attention.NAME)
    decoder = model.get_decoder()
    return list(decoder.layers), decoder.norm, decoder.rotary_emb


def _check(report: Mapping[str, Any], where: str) -> None:
    for what, names in (("lack", report["missing_keys"]), ("also hold", report["unexpected_keys"])):
        if names:
            raise UnsupportedModel(_strange(where, f"they {what} {min(names)}"))
    if report["mismatched_keys"]:
        raise UnsupportedModel(_strange(where, f"{min(report['mismatched_keys'])[0]} has another shape"))


def _strange(where: str, why: str) -> str:
    return (
        f"The multi-token-prediction layers in {where} are not laid out as the target's own layers ({why}): choose "
        "another drafter, or a checkpoint that is not quantised."
    )


def _fill(module: nn.Module, weight: Tensor | None, lacking: str) -> None:
    """Put a weight into a norm or a linear."""
    own = module.weight
    assert isinstance(own, nn.Parameter)
    if weight is None or weight.shape != own.shape:
        raise UnsupportedModel(f"{lacking}, or has it in another shape: check that its files are whole.")
    module.weight = nn.Parameter(weight.to(own.dtype), requires_grad=False)
