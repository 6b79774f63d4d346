"""Rejection sampling down a draft, chains and trees alike.

Sources: Leviathan et al., 2211.17192, and Chen et al., 2302.01318 (chains); SpecInfer, 2305.09781 (siblings drawn with
replacement); Sequoia, 2402.12374 (siblings drawn without).

At a node, each drafted child x is kept with probability min(1, p'(x) / q'(x)), where p' and q' begin as p and q. A
refusal leaves p' = norm(max(p' - q', 0)) to the next sibling, and at the end to the target; where siblings were drawn
without replacement, q' loses x too. The output has the target's law exactly, provided that q is the law the draft was
drawn from and that the rule's noise is independent of the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .. import tree as trees
from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier, law_of, ratio, residual, without


class TokenRejection(Verifier):
    """Accept or refuse node by node, from the root on."""

    spec = "token"

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        return descend(law.at, draft, noise)


def descend(p_at: Callable[[int], Tensor], draft: Draft, noise: Noise) -> Verdict:
    """From node 0 to the child that is kept, and on, until none is.

    Args:
        p_at: node -> [V], the law that the output has to have there.
        draft: whose children stand in the order in which they were drawn.
        noise: independent of the draft's.
    """
    below = trees.children(draft.tree.parents)
    path = [0]
    while True:
        child, token = kept_child(p_at(path[-1]), draft, below[path[-1]], noise)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


def kept_child(p: Tensor, draft: Draft, children: Sequence[int], noise: Noise) -> tuple[int | None, int]:
    """The child that is kept, with its token; or None, with a token from what is left of `p` [V]."""
    tokens = [int(draft.tree.tokens[child]) for child in children]
    if draft.drawn == "point" or not children:
        # The target's own draw, and the child that has it: for siblings that are given, no rule keeps more.
        token = noise.categorical(p)
        return next((child for child, drafted in zip(children, tokens, strict=True) if drafted == token), None), token
    q = law_of(draft, children[0], p)
    for child, token in zip(children, tokens, strict=True):
        if noise.accept(ratio(p, q, token)):
            return child, token
        p = residual(p, q)
        if draft.drawn == "without_replacement":
            q = without(q, token)
    return None, noise.categorical(p)
