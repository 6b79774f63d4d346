"""Typical acceptance (Medusa, Cai et al., 2401.10774): keep what the target finds plausible, drawn or not.

A drafted x stays where p(x) > min(epsilon, delta * exp(-H(p))), with H the entropy of p in nats: the surer the target,
the more is asked. The longest path all of whose tokens pass is kept, the likeliest of equally long ones. Relaxed: given
the draft, what passes is written for certain. At temperature 0 only the target's own choice passes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import BadOption
from ..sampling import Law
from ..types import Divergence, Draft, Noise, Verdict
from .base import Verifier
from .divergence import NONE


class Typical(Verifier):
    """Keep the longest plausible path.

    Args:
        epsilon: the most that is asked of a token's probability.
        delta: how much is asked relative to exp(-entropy).
    """

    lossless = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self._epsilon, self._delta = epsilon, delta
        self.spec = f"typical:{epsilon:g},{delta:g}"

    @classmethod
    def from_spec(cls, argument: str) -> Typical:
        """`typical` or `typical:epsilon,delta`.

        Raises:
            BadOption: epsilon is no probability, or delta is not above 0.
        """
        if not argument:
            return cls()
        try:
            epsilon, delta = (float(part) for part in argument.split(","))
        except ValueError:
            epsilon = delta = -1.0
        if not (0 < epsilon < 1 and 0 < delta < math.inf):
            raise BadOption(
                f"typical:{argument} has no usable thresholds: write typical:epsilon,delta with epsilon between 0 and "
                "1 and delta above 0."
            )
        return cls(epsilon, delta)

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`; each node's divergence is that of the law given the draft, a point mass where one passed."""
        tokens, parents = draft.tree.tokens.tolist(), draft.tree.parents.tolist()
        paths: dict[int, tuple[int, ...]] = {0: (0,)}
        surprise = {0: 0.0}  # -log p of the tokens on the way
        asked: dict[int, float] = {}
        for node in range(1, len(tokens)):
            parent = parents[node]
            if parent not in paths:
                continue
            p = law.at(parent)
            chance = float(p[tokens[node]])
            if parent not in asked:
                asked[parent] = self.threshold(p)
            if chance > asked[parent]:
                paths[node] = (*paths[parent], node)
                surprise[node] = surprise[parent] - math.log(min(1.0, chance))
        best = max(paths, key=lambda node: (len(paths[node]), -surprise[node]))
        path = paths[best]
        steps = [surprise[node] - surprise[parents[node]] for node in path[1:]]
        away = tuple(Divergence(-math.expm1(-step), step) for step in steps)
        return Verdict(path, noise.categorical(law.at(best)), (*away, NONE))

    def threshold(self, p: Tensor) -> float:
        """What a token's probability has to exceed where the law is p [V]."""
        entropy = float(torch.special.entr(p.double()).sum())
        return min(self._epsilon, self._delta * math.exp(-entropy))
