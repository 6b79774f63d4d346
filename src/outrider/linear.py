"""Linears for the machine at hand. Knows nothing about models.

On a CPU the weight is reordered once for oneDNN. A pass over several tokens then costs nearly what one token costs,
which is what makes speculation pay, and a row's result does not depend on how many rows share the pass. Elsewhere, and
where oneDNN cannot compute in the weight's type, a plain linear is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

NARROWEST = 4  # rows: oneDNN multiplies a single row by another kernel, whose rounding differs (DESIGN 5)


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN multiplies in this type on this device."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(nn.Module):
    """y = x W^T + b with W reordered for oneDNN; the weight that was passed is not kept.

    Args:
        weights: [out_i, in] each; their outputs come side by side, from one product.
        biases: [out_i] or None each.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        super().__init__()
        weight = torch.cat([w.detach() for w in weights]) if len(weights) > 1 else weights[0].detach()
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        parts = [b.detach() if b is not None else w.new_zeros(w.shape[0]) for w, b in zip(weights, biases, strict=True)]
        self._bias = torch.cat(parts) if any(b is not None for b in biases) else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; a single row is padded to the narrowest width."""
        rows = x.reshape(-1, self.in_features)
        count = rows.shape[0]
        if count < NARROWEST:
            rows = nn.functional.pad(rows, (0, 0, 0, NARROWEST - count))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return y[:count].reshape(*x.shape[:-1], self.out_features)


def fused(linears: Sequence[nn.Linear], *, free: bool) -> nn.Module:
    """One linear that does the work of several with the same input; `free` empties them as it goes."""
    packed = PackedLinear([linear.weight for linear in linears], [linear.bias for linear in linears])
    if free:
        for linear in linears:
            _empty(linear)
    return packed


def pack_modules(model: nn.Module) -> None:
    """Replace a model's linears, GPT-2's `Conv1D` included, by packed ones, one at a time and in place.

    The old weights go as soon as nobody else holds them.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = _weight_of(child)
            if weight is not None:
                bias = child.bias
                setattr(parent, name, PackedLinear([weight], [bias if isinstance(bias, Tensor) else None]))


def _weight_of(module: Any) -> Tensor | None:
    """[out, in] of a linear or a `Conv1D`; None of anything else."""
    if type(module) is nn.Linear:
        return module.weight
    if type(module).__name__ == "Conv1D":
        return module.weight.T  # type: ignore[no-any-return]
    return None


def _empty(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
