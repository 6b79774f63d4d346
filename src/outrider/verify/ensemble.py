"""Static ensemble: exact verification, but against a mixture p_w = w * p + (1 - w) * q of target and drafter.

Source: DIVERSED (2604.07622), its training-free form. Relaxed: the output has the law p_w where something was drafted,
whose total variation from p is exactly (1 - w) * TV(p, q). A drafted token is refused with probability w * TV(p, q).
"""

from __future__ import annotations

from torch import Tensor

from .. import tree as trees
from ..errors import BadOption
from ..sampling import Law
from ..types import Divergence, Draft, Noise, Verdict
from .base import Verifier
from .divergence import divergence
from .rejection import descend


class Ensemble(Verifier):
    """Verify against the mixture; behind the draft's last token the target writes alone.

    At temperature 0 the laws that are mixed are those at temperature 1 (`Law.spread`), and the mixture's likeliest
    token is taken: mixing two choices would only ever give one of them.

    Args:
        weight: the target's share w.
    """

    lossless = False
    needs_probs = True

    def __init__(self, weight: float = 0.7) -> None:
        self._weight = weight
        self.spec = f"ensemble:{weight:g}"

    @classmethod
    def from_spec(cls, argument: str) -> Ensemble:
        """`ensemble` or `ensemble:w` with w between 0 and 1.

        Raises:
            BadOption: w is none.
        """
        if not argument:
            return cls()
        try:
            weight = float(argument)
        except ValueError:
            weight = -1.0
        if not 0 < weight < 1:
            raise BadOption(
                f"ensemble:{argument} has no usable weight: write ensemble:w with the target's share w between 0 and "
                "1, or 'token' for the target alone."
            )
        return cls(weight)

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        below = trees.children(draft.tree.parents)
        away: list[Divergence] = []

        def mixed(node: int) -> Tensor:
            p = law.at(node)
            used = self._mixture(law, draft, node, below[node][0]) if below[node] else p
            away.append(divergence(used, p))
            return used

        verdict = descend(mixed, draft, noise)
        return Verdict(verdict.path, verdict.token, tuple(away))

    def _mixture(self, law: Law, draft: Draft, node: int, child: int) -> Tensor:
        """[V] p_w at a node, where q is the law of its children."""
        if draft.probs is None:
            raise BadOption(
                f"The verifier '{self.spec}' mixes the drafter's probabilities in and a draft came without: its "
                "drafter has to bring them whenever Budget.law asks."
            )
        p = law.spread(node)
        p_w = self._weight * p + (1 - self._weight) * draft.probs[child - 1].to(p.device, p.dtype)
        if not law.greedy:
            return p_w
        choice = p_w.new_zeros(p_w.shape)
        choice[p_w.argmax()] = 1
        return choice
