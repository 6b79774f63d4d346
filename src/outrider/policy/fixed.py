"""The same length every round."""

from __future__ import annotations

from ..errors import BadOption
from ..types import Budget, Round
from .base import Maker, Setting


class Fixed:
    """Drafts `depth` tokens, always."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def budget(self) -> Budget:
        """See `Policy`."""
        return Budget(self._depth)

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


def make(argument: str, setting: Setting) -> Maker:
    """`fixed:K`.

    Raises:
        BadOption: K is no number of 1 or more.
    """
    if not argument.isdecimal() or int(argument) < 1:
        raise BadOption(
            f"policy 'fixed:{argument}' has no usable length: write fixed:K with K of 1 or more, "
            "or use the drafter 'none' for plain decoding."
        )
    return lambda: Fixed(int(argument))
