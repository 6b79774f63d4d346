"""A lean decoder for the Llama family, built from a Transformers model's weights and configuration.

Llama, SmolLM, Mistral, Qwen 2 and 3, Gemma 2 and 3 differ in a handful of options: biases, norms of queries and keys,
norms behind the blocks, windows, soft caps. All are plain data here. Query, key and value are one product, gate and up
another; grouped heads are not repeated; nothing is rebuilt per layer. A configuration with anything else in it is not
recognised, and the model keeps Transformers' own modules.

A token's logits do not depend on what shares its pass: linears and attention pad to fixed sizes (`linear.py`,
`attention.py`), and everything else works row by row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, rms_norm, silu

from . import attention
from .kv import KVCache
from .linear import NARROWEST, can_pack, fused
from .target import TransformersTarget
from .types import Scores, Tree

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"}
_EMBEDDINGS = {"Embedding", "Gemma2TextScaledWordEmbedding", "Gemma3TextScaledWordEmbedding"}
_HARMLESS = {  # options that a family's configuration class does not list and that change no arithmetic
    "_name_or_path", "_model_name_or_path", "architectures", "dtype", "head_dim", "layer_types", "torch_dtype",
    "transformers_version", "unk_token_id",
}  # fmt: skip
_ROPE_KINDS = {"default", "linear", "llama3", "yarn"}  # scaling that does not depend on how long the text has become
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_pytorch_tanh": lambda x: gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class _Norm:
    """An RMS norm; where its weight is finer than the states (Gemma), it is computed in the weight's type."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: nn.Module
    out: nn.Module
    gate_up: nn.Module
    down: nn.Module
    before_attention: _Norm
    after_attention: _Norm | None  # of the block's output, before it is added
    before_mlp: _Norm
    after_mlp: _Norm | None
    query_norm: _Norm | None
    key_norm: _Norm | None
    kind: str
    window: int | None
    scale: float


def recognises(target: TransformersTarget) -> bool:
    """Whether every option in the model's configuration is one that this decoder knows."""
    config = target.config
    if config.model_type not in _FAMILIES or not can_pack(target.dtype, target.device):
        return False
    known = set(type(config)().to_dict()) | _HARMLESS
    ropes = config.rope_parameters
    if "rope_type" in ropes:
        ropes = {"full_attention": ropes}
    return (
        set(config.to_dict()) <= known
        and all(rope.get("rope_type") in _ROPE_KINDS for rope in ropes.values() if rope)
        and _activation_name(config) in _ACTIVATIONS
        and getattr(config, "pretraining_tp", 1) in (None, 1)
        and not getattr(config, "use_bidirectional_attention", False)
        and type(target.model.get_input_embeddings()).__name__ in _EMBEDDINGS
    )


def _activation_name(config: Any) -> str:
    return str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None))


