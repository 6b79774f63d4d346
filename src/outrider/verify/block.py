"""Block verification of chains (Sun et al., 2403.10444): the draft is judged as a whole, not token by token.

P_i is how much of the target's law of the first i tokens the draft's law covers. The longest prefix that passes its own
test stays, even where a shorter one fails, so that on average at least as many tokens are kept as under `token`; for
one drafted token, and for tokens that were not drawn at random, the two are the same. Lossless.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier, law_of, ratio, residual


class Block(Verifier):
    """Keep the longest prefix whose joint probability passes."""

    spec = "block"
    chains_only = True

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        tokens = draft.tree.tokens.tolist()
        last = len(tokens) - 1
        cover = [1.0]  # P_0 to P_D
        for node in range(1, last + 1):
            p = law.at(node - 1)
            cover.append(min(1.0, cover[-1] * ratio(p, law_of(draft, node, p), tokens[node])))
        passing = [chance(cover[node], *self._laws(law, draft, node)) for node in range(1, last)]
        if last:
            passing.append(cover[last])
        kept = self._longest(passing, noise)
        path = tuple(range(kept + 1))
        if kept == last:
            return Verdict(path, noise.categorical(law.at(last)))
        p, q = self._laws(law, draft, kept)
        return Verdict(path, noise.categorical(residual(p, q, cover[kept])))

    def _laws(self, law: Law, draft: Draft, node: int) -> tuple[Tensor, Tensor]:
        """p and q of the token after a node."""
        p = law.at(node)
        return p, law_of(draft, node + 1, p)

    def _longest(self, passing: Sequence[float], noise: Noise) -> int:
        """How many tokens stay, given the probability with which each prefix passes: the longest that does."""
        for length in range(len(passing), 0, -1):
            if noise.accept(passing[length - 1]):
                return length
        return 0


def chance(cover: float, p: Tensor, q: Tensor) -> float:
    """With what probability a prefix stays once every longer one has failed: S / (S + 1 - P).

    Args:
        cover: P, how much of the prefix's probability the draft covers.
        p, q: [V] the laws of the token after it.
    """
    left = float((cover * p - q).clamp_(min=0).sum())
    missing = left + 1.0 - cover
    return left / missing if missing > 0 else 1.0
