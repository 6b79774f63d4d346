"""Linears for the machine at hand. Knows nothing about models.

On a CPU the weights are reordered once, so that a pass over several tokens costs nearly what one token costs, and a
row's result does not depend on how many rows share the pass. That is what makes speculation pay. bfloat16 is oneDNN's
where the hardware multiplies in it; all else to our own kernels, which a C++ compiler has to build.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import native
from .memory import discard

_X86 = ("x86_64", "AMD64")
_PART = 4096  # outputs converted at a time: only so much of a weight is in memory twice
_UNITS = 64  # unit vectors at a time
_NARROWEST = 4  # rows: oneDNN multiplies a single row by another kernel, whose rounding differs (DESIGN 5)


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16, so that oneDNN will. It says that it supports any x86 with AVX-512, and
    emulates bfloat16 where that is all there is: slower than float32, and than our own kernels."""
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return _onednn_has_bfloat16() and (platform.machine() not in _X86 or bool(has()))


def _onednn_has_bfloat16() -> bool:
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are fast linears for weights of this type on this device."""
    if device.type != "cpu":
        return False
    if dtype == torch.bfloat16 and has_fast_bfloat16():
        return True
    return dtype in native.DTYPES and native.available()


class FastLinear(nn.Module):
    """y = x W^T + b. Several weights with the same input are one product; their outputs come side by side.

    Args:
        outputs, inputs: of all weights together.
    """

    weight = None  # T5's modules look at its type before they call a linear

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.out_features, self.in_features = outputs, inputs

    @property
    def nbytes(self) -> int:
        """Bytes of weights that every pass reads."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        return self.rows(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def rows(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]"""
        raise NotImplementedError


class OneDnnLinear(FastLinear):
    """On a weight reordered for oneDNN."""

    def __init__(self, weights: Sequence[Tensor], bias: Tensor | None) -> None:
        super().__init__(sum(weight.shape[0] for weight in weights), weights[0].shape[1])
        weight = torch.cat([w.detach() for w in weights])
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        self._bias = None if bias is None else bias.to(weight.dtype)

    @property
    def nbytes(self) -> int:
        """See `FastLinear`; oneDNN keeps the size of the weights."""
        return int(self.out_features * self.in_features * self._packed.element_size())

    def rows(self, x: Tensor) -> Tensor:
        """See `FastLinear`."""
        count = x.shape[0]
        if count < _NARROWEST:
            x = nn.functional.pad(x, (0, 0, 0, _NARROWEST - count))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y[:count]


class NativeLinear(FastLinear):
    """On our own kernels; int8 if asked for."""

    def __init__(self, panels: native.Panels, bias: Tensor | None) -> None:
        super().__init__(panels.outputs, panels.inputs)
        self.panels, self._bias = panels, None if bias is None else bias.float()

    @property
    def nbytes(self) -> int:
        """See `FastLinear`."""
        return self.panels.nbytes

    def rows(self, x: Tensor) -> Tensor:
        """See `FastLinear`."""
        return self.panels.multiply(x, self._bias)


class RowsOf(nn.Module):
    """An embedding whose table is the weight of a linear: the two are tied, so one copy serves both."""

    def __init__(self, linear: NativeLinear, scale: Tensor | None = None) -> None:
        super().__init__()
        self._panels, self._scale = linear.panels, scale

    def forward(self, ids: Tensor) -> Tensor:
        """[...] int64 -> [..., in]"""
        rows = self._panels.rows(ids)
        return rows if self._scale is None else rows * self._scale.to(rows.dtype)


def fused(linears: Sequence[nn.Module], *, free: bool, int8: bool = False, tied: bool = False) -> FastLinear:
    """One linear that does the work of several with the same input.

    Args:
        linears: `nn.Linear`, or GPT-2's `Conv1D`.
        free: empty them part by part as they are converted.
        int8: round weights and inputs.
        tied: an embedding will read the weights back, which only our own kernels allow.
    """
    weights = [_weight_of(linear) for linear in linears]
    bias = _bias(linears, weights)
    dtype = weights[0].dtype
    if dtype == torch.bfloat16 and has_fast_bfloat16() and not int8 and not (tied and native.available()):
        whole: FastLinear = OneDnnLinear(weights, bias)
        if free:
            for linear in linears:
                _empty(linear)
        return whole
    panels = native.Panels(sum(weight.shape[0] for weight in weights), weights[0].shape[1], dtype, int8=int8)
    del weights
    for linear in linears:
        for part in torch.split(_weight_of(linear), _PART):
            panels.put(part)
            if free:
                discard(part)
        if free:
            _empty(linear)
    return NativeLinear(panels, bias)


@torch.no_grad()
def read_back(linear: nn.Module, inputs: int, like: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Weight [n, inputs] and bias [n] of a linear, whatever it is packed as: of a packed one by what it makes of unit
    vectors, which is exact but for int8's rounding. They are copies; a packed one's bias of zeros is None.

    Args:
        linear: a linear of Torch's, GPT-2's `Conv1D`, or `FastLinear`.
        inputs: its width.
        like: of the type and on the device that it computes in.
        rows: [n] int64, which; all if not given.
    """
    chosen: Any = slice(None) if rows is None else rows
    held, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
    if not isinstance(linear, FastLinear) and isinstance(held, Tensor) and held.device.type != "meta":
        if rows is not None:
            chosen = rows.to(held.device)
        weight = _weight_of(linear)[chosen].clone()
        return weight, None if bias is None else bias.detach()[chosen].clone()
    unit = torch.eye(inputs, dtype=like.dtype, device=like.device)
    nothing: Tensor = linear(unit.new_zeros(1, inputs))[0, chosen]
    columns = torch.cat([linear(part)[:, chosen] - nothing for part in torch.split(unit, _UNITS)])
    return columns.T.contiguous(), nothing if bool(nothing.any()) else None


def pack_modules(model: Any, *, int8: bool = False) -> None:
    """Replace a model's linears by fast ones, one at a time and in place.

    The old weights go as soon as nobody else holds them. A plain embedding that is tied to the output is read from
    there.
    """
    table = model.get_input_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_linear(child):
                tied = child.weight is table.weight
                packed = fused([child], free=False, int8=int8, tied=tied)
                setattr(parent, name, packed)
                if tied and type(table) is nn.Embedding and isinstance(packed, NativeLinear) and not int8:
                    model.set_input_embeddings(RowsOf(packed))


def pack_linears(module: nn.Module) -> None:
    """Replace the linears of a module that nobody else holds, however deep they lie, by fast ones, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_linear(child):
                setattr(parent, name, fused([child], free=True))


def _is_linear(module: Any) -> bool:
    return (type(module) is nn.Linear or type(module).__name__ == "Conv1D") and not is_wrapped(module)


def is_wrapped(module: nn.Module) -> bool:
    """Whether calling a module does more than its class says: somebody has hooked it, or replaced its `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _weight_of(module: Any) -> Tensor:
    """[out, in]"""
    weight: Tensor = module.weight.detach()
    return weight.T if type(module).__name__ == "Conv1D" else weight


def _bias(linears: Sequence[Any], weights: Sequence[Tensor]) -> Tensor | None:
    """The biases side by side, zeros where one has none; None where none has."""
    biases = [linear.bias if isinstance(linear.bias, Tensor) else None for linear in linears]
    if all(bias is None for bias in biases):
        return None
    parts = [w.new_zeros(w.shape[0]) if b is None else b.detach() for w, b in zip(weights, biases, strict=True)]
    return torch.cat(parts)


def _empty(linear: Any) -> None:
    linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
