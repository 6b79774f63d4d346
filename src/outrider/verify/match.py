"""The default rule: draw the target's own token at each node, go on while the draft has it.

Lossless for every drafter, processor and tree, since a draw never depends on the draft, and the only rule under which
the same seed gives the very tokens of plain decoding. Greedy decoding is its zero-temperature case.
"""

from __future__ import annotations

from .. import tree as trees
from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier


class Match(Verifier):
    """Keep the path along which the draft agrees with the target's own draws."""

    spec = "match"
    coupled = True

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        tree = draft.tree
        depths = trees.depths(tree.parents).tolist()
        own = law.draws(noise, [position + depth for depth in depths])
        tokens, below = tree.tokens.tolist(), trees.children(tree.parents)
        path = [0]
        while True:
            token = own[path[-1]]
            following = next((child for child in below[path[-1]] if tokens[child] == token), None)
            if following is None:
                return Verdict(tuple(path), token)
            path.append(following)
