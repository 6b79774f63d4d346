"""How far one law lies from another. Pure."""

from __future__ import annotations

from torch import Tensor

from ..types import Divergence

NONE = Divergence(0.0, 0.0)


def divergence(used: Tensor, p: Tensor) -> Divergence:
    """Of the law [V] that a rule used from the target's [V], both normalised."""
    used, p = used.double(), p.double()
    support = used > 0
    kl = float((used[support] * (used[support] / p[support]).log()).sum())
    return Divergence(float((used - p).abs().sum()) / 2, max(0.0, kl))  # rounding may leave a negative zero
