"""What all trained heads share: weights of their own, and some borrowed from the target. Knows no files, no caches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class DraftHead(nn.Module):
    """A module that drafts from a target's hidden states.

    Attributes:
        borrowed: children whose weights are the target's: frozen, and no part of a checkpoint.
    """

    borrowed: tuple[str, ...] = ()

    def trained(self) -> dict[str, Tensor]:
        """Its own weights by name, detached; they share memory with the module's."""
        return {name: parameter.detach() for name, parameter in self.named_parameters() if self._own(name)}

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these weights as its own.

        Raises:
            KeyError: some are missing, are too many, or have another shape; the message names one of them.
        """
        own = self.trained()
        for name in sorted(own.keys() | tensors.keys()):
            if name not in tensors:
                raise KeyError(f"{name} is missing")
            if name not in own:
                raise KeyError(f"{name} has no place")
            if own[name].shape != tensors[name].shape:
                raise KeyError(f"{name} has the shape {list(tensors[name].shape)} instead of {list(own[name].shape)}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def _own(self, name: str) -> bool:
        return name.partition(".")[0] not in self.borrowed


class Norm(nn.RMSNorm):
    """An RMS norm in the precision of its weight, whatever comes in: under autocast that is bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        return super().forward(x.to(self.weight.dtype))


class TargetOutput(nn.Module):
    """The target's output layer for some of its tokens: final states to logits. Frozen.

    Args:
        weight: [n, D], the rows of those tokens.
        bias: [n], or None.
        cap: logits are bent to stay below it (Gemma 2), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, cap: float | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.linear.bias = nn.Parameter(bias, requires_grad=False)
        self._cap = cap

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., n]"""
        logits: Tensor = self.linear(states)
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def part(self, places: Tensor) -> TargetOutput:
        """The same for some of these tokens.

        Args:
            places: [m] int64, which of the n.
        """
        weight, bias = self.linear.weight, self.linear.bias
        return TargetOutput(weight[places], None if bias is None else bias[places], self._cap)


def normed_apart(features: Tensor, norms: Iterable[nn.Module], count: int) -> Tensor:
    """Tapped states side by side, [..., count * D], each normed for itself: deep layers' would drown the others'."""
    return torch.cat([norm(part) for norm, part in zip(norms, features.chunk(count, -1), strict=True)], -1)


def initialise(module: nn.Module, width: int) -> None:
    """Weights for the beginning: linears small, so that a step starts below the loss of a uniform guess; norms at 1."""
    for child in module.modules():
        if isinstance(child, nn.Linear):
            nn.init.normal_(child.weight, std=0.5 / math.sqrt(max(width, child.in_features)))
            if child.bias is not None:
                nn.init.zeros_(child.bias)


def quiet_norm(rows: Tensor) -> float:
    """The weight of a norm before an output layer with these rows, [n, D], at which a head that knows nothing yet
    starts near a uniform guess; read at full scale it would start far above."""
    return min(1.0, 1.0 / float(rows.norm(dim=-1).mean()))