class DenseTarget:
    """A `Target` over the lean decoder.

    Args:
        source: recognised; its capability check has run.
        free: empty the source's linears while they are converted, so that no two copies exist at once.
    """

    def __init__(self, source: TransformersTarget, *, free: bool) -> None:
        config, model = source.config, source.model
        self.config, self.vocabulary, self.context = config, source.vocabulary, source.context
        self.eos, self.device, self.dtype = source.eos, source.device, source.dtype
        self._cap = getattr(config, "attn_logit_softcapping", None)
        self.build = "lean"
        self.exactness = "ties" if self._cap else "bits"
        self._logit_cap = getattr(config, "final_logit_softcapping", None)
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        decoder = model.get_decoder()
        self._act = _ACTIVATIONS[_activation_name(config)]
        self._embedding, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self._per_kind = "layer_type" in inspect.signature(self._rotary.forward).parameters
        self._kinds = sorted(set(kinds))
        self._norm = _norm(decoder.norm)
        head = model.get_output_embeddings()
        tied = head.weight is decoder.embed_tokens.weight
        self._layers = [
            _layer(layer, kinds[index], source.windows[index], free=free)
            for index, layer in enumerate(decoder.layers[: config.num_hidden_layers])
        ]
        self._head_dim = self._layers[0].qkv.out_features // (self._heads + 2 * self._kv_heads)
        self._head = fused([head], free=free and not tied)

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`."""
        return KVCache(rows, max(capacity, 1))

    @torch.no_grad()
    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        pass_ = attention.FixedPass(trees, cache, self.device)
        states, tapped = self._decode(pass_, taps)
        rows, width = pass_.positions.shape
        count = rows * width
        if last_only:
            ends = torch.tensor([row * width + len(tree) - 1 for row, tree in enumerate(trees)])
            logits = self._logits(_widened(states[ends]))[:rows, None]
        else:
            logits = self._logits(states)[:count].view(rows, width, -1)
        results = []
        for row, tree in enumerate(trees):
            size = 1 if last_only else len(tree)
            hidden = {tap: h[:count].view(rows, width, -1)[row, : len(tree)] for tap, h in tapped.items()}
            results.append(Scores(logits[row, :size], hidden))
        return results

    def _logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self._head(states)
        return torch.tanh(logits / self._logit_cap) * self._logit_cap if self._logit_cap else logits

    def _decode(self, pass_: attention.Pass, taps: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """Normed states of all nodes, [rows * width or a few more, D], and the tapped ones."""
        hidden = _widened(self._embedding(pass_.tokens().to(self.device)).flatten(0, 1))
        turns = {kind: self._turns(hidden, pass_.positions, kind) for kind in self._kinds}
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in taps:
                tapped[index] = hidden
            hidden = self._block(index, layer, hidden, turns[layer.kind], pass_)
        states = self._norm(hidden)
        if len(self._layers) in taps:
            tapped[len(self._layers)] = states  # Transformers' last hidden state is the normed one
        return states, tapped

    def _turns(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of the first half turned, [rows * width, 1, D] each."""
        extra = (kind,) if self._per_kind else ()
        cos, sin = self._rotary(like, positions, *extra)
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        return cos.flatten(0, 1)[:, None], signed.flatten(0, 1)[:, None]

    def _block(
        self, index: int, layer: _Layer, hidden: Tensor, turns: tuple[Tensor, Tensor], pass_: attention.Pass
    ) -> Tensor:
        rows, width = pass_.positions.shape
        count, size = rows * width, self._head_dim
        qkv = layer.qkv(layer.before_attention(hidden))[:count].view(count, -1, size)
        turned, values = qkv[:, : self._heads + self._kv_heads], qkv[:, self._heads + self._kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            turned = torch.cat(
                (layer.query_norm(turned[:, : self._heads]), layer.key_norm(turned[:, self._heads :])), 1
            )
        turned = torch.addcmul(turned * turns[0], turned.roll(size // 2, -1), turns[1])
        query, key, value = (
            part.view(rows, width, -1, size).transpose(1, 2)
            for part in (turned[:, : self._heads], turned[:, self._heads :], values)
        )
        mixed = pass_.attend(index, query, key, value, layer.scale, layer.window, self._cap)
        mixed = layer.out(_widened(mixed.reshape(count, -1)))
        hidden = hidden + (layer.after_attention(mixed) if layer.after_attention else mixed)
        gate, up = layer.gate_up(layer.before_mlp(hidden)).chunk(2, -1)
        mixed = layer.down(self._act(gate).mul_(up))
        return hidden + (layer.after_mlp(mixed) if layer.after_mlp else mixed)


def _widened(x: Tensor) -> Tensor:
    """[N, D] padded to the narrowest width of the linears, once instead of in each of them."""
    return pad(x, (0, 0, 0, NARROWEST - x.shape[0])) if x.shape[0] < NARROWEST else x


def _norm(module: Any) -> _Norm:
    """Weight and epsilon of an RMS norm; Gemma's multiply by one plus their weight."""
    weight = module.weight.detach()
    eps = float(getattr(module, "variance_epsilon", None) or module.eps)
    return _Norm(1.0 + weight.float() if type(module).__name__.startswith("Gemma") else weight, eps)


def _layer(layer: Any, kind: str, window: int | None, *, free: bool) -> _Layer:
    """One decoder layer's weights, packed. Gemma has norms before and behind both blocks, the others only before."""
    attn, mlp = layer.self_attn, layer.mlp
    framed = hasattr(layer, "pre_feedforward_layernorm")
    return _Layer(
        qkv=fused([attn.q_proj, attn.k_proj, attn.v_proj], free=free),
        out=fused([attn.o_proj], free=free),
        gate_up=fused([mlp.gate_proj, mlp.up_proj], free=free),
        down=fused([mlp.down_proj], free=free),
        before_attention=_norm(layer.input_layernorm),
        after_attention=_norm(layer.post_attention_layernorm) if framed else None,
        before_mlp=_norm(layer.pre_feedforward_layernorm if framed else layer.post_attention_layernorm),
        after_mlp=_norm(layer.post_feedforward_layernorm) if framed else None,
        query_norm=_norm(attn.q_norm) if hasattr(attn, "q_norm") else None,
        key_norm=_norm(attn.k_norm) if hasattr(attn, "k_norm") else None,
        kind=kind,
        window=window,
        scale=float(attn.scaling),
    )
