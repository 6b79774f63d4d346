"""Tiny random drafters in published layouts, and what they draft, computed from the layouts' descriptions alone.

The forward passes know nothing of Outrider: weights by their published names, Transformers' own hidden states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

VOCABULARY, WIDTH, HEADS, KV_HEADS, SIZE, INNER, EPS = 100, 32, 4, 2, 8, 48, 1e-5
IDS = torch.tensor(sorted({*range(0, 100, 2), 1, 3, 5, 7}))
LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "intermediate_size": INNER,
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
    "max_position_embeddings": 160,
    "rope_theta": 5000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def layer_tensors(inputs: int, prefix: str, *, bias: bool = False) -> dict[str, Tensor]:
    """A decoder layer with random weights."""
    sizes = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
    found = {f"self_attn.{name}_proj.weight": random(size, inputs) for name, size in sizes.items()}
    if bias:
        found |= {f"self_attn.{name}_proj.bias": random(size) for name, size in sizes.items()}
    found["self_attn.o_proj.weight"] = random(WIDTH, HEADS * SIZE)
    found |= {f"mlp.{name}_proj.weight": random(INNER, WIDTH) for name in ("gate", "up")}
    found |= {"mlp.down_proj.weight": random(WIDTH, INNER), "post_attention_layernorm.weight": 1 + random(WIDTH)}
    return {prefix + name: tensor for name, tensor in found.items()}


def eagle3_tensors(prefix: str, *, taps: int = 3, ids: Tensor = IDS, bias: bool = False) -> dict[str, Tensor]:
    """An EAGLE-3 head without variants."""
    tensors = {
        **layer_tensors(2 * WIDTH, prefix, bias=bias),
        f"{prefix}input_layernorm.weight": 1 + random(WIDTH),
        f"{prefix}hidden_norm.weight": 1 + random(WIDTH),
        "fc.weight": random(WIDTH, taps * WIDTH),
        "norm.weight": 1 + random(WIDTH),
        "lm_head.weight": random(len(ids), WIDTH),
    }
    if len(ids) < VOCABULARY:
        reach = torch.zeros(VOCABULARY, dtype=torch.bool)
        reach[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": reach}
    return tensors


def mtp_tensors(*, bias: bool = True) -> dict[str, Tensor]:
    """A multi-token-prediction layer in MiMo's layout."""
    prefix = "model.mtp_layers.0."
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm")
    tensors = layer_tensors(WIDTH, prefix, bias=bias) | {f"{prefix}{name}.weight": 1 + random(WIDTH) for name in names}
    return tensors | {f"{prefix}input_proj.weight": random(WIDTH, 2 * WIDTH)}


def dflash_tensors(taps: int, layers: int) -> dict[str, Tensor]:
    """A DFlash head with the target's whole vocabulary."""
    tensors = {"fc.weight": random(WIDTH, taps * WIDTH), "hidden_norm.weight": 1 + random(WIDTH)}
    for layer in range(layers):
        prefix = f"layers.{layer}."
        tensors |= layer_tensors(WIDTH, prefix) | {f"{prefix}input_layernorm.weight": 1 + random(WIDTH)}
        tensors |= {f"{prefix}self_attn.{name}_norm.weight": 1 + random(SIZE) for name in "qk"}
    return tensors | {"norm.weight": 1 + random(WIDTH)}


def random(*shape: int) -> Tensor:
    """Numbers large enough that drafts do not stand still."""
    return 0.3 * torch.randn(*shape)


