"""Stop when the drafter's own probability of its token falls under a threshold.

Source: Transformers' assisted generation ("assistant_confidence_threshold", 0.4 by default there too).
"""

from __future__ import annotations

from ..errors import BadOption
from .base import Maker, Setting, Stopping, needs_law

THRESHOLD = 0.4


class Confidence(Stopping):
    """Stops behind the first token that the drafter gives less than `threshold`."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        super().__init__(lambda law, token: float(law[token]) < threshold)


def make(argument: str, setting: Setting) -> Maker:
    """`confidence` or `confidence:t`.

    Raises:
        BadOption: t is no probability that could ever stop a draft, or the drafter has none.
    """
    try:
        threshold = float(argument) if argument else THRESHOLD
    except ValueError:
        threshold = 0.0
    if not 0 < threshold <= 1:
        raise BadOption(f"policy 'confidence:{argument}' has no usable threshold: write confidence:t with 0 < t <= 1.")
    needs_law("confidence", setting)
    return lambda: Confidence(threshold)
