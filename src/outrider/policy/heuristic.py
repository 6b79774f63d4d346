"""Transformers' rule: start at 5, two more when all were accepted, otherwise one less, never under 1.

Source: Gante, "Assisted Generation", Hugging Face blog, 2023.
"""

from __future__ import annotations

from ..types import Budget, Round
from .base import Maker, Setting, no_argument


class Heuristic:
    """Lengthens after full acceptance, shortens otherwise."""

    def __init__(self, start: int = 5) -> None:
        self._depth = start

    def budget(self) -> Budget:
        """See `Policy`."""
        return Budget(self._depth)

    def observe(self, round_: Round) -> None:
        """See `Policy`; a round without a draft says nothing."""
        if round_.drafted:
            self._depth = self._depth + 2 if round_.accepted == round_.drafted else max(1, self._depth - 1)


def make(argument: str, setting: Setting) -> Maker:
    """`heuristic`.

    Raises:
        BadOption: there is an argument.
    """
    no_argument("heuristic", argument)
    return Heuristic
