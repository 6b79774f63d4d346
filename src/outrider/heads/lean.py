"""Parts of a head on the kernels of `native`, for drafting on a CPU: a step of one layer is too short for many calls.

They compute what the parts in `blocks` do, but for rounding. Knows no files, no caches and no loop; attention over the
cache is the caller's, who gets queries, keys and values as they come out of their product, unturned.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .. import native
from ..linear import fused, pack_linears
from .base import Norm
from .blocks import Attention, Mlp, attention_shapes
from .recurrent import RecurrentHead

LeanAttend = Callable[[native.Layer, Tensor], Tensor]
"""(a layer's constants, [1, N, (heads + 2 * kv_heads) * size]) -> [1, N, heads * size]"""


class _Norm(nn.Module):
    def __init__(self, source: Norm) -> None:
        super().__init__()
        assert source.eps is not None, "heads say it"
        self._weight, self._eps = source.weight.detach().float(), source.eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        return native.norm(x.reshape(-1, x.shape[-1]).contiguous(), self._weight, self._eps).view(x.shape)


class _Attention(Attention):
    def __init__(self, source: Attention) -> None:
        nn.Module.__init__(self)
        self.shape = source.shape
        self._qkv = fused([source.q_proj, source.k_proj, source.v_proj], free=True)
        self._out = fused([source.o_proj], free=True)
        norms = [part for part in (source.q_norm, source.k_norm) if isinstance(part, Norm)]
        self._held = [part.weight.detach().float() for part in norms]  # what the constants point to
        pointers = tuple(weight.data_ptr() for weight in self._held) or (None, None)
        eps = source.shape.eps if norms else 0.0
        self._constants = native.Layer(*pointers, 0, eps, source.shape.head_size**-0.5, 0.0)

    def forward(self, x: Tensor, positions: Tensor, attend: LeanAttend) -> Tensor:  # type: ignore[override]
        """[1, N, inputs] -> [1, N, D]; the caller turns queries and keys."""
        mixed: Tensor = self._out(attend(self._constants, self._qkv(x)))
        return mixed


class _Mlp(nn.Module):
    def __init__(self, source: Mlp) -> None:
        super().__init__()
        self._gate_up = fused([source.gate_proj, source.up_proj], free=True)
        self._down = fused([source.down_proj], free=True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        both = self._gate_up.rows(x.reshape(-1, x.shape[-1]))
        return self._down.rows(native.gate(both, native.ACTS["silu"])).view(x.shape)


def can_be_lean(head: RecurrentHead) -> bool:
    """Whether the kernels serve a head, in its precision and place: one with attention, all of it alike."""
    weight, shapes = next(head.parameters()), attention_shapes(head)
    known = weight.dtype in native.DTYPES and weight.device.type == "cpu" and native.available()
    alike = bool(shapes) and all(shape == shapes[0] for shape in shapes)
    return known and alike and shapes[0].head_size % 8 == 0 and shapes[0].head_size <= native.LARGEST_HEAD


def make_lean(head: RecurrentHead) -> None:
    """Replace the parts of a head that nobody else holds, in place; `can_be_lean` is true of it."""
    shape = attention_shapes(head)[0]
    for parent in list(head.modules()):
        for name, child in list(parent.named_children()):
            for kind, lean in ((Norm, _Norm), (Attention, _Attention), (Mlp, _Mlp)):
                if type(child) is kind:
                    setattr(parent, name, lean(child))  # type: ignore[arg-type]
    pack_linears(head)
    head.lean = shape
