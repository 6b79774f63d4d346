"""Attention of tree nodes over the KV cache, registered with Transformers under the name "outrider".

Transformers' modules hand over queries, keys and values of the new nodes; the pass that travels with them in the
keyword `outrider_pass` writes the keys into the cache and attends: committed tokens of the row, and the node's own
ancestors. Grouped heads are folded into the query length, so nothing is repeated. Knows no architectures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from . import tree as trees
from .errors import UnsupportedModel
from .kv import KVCache
from .types import Tree

NAME = "outrider"
_FOLD = 64  # query nodes up to which groups are folded; beyond it (prefill) the folded mask would outgrow its use
_REFUSED = ("s_aux", "position_bias", "head_mask", "sinks")  # attention extras that would have to change the softmax


class Pass:
    """One pass of a model over the trees of a batch: where its nodes lie and what each may see.

    Args:
        trees_: one tree per row of the cache; shorter ones are padded with nodes that nothing attends to.
        cache: rows in the same order. Room for the widest tree is made here.
        device: where positions and masks are wanted.
        width: pad to this many nodes; to the widest tree if not given.
        both_ways: a node sees all of its tree, what follows it too (block drafters).
    """

    def __init__(
        self,
        trees_: Sequence[Tree],
        cache: KVCache,
        device: torch.device,
        *,
        width: int | None = None,
        both_ways: bool = False,
    ) -> None:
        self.cache = cache
        self._both_ways = both_ways
        self.width = width or max(len(tree) for tree in trees_)
        self.windows: dict[int, int | None] = {}  # layer -> the window it asked for; read by the capability check
        cache.reserve(self.width)
        self._end = max(cache.lengths) + self.width
        self._masks: dict[tuple[int | None, int, torch.dtype, torch.device], Tensor | None] = {}
        self._trees = trees_
        self._depths = torch.stack([pad(trees.depths(t.parents), (0, self.width - len(t))) for t in trees_])
        self._lengths = torch.tensor(cache.lengths)[:, None]
        self._host_positions = self._lengths + self._depths
        self.positions = self._host_positions.to(device)  # [rows, width]; padding repeats node 0's

    def tokens(self) -> Tensor:
        """[rows, width] int64 on the host, padded with each row's node 0."""
        if len(self._trees) == 1 and len(self._trees[0]) == self.width:
            return self._trees[0].tokens[None]
        return torch.stack([torch.cat([t.tokens, t.tokens[:1].expand(self.width - len(t))]) for t in self._trees])

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """Write `key` and `value` [rows, KH, N, D], attend with `query` [rows, H, N, D]; gives [rows, N, H, D]."""
        self.windows[layer] = window
        keys, values = self.cache.write(layer, key, value)
        start = self._start(window)
        keys, values = keys[:, :, start : self._end], values[:, :, start : self._end]
        rows, heads, nodes, _ = query.shape
        groups = heads // keys.shape[1]
        fold = groups if groups > 1 and nodes <= _FOLD else 1
        mask = self._mask(window, fold, query.dtype, query.device)
        if fold > 1:
            query = query.reshape(rows, heads // groups, groups * nodes, -1)
        if cap is None:
            out = scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
            )
        else:
            out = _capped(query, keys, values, mask, scale, cap)
        return out.reshape(rows, heads, nodes, -1).transpose(1, 2).contiguous()  # some models take a view of it

    def _start(self, window: int | None) -> int:
        """The first slot that any row can still see."""
        return 0 if window is None else max(0, min(self.cache.lengths) - window + 1)

    def _mask(self, window: int | None, fold: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Additive mask [rows, 1, fold * N, slots] of what each node may see; None where it may see everything."""
        if window is not None and window >= self._end:
            window = None
        name = (window, fold, dtype, device)
        if name not in self._masks:
            allowed = self._allowed(window, self._start(window), self._end)
            if bool(allowed.all()):
                self._masks[name] = None
            else:
                mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -math.inf)
                self._masks[name] = mask.repeat(1, fold, 1)[:, None].to(device)
        return self._masks[name]

    def _allowed(self, window: int | None, start: int, end: int) -> Tensor:
        """[rows, N, end - start] bool on the host: what each node may see of these slots."""
        slots = torch.arange(end)
        allowed = (slots < self._lengths)[:, None].repeat(1, self.width, 1)
        for row, tree in enumerate(self._trees):
            first, size = self.cache.lengths[row], len(tree)
            allowed[row, :size, first : first + size] = self._both_ways or trees.ancestors(tree.parents)
            allowed[row, size:, first] = True  # padding sees node 0: a row of nothing but -inf would give NaN
        if window is not None:
            allowed &= self._distances(end) > -window
        return allowed[:, :, start:]

    def _distances(self, end: int) -> Tensor:
        """[rows, N, end] on the host: how far behind each node (so negative) lies what a slot holds, in positions."""
        where = torch.arange(end).expand(len(self._trees), -1).clone()  # committed tokens lie in order
        for row, first in enumerate(self.cache.lengths):
            where[row, first : first + self.width] = self._host_positions[row]
        return where[:, None] - self._host_positions[:, :, None]


class StaticPass(Pass):
    """A pass all of whose tensors keep their shapes from round to round, so that it can be compiled.

    Attention reads the whole cache under a mask that is an input like the tokens. Nothing that changes between rounds
    but tensors is looked at while it runs.

    Args:
        trees_, cache, device, width: see `Pass`; every layer of the cache is allocated.
        windows: those that the model's layers have.
        dtype: of the masks.
    """

    def __init__(
        self,
        trees_: Sequence[Tree],
        cache: KVCache,
        device: torch.device,
        *,
        width: int,
        windows: Iterable[int | None],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(trees_, cache, device, width=width)
        self._slots = (self._lengths + torch.arange(width)).to(device)
        self._rows = torch.arange(len(trees_), device=device)[:, None]
        self._of_window = {}
        for window in set(windows):
            barred = ~self._allowed(window, 0, cache.capacity)
            mask = torch.zeros(barred.shape, dtype=dtype).masked_fill_(barred, -math.inf)
            self._of_window[window] = mask[:, None].to(device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """See `Pass.attend`."""
        keys, values = self.cache.written(layer, self._rows, self._slots, key, value)
        mask = self._of_window[window]
        if cap is not None:
            return _capped(query, keys, values, mask, scale, cap).transpose(1, 2).contiguous()
        grouped = query.shape[1] != keys.shape[1]
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2).contiguous()


def _capped(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, cap: float) -> Tensor:
    """Attention with soft-capped scores (Gemma 2), which no fused kernel on the CPU offers."""
    groups = query.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = torch.tanh(query @ keys.transpose(-1, -2) * (scale / cap)) * cap
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ values


def layer_of(module: torch.nn.Module) -> int:
    """The number under which an attention module's keys are kept.

    Raises:
        UnsupportedModel: it has none.
    """
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(
            f"{type(module).__name__} has no layer_idx to keep its keys under: choose another target."
        )
    return layer


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    outrider_pass: Pass | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The signature of Transformers' attention functions."""
    named = [name for name in _REFUSED if extras.get(name) is not None]
    if outrider_pass is None or named:
        what = f"uses {named[0]} in its attention" if named else "does not hand keywords on to its attention layers"
        raise UnsupportedModel(f"{type(module).__name__} {what}, which Outrider cannot serve: choose another target.")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer = layer_of(module)
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            f"{type(module).__name__} lets tokens see those after them, so it is not causal as configured: choose a "
            "decoder-only target (for models of the BERT kind, is_decoder=True)."
        )
    if layer in outrider_pass.windows:
        raise UnsupportedModel(
            f"{type(module).__name__} attends more than once in layer {layer}, and the cache holds one set of keys and "
            "values per layer: choose another target."
        )
    return outrider_pass.attend(layer, query, key, value, scale, sliding_window, softcap), None


AttentionInterface.register(NAME, _attention)
