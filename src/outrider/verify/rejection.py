"""Token-level rejection for chains (Leviathan et al., 2211.17192; Chen et al., 2302.01318).

Accept x with probability min(1, p(x) / q(x)); at the first refusal write a token from the residual norm(max(p - q, 0)).
The output has the target's law exactly, provided that `q` is the law the draft was drawn from and that the rule's noise
is independent of the draft's. A deterministic draft is a draw from a point mass.
"""

from __future__ import annotations

import torch

from ..sampling import Law
from ..types import Draft, Noise, Verdict
from .base import Verifier


class TokenRejection(Verifier):
    """Accept or refuse token by token, from the first on."""

    chains_only = True

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        p_all = law.probs
        tokens = draft.tree.tokens.tolist()
        for node in range(1, len(tokens)):
            token, p = tokens[node], p_all[node - 1]
            if draft.probs is None:
                q = torch.zeros_like(p)
                q[token] = 1
            else:
                q = draft.probs[node - 1].to(p.device, p.dtype)
            # A token's own q is positive, or it could not have been drawn.
            if noise.accept(float(p[token] / q[token])):
                continue
            residual = (p - q).clamp_(min=0)
            if float(residual.sum()) <= 0:  # p and q equal up to rounding
                residual = p
            return Verdict(tuple(range(node)), noise.categorical(residual))
        return Verdict(tuple(range(len(tokens))), noise.categorical(p_all[-1]))
