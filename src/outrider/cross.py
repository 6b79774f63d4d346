"""Attention of an encoder-decoder model: a decoder's nodes over the KV cache, and over what the encoder made.

Registered with Transformers under a name of its own, so that decoder-only targets never come here. A pass that travels
in the keyword `outrider_pass` marks the decoder; without one it is the encoder that runs, as Transformers itself runs
it. Relative positions (T5) are a bias by the distance between a node and what a slot holds. Knows no architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .attention import Pass, layer_of
from .kv import Encoded, KVCache
from .types import Tree

NAME = "outrider_encoder_decoder"
Bias = Callable[[Tensor], Tensor]
"""Distances [rows, N, S] (what a slot holds minus the node, in positions) -> [rows, heads, N, S]."""


class CrossPass(Pass):
    """A pass of a decoder that reads an encoder's states as well.

    Args:
        trees_, cache, device: see `Pass`; every row of the cache has been told what its encoder made.
        bias: of relative positions; None for a decoder without.

    Attributes:
        crossed: layers whose cross-attention has run; read by the capability check.
    """

    def __init__(
        self, trees_: Sequence[Tree], cache: KVCache, device: torch.device, *, bias: Bias | None = None
    ) -> None:
        super().__init__(trees_, cache, device)
        self.crossed: set[int] = set()
        self._device, self._bias = device, bias
        self._biased: Tensor | None = None

    def attend_itself(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`Pass.attend`, with the bias where there is one."""
        if self._bias is None:
            return self.attend(layer, query, key, value, scale, None, None)
        self.windows[layer] = None
        keys, values = self.cache.write(layer, key, value)
        keys, values = keys[:, :, : self._end], values[:, :, : self._end]
        if self._biased is None:  # the same for all layers
            self._biased = self._bias(self._distances(self._end).to(self._device)).to(query.dtype)
            mask = self._mask(None, 1, query.dtype, query.device)
            if mask is not None:
                self._biased = self._biased + mask
        out = scaled_dot_product_attention(query, keys, values, attn_mask=self._biased, scale=scale)
        return out.transpose(1, 2).contiguous()

    def attend_source(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """Every node sees all of its row's source, [rows, H, N, D] -> [rows, N, H, D].

        Row by row: sources differ in length, nothing is padded, and a row's result does not depend on its company.
        """
        self.crossed.add(layer)
        parts = []
        for row in range(query.shape[0]):
            encoded = self.cache.encoded[row]
            assert isinstance(encoded, Encoded)  # `EncoderDecoderTarget.new_cache` sees to it
            keys, values = encoded.layers[layer]
            parts.append(scaled_dot_product_attention(query[row : row + 1], keys, values, scale=scale))
        return torch.cat(parts).transpose(1, 2).contiguous()


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    outrider_pass: CrossPass | None = None,
    **extras: Any,
) -> tuple[Tensor, Tensor | None]:
    """The signature of Transformers' attention functions."""
    if outrider_pass is None:
        attended: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **extras
        )
        return attended
    layer = layer_of(module)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if getattr(module, "is_causal", True):
        return outrider_pass.attend_itself(layer, query, key, value, scale), None
    return outrider_pass.attend_source(layer, query, scale), None


AttentionInterface.register(NAME, _attention)
