"""Lenience (Leviathan et al., 2211.17192, appendix): rejection with q multiplied by l < 1 before the comparison.

A drafted x is kept with probability min(1, p(x) / (l * q(x))); after a refusal the target writes from the residual
norm(max(p - q, 0)). Relaxed: no token becomes more than 1 / l times as likely as the target has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadOption
from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier, law_of, ratio, residual
from .divergence import NONE, divergence


class Lenience(Verifier):
    """Accept more readily, token by token.

    Args:
        lenience: l, between 0 (anything the target can write goes) and 1 (nothing is relaxed).
    """

    lossless = False
    chains_only = True

    def __init__(self, lenience: float) -> None:
        self._lenience = lenience
        self.spec = f"lenience:{lenience:g}"

    @classmethod
    def from_spec(cls, argument: str) -> Lenience:
        """`lenience:l` with l between 0 and 1.

        Raises:
            BadOption: l is none.
        """
        try:
            lenience = float(argument)
        except ValueError:
            lenience = -1.0
        if not 0 < lenience < 1:
            raise BadOption(
                f"lenience:{argument} has no usable l: write lenience:l with l between 0 and 1, or 'token' for l = 1."
            )
        return cls(lenience)

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        tokens = draft.tree.tokens.tolist()
        away = []
        for node in range(1, len(tokens)):
            p = law.at(node - 1)
            q = law_of(draft, node, p)
            away.append(divergence(self.used(p, q), p))
            if not noise.accept(ratio(p, q, tokens[node]) / self._lenience):
                return Verdict(tuple(range(node)), noise.categorical(residual(p, q)), tuple(away))
        return Verdict(tuple(range(len(tokens))), noise.categorical(law.at(len(tokens) - 1)), (*away, NONE))

    def used(self, p: Tensor, q: Tensor) -> Tensor:
        """[V] the law of the token that is written where one was drafted from q."""
        kept = torch.minimum(q, p / self._lenience)
        return kept + (1 - float(kept.sum())) * residual(p, q)
