"""How much to draft at a time, as a thing to be chosen: a chain of k tokens, or a tree. Knows no models."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadOption


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What is asked of a drafter in every round.

    Attributes:
        depth: tokens one after another.
        nodes: tokens altogether; as many as `depth` in a chain, more in a tree.
    """

    depth: int
    nodes: int

    @classmethod
    def chain(cls, k: int) -> Shape:
        """k tokens one after another."""
        return cls(k, k)

    @property
    def is_tree(self) -> bool:
        """Whether it has branches."""
        return self.nodes > self.depth

    @property
    def policy(self) -> str:
        """The spec of the policy that asks for it."""
        return f"fixed:{self.depth},{self.nodes}" if self.is_tree else f"fixed:{self.depth}"

    @property
    def name(self) -> str:
        """For tables."""
        return f"tree {self.depth}x{self.nodes}" if self.is_tree else f"k={self.depth}"

    def fits(self, other: Shape) -> bool:
        """Whether drafts of another shape tell of drafts of this one: both chains or both trees, this no larger."""
        return self.is_tree == other.is_tree and self.depth <= other.depth and self.nodes <= other.nodes

    def cut(self, depth: int) -> Shape:
        """The same where no more than `depth` tokens have room, as `types.Budget.cut` has it."""
        if depth >= self.depth:
            return self
        return Shape(depth, self.nodes if self.is_tree and depth else depth)


def parse_trees(text: str) -> tuple[Shape, ...]:
    """Trees from a list like "4x8,4x16": depth, and nodes altogether.

    Raises:
        BadOption: something else, or no more nodes than depth.
    """
    found = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        depth, _, nodes = part.partition("x")
        if not (depth.isdecimal() and nodes.isdecimal() and 0 < int(depth) < int(nodes)):
            raise BadOption(
                f"--trees is {text!r}: write DEPTHxNODES with more nodes than depth and commas between, like 4x8,4x16."
            )
        found.append(Shape(int(depth), int(nodes)))
    if not found:
        raise BadOption("--trees is empty: write trees like 4x8,4x16, or leave it out.")
    return tuple(sorted(set(found)))
