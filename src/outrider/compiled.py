"""Transformers' modules compiled for a few fixed shapes: for GPUs, where launching kernels costs more than their work.

Passes are padded to buckets of node counts, the cache is preallocated and read whole, so `torch.compile` can replay
each pass as one CUDA graph. Wider passes (prefill) run as they are. Knows nothing of drafters, sampling or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import StaticPass
from .kv import KVCache
from .target import TransformersTarget
from .types import Scores, Tree

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # nodes per row


class CompiledTarget:
    """A `Target` over another's modules.

    Args:
        source: whose modules run.
        backend: of `torch.compile`; "eager" tests the static shapes without compiling.
    """

    build, exactness = "compiled", "ties"

    def __init__(self, source: TransformersTarget, *, backend: str = "inductor") -> None:
        self._source = source
        self.config, self.vocabulary, self.context = source.config, source.vocabulary, source.context
        self.eos, self.device, self.dtype = source.eos, source.device, source.dtype
        self._windows = set(source.windows.values())
        mode = "reduce-overhead" if backend == "inductor" and self.device.type == "cuda" else None
        self._run: Callable[..., Any] = torch.compile(_run, dynamic=False, backend=backend, mode=mode)

    @property
    def pass_bytes(self) -> int:
        """See `Target`."""
        return self._source.pass_bytes

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`."""
        return self._source.new_cache(rows, capacity)

    @torch.no_grad()
    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        widest = max(len(tree) for tree in trees)
        width = next((bucket for bucket in BUCKETS if bucket >= widest), None)
        if width is None or not cache.allocated:
            return self._source.forward(trees, cache, taps=taps, last_only=last_only)
        pass_ = StaticPass(trees, cache, self.device, width=width, windows=self._windows, dtype=self.dtype)
        for tensor in cache.tensors:  # a graph writes where it was recorded; without this the cache would be copied
            torch._dynamo.mark_static_address(tensor)
        ids = pass_.tokens().to(self.device)
        logits, states = self._run(self._source.model, ids, pass_.positions, pass_, bool(taps))
        results = []
        for row, tree in enumerate(trees):
            first = len(tree) - 1 if last_only else 0
            hidden = {layer: states[layer][row, : len(tree)].clone() for layer in taps}
            results.append(Scores(logits[row, first : len(tree)].clone(), hidden))  # the next replay writes there
        return results


def _run(model: Any, ids: Tensor, positions: Tensor, pass_: StaticPass, tapped: bool) -> tuple[Tensor, Any]:
    out = model(
        input_ids=ids, position_ids=positions, use_cache=False, output_hidden_states=tapped, outrider_pass=pass_
    )
    return out.logits, out.hidden_states if tapped else ()
