"""SVIP: stop when the drafter's entropy says that the target is likely to refuse.

The chance of refusal is the total variation between p and q, which Pinsker's inequality bounds by the root of half
their divergence. Zhang et al. estimate that divergence by a multiple of H(q), the drafter's entropy in nats, and stop
where sqrt(0.15 * H(q)) exceeds 0.3. The token drawn from that law is kept.

Source: Zhang et al., "Draft Model Knows When to Stop", 2411.18462.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Maker, Setting, Stopping, needs_law, no_argument

SCALE, THRESHOLD = 0.15, 0.3


def doubtful(law: Tensor, token: int) -> bool:
    """Whether the law [V] is so spread out that drafting should end, whatever the token."""
    entropy = float(torch.special.entr(law).sum())
    return math.sqrt(SCALE * entropy) > THRESHOLD


class Entropy(Stopping):
    """Stops behind the first token whose law is doubtful."""

    def __init__(self) -> None:
        super().__init__(doubtful)


def make(argument: str, setting: Setting) -> Maker:
    """`entropy`.

    Raises:
        BadOption: there is an argument, or the drafter has no law.
    """
    no_argument("entropy", argument)
    needs_law("entropy", setting)
    return Entropy