class Forward:
    """What a head drafts, greedily, behind a text.

    Args:
        model: the target.
        config: of the layer, with `rope_scaling` where positions are stretched.
        tensors: by their published names.
        embedding: the table that tokens are read from.
    """

    def __init__(self, model: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor], embedding: Tensor) -> None:
        self.model, self.tensors, self.embedding = model, tensors, embedding
        parameters = {"rope_theta": config["rope_theta"], **(config.get("rope_scaling") or {"rope_type": "default"})}
        rotary = transformers.LlamaConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, head_dim=SIZE, rope_parameters=parameters
        )
        self.rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(rotary)

    def states(self, text: Sequence[int], layer: int) -> Tensor:
        """[len, D] after so many layers."""
        with torch.no_grad():
            found: Tensor = self.model(torch.tensor([list(text)]), output_hidden_states=True).hidden_states[layer][0]
        return found

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm by that weight."""
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self.tensors[name]

    def attend(self, x: Tensor, prefix: str) -> Tensor:
        """Causal attention over the text."""
        parts = []
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            key = f"{prefix}self_attn.{name}_proj"
            found = linear(x, self.tensors[f"{key}.weight"], self.tensors.get(f"{key}.bias"))
            found, norm = found.view(1, len(x), heads, SIZE), f"{prefix}self_attn.{name}_norm.weight"
            parts.append((self.norm(found, norm) if norm in self.tensors else found).transpose(1, 2))
        cosines, sines = self.rotary(x, torch.arange(len(x))[None])
        turn = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
        query, key_ = turn(parts[0], parts[1], cosines, sines)
        mixed = scaled_dot_product_attention(query, key_, parts[2], is_causal=True, enable_gqa=True)
        return linear(mixed.transpose(1, 2).flatten(2)[0], self.tensors[f"{prefix}self_attn.o_proj.weight"])

    def mlp(self, x: Tensor, prefix: str) -> Tensor:
        """The gated MLP behind its norm."""
        x = self.norm(x, f"{prefix}post_attention_layernorm.weight")
        gate, up, down = (self.tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    def eagle3(self, text: Sequence[int], length: int, taps: Sequence[int], **variants: bool) -> list[int]:
        """An EAGLE-3 head's draft."""
        prefix = "midlayer." if "midlayer.hidden_norm.weight" in self.tensors else "layers.0."
        tapped = [self.states(text[:-1], tap) for tap in taps]
        if variants.get("fc_norm"):
            tapped = [self.norm(part, f"fc_norm.{place}.weight") for place, part in enumerate(tapped)]
        joined = torch.cat(tapped, -1)
        if variants.get("norm_before_fc"):
            joined = self.norm(joined, "input_norm.weight")
        inputs = linear(joined, self.tensors["fc.weight"])
        drafted: list[int] = []
        for _ in range(length):
            embedded = self.embedding[torch.tensor([*text, *drafted][1:])]
            normed = self.norm(inputs, f"{prefix}hidden_norm.weight")
            both = torch.cat([self.norm(embedded, f"{prefix}input_layernorm.weight"), normed], -1)
            out = (normed if variants.get("norm_before_residual") else inputs) + self.attend(both, prefix)
            out = out + self.mlp(out, prefix)
            after = self.norm(out, "norm.weight")
            best = int(linear(after[-1], self.tensors["lm_head.weight"]).argmax())
            drafted.append(best + int(self.tensors["d2t"][best]) if "d2t" in self.tensors else best)
            inputs = torch.cat([inputs, (after if variants.get("norm_output") else out)[-1:]])
        return drafted

    def eagle(self, text: Sequence[int], length: int) -> list[int]:
        """An EAGLE head's draft, read by the target's output layer."""
        layers = self.model.config.num_hidden_layers
        inputs, drafted = self.states(text[:-1], layers), []
        for _ in range(length):
            embedded = self.embedding[torch.tensor([*text, *drafted][1:])]
            out = linear(torch.cat([embedded, inputs], -1), self.tensors["fc.weight"], self.tensors.get("fc.bias"))
            out = out + self.attend(out, "layers.0.")
            out = out + self.mlp(out, "layers.0.")
            drafted.append(int(self.model.lm_head(out[-1]).argmax()))
            inputs = torch.cat([inputs, out[-1:]])
        return drafted

    def mtp(self, text: Sequence[int], length: int) -> list[int]:
        """A multi-token-prediction layer's draft, recursed: the state first, then the embedding."""
        prefix, layers = "model.mtp_layers.0.", self.model.config.num_hidden_layers
        inputs, drafted = self.states(text[:-1], layers), []
        for _ in range(length):
            embedded = self.embedding[torch.tensor([*text, *drafted][1:])]
            normed = (self.norm(inputs, f"{prefix}hidden_layernorm.weight"), f"{prefix}token_layernorm.weight")
            both = torch.cat([normed[0], self.norm(embedded, normed[1])], -1)
            out = linear(both, self.tensors[f"{prefix}input_proj.weight"])
            out = out + self.attend(self.norm(out, f"{prefix}input_layernorm.weight"), prefix)
            after = self.norm(out + self.mlp(out, prefix), f"{prefix}final_layernorm.weight")
            drafted.append(int(self.model.lm_head(after[-1]).argmax()))
            inputs = torch.cat([inputs, after[-1:]])
        return drafted

    def dflash(
        self, text: Sequence[int], length: int, taps: Sequence[int], size: int, mask: int, layers: int
    ) -> list[int]:
        """A DFlash head's draft: one pass over a block of masks behind the last token, which sees itself both ways."""
        joined = torch.cat([self.states(text[:-1], tap) for tap in taps], -1)
        context = self.norm(linear(joined, self.tensors["fc.weight"]), "hidden_norm.weight")
        states = self.embedding[torch.tensor([text[-1], *[mask] * (size - 1)])]
        for layer in range(layers):
            prefix = f"layers.{layer}."
            x = self.norm(states, f"{prefix}input_layernorm.weight")
            states = states + self.cross(x, torch.cat([context, x]), prefix)
            states = states + self.mlp(states, prefix)
        logits = self.model.lm_head(self.norm(states, "norm.weight"))[1 : length + 1]
        allowed = self.tensors["t2d"] if "t2d" in self.tensors else torch.ones(VOCABULARY, dtype=torch.bool)
        found: list[int] = logits.masked_fill(~allowed, -torch.inf).argmax(-1).tolist()
        return found

    def cross(self, x: Tensor, every: Tensor, prefix: str) -> Tensor:
        """Attention of a block over text and block, queries and keys normed by head."""
        names = [f"{prefix}self_attn.{name}" for name in ("q", "k", "v")]
        parts = []
        for name, source, heads in zip(names, (x, every, every), (HEADS, KV_HEADS, KV_HEADS), strict=True):
            part = linear(source, self.tensors[f"{name}_proj.weight"]).view(1, len(source), heads, SIZE)
            parts.append(part if name.endswith("v") else self.norm(part, f"{name}_norm.weight"))
        query, key, value = (part.transpose(1, 2) for part in parts)
        cosines, sines = self.rotary(every, torch.arange(len(every))[None])
        turn = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
        key, _ = turn(key, key, cosines, sines)
        query, _ = turn(query, query, cosines[:, -len(x) :], sines[:, -len(x) :])
        mixed = scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return linear(mixed.transpose(1, 2).flatten(2)[0], self.tensors[f"{prefix}self_attn.o_proj.weight"])

    def medusa(
        self,
        text: Sequence[int],
        blocks: Sequence[Sequence[tuple[Tensor, Tensor | None]]],
        outputs: Sequence[Tensor],
        ids: Tensor,
    ) -> list[int]:
        """Medusa heads' chain: residual layers of each head, then its output layer."""
        drafted = []
        for layers, output in zip(blocks, outputs, strict=True):
            state = self.states(text[:-1], self.model.config.num_hidden_layers)[-1]
            for weight, bias in layers:
                state = state + silu(linear(state, weight, bias))
            drafted.append(int(ids[linear(state, output).argmax()]))
        return drafted
