"""Traversal verification of trees (2505.12398): from the leaves to the root, so that a whole path is judged at once.

A leaf is kept with its whole path, with a probability that looks at the path's joint law; a refused leaf is cut off and
what it covered is taken out of its parent's law. On chains it is block verification. Lossless where each child was
drawn from a known law given its elder siblings: with replacement, without, or chosen (a point mass of its own).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import tree as trees
from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier, law_of, ratio, residual, without
from .block import chance


@dataclass(slots=True)
class _Node:
    """A node on the leftmost path of what is left of the tree.

    Attributes:
        index: in the draft.
        cover: the probability with which it is kept once it is a leaf.
        p: [V] what is left of the target's law of the token after it.
        children: those not cut off yet, the next one first.
        q: [V] the law that the next child was drawn from, given its elder siblings; None for a leaf of the draft.
    """

    index: int
    cover: float
    p: Tensor
    children: list[int]
    q: Tensor | None


class Traversal(Verifier):
    """Try leaf after leaf, the leftmost first; keep the path to the first that passes."""

    spec = "traversal"

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        tokens, below = draft.tree.tokens.tolist(), trees.children(draft.tree.parents)

        def enter(index: int, cover: float) -> _Node:
            p, children = law.at(index), list(below[index])
            return _Node(index, cover, p, children, law_of(draft, children[0], p) if children else None)

        way = [enter(0, 1.0)]
        while True:
            node = way[-1]
            if node.children:
                assert node.q is not None
                token = tokens[node.children[0]]
                way.append(enter(node.children[0], min(1.0, node.cover * ratio(node.p, node.q, token))))
            elif len(way) == 1 or noise.accept(node.cover):
                return Verdict(tuple(step.index for step in way), noise.categorical(node.p))
            else:
                way.pop()
                self._cut(way[-1], draft)

    def _cut(self, node: _Node, draft: Draft) -> None:
        """Take the first child off a node: it was refused, and what it covered is no longer to be had there."""
        assert node.q is not None
        refused = node.children.pop(0)
        before = node.cover
        node.cover = chance(before, node.p, node.q)
        node.p = residual(node.p, node.q, before)
        if node.children and draft.drawn == "point":
            node.q = law_of(draft, node.children[0], node.p)
        elif draft.drawn == "without_replacement":
            node.q = without(node.q, int(draft.tree.tokens[refused]))
