"""A lean decoder for the Llama family, built from a Transformers model's weights and configuration.

Llama, SmolLM, Mistral, Qwen 2 and 3, Gemma 2 and 3 differ in a handful of options: biases, norms of queries and keys,
norms behind the blocks, windows, soft caps. All are plain data here. Query, key and value are one product, gate and up
another; grouped heads are not repeated; nothing is rebuilt per layer. A configuration with anything else in it is not
recognised, and the model keeps Transformers' own modules.

A token's logits do not depend on what shares its pass: a linear computes each row as if it were alone (`linear.py`),
and everything else works node by node in an order of its own (`native/`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import native
from .kv import KVCache
from .linear import FastLinear, NativeLinear, RowsOf, can_pack, fused, is_wrapped, read_back
from .target import TransformersTarget
from .types import Scores, Tree

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"}
_EMBEDDINGS = {"Embedding", "Gemma2TextScaledWordEmbedding", "Gemma3TextScaledWordEmbedding"}
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
_HARMLESS = {  # options that a family's configuration class does not list and that change no arithmetic
    "_name_or_path", "_model_name_or_path", "architectures", "dtype", "head_dim", "layer_types", "outrider_trained",
    "torch_dtype", "transformers_version", "unk_token_id",
}  # fmt: skip
_ROPE_KINDS = {"default", "linear", "llama3", "yarn"}  # scaling that does not depend on how long the text has become


@dataclass(frozen=True, slots=True)
class _Norm:
    """An RMS norm, computed in float32 whatever the states are in."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Of x, after adding `add` to it in place."""
        return native.norm(x, self.weight, self.eps, add=add)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: FastLinear
    out: FastLinear
    gate_up: FastLinear
    down: FastLinear
    before_attention: _Norm
    after_attention: _Norm | None  # of the block's output, before it is added
    before_mlp: _Norm
    after_mlp: _Norm | None
    kind: str
    attention: native.Layer
    held: tuple[Tensor, ...]  # what `attention` points to


def recognises(target: TransformersTarget) -> bool:
    """Whether every option in the model's configuration is one that this decoder knows."""
    config = target.config
    if config.model_type not in _FAMILIES or not can_pack(target.dtype, target.device):
        return False
    if not native.available() or _head_size(config) % 8 or _head_size(config) > native.LARGEST_HEAD:
        return False
    known = set(type(config)().to_dict()) | _HARMLESS
    ropes = config.rope_parameters
    if "rope_type" in ropes:
        ropes = {"full_attention": ropes}
    return (
        set(config.to_dict()) <= known
        and all(rope.get("rope_type") in _ROPE_KINDS for rope in ropes.values() if rope)
        and _activation_name(config) in native.ACTS
        and getattr(config, "pretraining_tp", 1) in (None, 1)
        and not getattr(config, "use_bidirectional_attention", False)
        and type(target.model.get_input_embeddings()).__name__ in _EMBEDDINGS
        and _as_written(target.model)
    )


def _as_written(model: Any) -> bool:
    """Whether a model's modules are those of its class: no adapters or quantised linears in their places, no hooks."""
    linears = [getattr(block, name) for block in model.modules() for name in _LINEARS if hasattr(block, name)]
    return all(type(linear) is nn.Linear for linear in linears) and not any(map(is_wrapped, model.modules()))


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _activation_name(config: Any) -> str:
    return str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None))


