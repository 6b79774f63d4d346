"""The same length every round; or a tree of the same size."""

from __future__ import annotations

from ..errors import BadOption
from ..types import Budget, Round
from .base import Maker, Setting


class Fixed:
    """Drafts `depth` tokens, always.

    Args:
        depth: tokens one after another.
        nodes: tokens altogether; more than `depth` ask for a tree.
    """

    def __init__(self, depth: int, nodes: int | None = None) -> None:
        self._budget = Budget(depth, nodes or depth)

    def budget(self) -> Budget:
        """See `Policy`."""
        return self._budget

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


def make(argument: str, setting: Setting) -> Maker:
    """`fixed:K`, or `fixed:K,NODES` for trees.

    Raises:
        BadOption: K is no number of 1 or more, or there are fewer nodes than that.
    """
    depth, comma, nodes = argument.partition(",")
    if not depth.isdecimal() or int(depth) < 1:
        raise BadOption(
            f"policy 'fixed:{argument}' has no usable length: write fixed:K with K of 1 or more, "
            "or use the drafter 'none' for plain decoding."
        )
    if comma and not (nodes.isdecimal() and int(nodes) > int(depth)):
        raise BadOption(
            f"policy 'fixed:{argument}' is no tree: write fixed:K,NODES with more nodes than K, or fixed:K for chains."
        )
    return lambda: Fixed(int(depth), int(nodes) if comma else None)