class DenseTarget:
    """A `Target` over the lean decoder, on the CPU.

    Args:
        source: recognised; its capability check has run.
        free: empty the source's linears while they are converted, so that no two copies exist at once.
        int8: round the weights to int8, and every linear's inputs row by row.
    """

    build, exactness = "lean", "bits"

    def __init__(self, source: TransformersTarget, *, free: bool, int8: bool = False) -> None:
        config, model = source.config, source.model
        self.config, self.vocabulary, self.context = config, source.vocabulary, source.context
        self.eos, self.device, self.dtype = source.eos, source.device, source.dtype
        self._logit_cap = getattr(config, "final_logit_softcapping", None)
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = _head_size(config)
        self._act = native.ACTS[_activation_name(config)]
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        self._embedding, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        self._per_kind = "layer_type" in inspect.signature(self._rotary.forward).parameters
        self._norm = _norm(decoder.norm)
        tied = head.weight is decoder.embed_tokens.weight
        cap = getattr(config, "attn_logit_softcapping", None)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self._kinds = sorted(set(kinds))
        self._layers = [
            _layer(layer, kinds[index], source.windows[index], cap, free=free, int8=int8)
            for index, layer in enumerate(decoder.layers[: config.num_hidden_layers])
        ]
        moves = free and tied and not int8 and native.available()  # the table itself: the panels give it back
        self._head = fused([head], free=free and (moves or not tied), int8=int8, tied=tied)
        if moves:
            assert isinstance(self._head, NativeLinear)
            self._embedding = RowsOf(self._head, getattr(self._embedding, "embed_scale", None))
            decoder.embed_tokens.weight = head.weight

    @property
    def pass_bytes(self) -> int:
        """See `Target`."""
        linears = [part for layer in self._layers for part in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return sum(linear.nbytes for linear in (*linears, self._head))

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`."""
        return KVCache(rows, max(capacity, 1))

    @torch.no_grad()
    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        nodes = self._nodes(trees, cache)
        return self._scores(nodes, cache, self._embedding(nodes.tokens), 0, taps, last_only)

    @property
    def depth(self) -> int:
        """See `layers.Layered`."""
        return len(self._layers)

    def weights(self, index: int) -> dict[str, Tensor]:
        """A decoder layer's weights by the names that its model has for them, copied back from where they lie packed;
        a norm's is what it multiplies by."""
        layer, size = self._layers[index], self._size
        like = torch.empty(0, dtype=self.dtype)
        inner = layer.down.in_features
        packed = {
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): layer.qkv,
            ("self_attn.o_proj",): layer.out,
            ("mlp.gate_proj", "mlp.up_proj"): layer.gate_up,
            ("mlp.down_proj",): layer.down,
        }
        sizes = {"q_proj": self._heads * size, "k_proj": self._kv_heads * size, "v_proj": self._kv_heads * size}
        found: dict[str, Tensor] = {}
        for names, linear in packed.items():
            parts = [sizes.get(name.rpartition(".")[2], inner) for name in names]
            parts = parts if len(names) > 1 else [linear.out_features]
            weight, bias = read_back(linear, linear.in_features, like)
            found |= zip((f"{name}.weight" for name in names), torch.split(weight, parts), strict=True)
            if bias is not None:
                found |= zip((f"{name}.bias" for name in names), torch.split(bias, parts), strict=True)
        norms = {"input_layernorm": layer.before_attention, "post_attention_layernorm": layer.before_mlp}
        if layer.after_attention is not None and layer.after_mlp is not None:  # Gemma's names for the same places
            norms["pre_feedforward_layernorm"] = layer.before_mlp
            norms |= {"post_attention_layernorm": layer.after_attention, "post_feedforward_layernorm": layer.after_mlp}
        found |= {f"{name}.weight": norm.weight for name, norm in norms.items()}
        return found | dict(zip(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), layer.held, strict=False))

    @property
    def output(self) -> FastLinear:
        """The output layer, before any soft cap."""
        return self._head

    def check(self, layers: int) -> None:
        """See `layers.Layered`: any split will do."""

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """See `layers.Layered`."""
        embedded: Tensor = self._embedding(tokens)
        return embedded

    @torch.no_grad()
    def head(self, states: Tensor) -> Tensor:
        """See `layers.Layered`."""
        logits: Tensor = self._head.rows(states)
        return torch.tanh(logits / self._logit_cap) * self._logit_cap if self._logit_cap else logits

    @torch.no_grad()
    def normed(self, states: Tensor) -> Tensor:
        """See `layers.Layered`."""
        return self._norm(states.contiguous())

    def exit(self, states: Tensor) -> Tensor:
        """See `layers.Layered`."""
        return self.head(self.normed(states))

    @torch.no_grad()
    def lower(self, trees: Sequence[Tree], cache: KVCache, layers: int) -> list[Tensor]:
        """See `layers.Layered`."""
        nodes = self._nodes(trees, cache)
        hidden = self._embedding(nodes.tokens)
        delta, _ = self._blocks(nodes, cache, hidden, range(layers), ())
        hidden += delta  # rounded as the next norm would round it
        return list(torch.split(hidden, nodes.sizes))

    @torch.no_grad()
    def upper(
        self, trees: Sequence[Tree], cache: KVCache, states: Sequence[Tensor], layers: int, taps: tuple[int, ...] = ()
    ) -> list[Scores]:
        """See `layers.Layered`."""
        nodes = self._nodes(trees, cache)
        hidden = torch.cat(list(states))  # a copy: the norms add to it in place
        return self._scores(nodes, cache, hidden, layers, taps, False)

    def _nodes(self, trees: Sequence[Tree], cache: KVCache) -> native.Nodes:
        cache.reserve(max(len(tree) for tree in trees))
        return native.Nodes(trees, cache.lengths, self._heads, self._kv_heads, self._size, cache.capacity)

    def _scores(
        self,
        nodes: native.Nodes,
        cache: KVCache,
        hidden: Tensor,
        first: int,
        taps: tuple[int, ...],
        last_only: bool,
    ) -> list[Scores]:
        """From the states [N, D] that enter layer `first` to the end."""
        delta, tapped = self._blocks(nodes, cache, hidden, range(first, len(self._layers)), taps)
        states = self._norm(hidden, delta)
        if len(self._layers) in taps:
            tapped[len(self._layers)] = states  # Transformers' last hidden state is the normed one
        if last_only:
            logits = torch.split(self.head(states[torch.tensor(nodes.sizes).cumsum(0) - 1]), 1)
        else:
            logits = torch.split(self.head(states), nodes.sizes)
        parts = {tap: torch.split(found, nodes.sizes) for tap, found in tapped.items()}
        return [Scores(own, {tap: part[row] for tap, part in parts.items()}) for row, own in enumerate(logits)]

    def _blocks(
        self, nodes: native.Nodes, cache: KVCache, hidden: Tensor, which: range, taps: tuple[int, ...]
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Run these layers on `hidden` [N, D], which grows in place; what the last block still has to add,
        and the tapped states."""
        turns = {kind: self._turns(hidden, nodes.positions, kind) for kind in self._kinds}
        tapped: dict[int, Tensor] = {}
        delta = None  # what the last block adds to the states; the next norm adds it on its way
        for index in which:
            layer = self._layers[index]
            normed = layer.before_attention(hidden, delta)
            if index in taps:
                tapped[index] = hidden.clone()
            storage = cache.storage(index, self._kv_heads, (self._size, self._size), hidden)
            mixed = nodes.attend(layer.attention, layer.qkv.rows(normed), turns[layer.kind], *storage)
            delta = layer.out.rows(mixed)
            if layer.after_attention is not None:
                delta = layer.after_attention(delta)
            normed = layer.before_mlp(hidden, delta)
            delta = layer.down.rows(native.gate(layer.gate_up.rows(normed), self._act))
            if layer.after_mlp is not None:
                delta = layer.after_mlp(delta)
        return delta, tapped

    def _turns(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [rows, width, size] each, rounded as the model's own are."""
        extra = (kind,) if self._per_kind else ()
        cos, sin = self._rotary(like, positions, *extra)
        return cos.float().contiguous(), sin.float().contiguous()


def _norm(module: Any) -> _Norm:
    """Weight and epsilon of an RMS norm; Gemma's multiply by one plus their weight."""
    weight = module.weight.detach().float().clone()  # not a view of the file that the others came from
    eps = float(getattr(module, "variance_epsilon", None) or module.eps)
    return _Norm(1.0 + weight if type(module).__name__.startswith("Gemma") else weight, eps)


def _layer(layer: Any, kind: str, window: int | None, cap: float | None, *, free: bool, int8: bool) -> _Layer:
    """One decoder layer's weights, packed. Gemma has norms before and behind both blocks, the others only before."""
    attn, mlp = layer.self_attn, layer.mlp
    framed = hasattr(layer, "pre_feedforward_layernorm")
    of_heads = (_norm(attn.q_norm), _norm(attn.k_norm)) if hasattr(attn, "q_norm") else ()
    held = tuple(norm.weight for norm in of_heads)
    pointers = tuple(weight.data_ptr() for weight in held) or (None, None)
    eps = of_heads[0].eps if of_heads else 0.0
    return _Layer(
        qkv=fused([attn.q_proj, attn.k_proj, attn.v_proj], free=free, int8=int8),
        out=fused([attn.o_proj], free=free, int8=int8),
        gate_up=fused([mlp.gate_proj, mlp.up_proj], free=free, int8=int8),
        down=fused([mlp.down_proj], free=free, int8=int8),
        before_attention=_norm(layer.input_layernorm),
        after_attention=_norm(layer.post_attention_layernorm) if framed else None,
        before_mlp=_norm(layer.pre_feedforward_layernorm if framed else layer.post_attention_layernorm),
        after_mlp=_norm(layer.post_feedforward_layernorm) if framed else None,
        kind=kind,
        attention=native.Layer(*pointers, window or 0, eps, float(attn.scaling), cap or 0.0),
        held=held,
    )
