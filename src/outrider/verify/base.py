"""What a rule looks like. Rules are pure: law and draft in, verdict out, all chance through `Noise`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from ..errors import BadOption
from ..sampling import Law
from ..types import Draft, Noise, Verdict


class Verifier(ABC):
    """Decides which nodes of a draft stay and what the target writes after them.

    Attributes:
        spec: how it names itself in reports.
        lossless: the output has the target's law, whatever is drafted. A rule that is not says in each verdict by how
            much it departed (`Verdict.divergence`).
        needs_probs: drafts have to bring the drafter's law, and drafters without one are refused.
        coupled: the drafter may draw with the target's own noise. True only where the target's draw at a node does not
            depend on the draft.
        chains_only: trees with branches are not served.
    """

    spec: str = ""
    lossless: bool = True
    needs_probs: bool = False
    coupled: bool = False
    chains_only: bool = False

    @classmethod
    def from_spec(cls, argument: str) -> Verifier:
        """Make one from what stands behind the colon of its spec; this one takes nothing.

        Raises:
            BadOption: the argument cannot be used.
        """
        if argument:
            raise BadOption(f"The verifier '{cls.spec}' takes no argument, {argument!r} was given: leave it out.")
        return cls()

    @abstractmethod
    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """The verdict on one row's draft.

        Args:
            law: the target's law at each node.
            draft: N nodes, node 0 pending.
            noise: this round's randomness.
            position: absolute position of the token that follows node 0.
        """


def law_of(draft: Draft, node: int, like: Tensor) -> Tensor:
    """[V] the law that a drafted node came from, with no elder sibling taken out; a point mass where it was chosen."""
    if draft.drawn == "point":
        q = like.new_zeros(like.shape)
        q[int(draft.tree.tokens[node])] = 1
        return q
    assert draft.probs is not None, "a draft that was drawn brings the law it was drawn from"
    return draft.probs[node - 1].to(like.device, like.dtype)


def residual(p: Tensor, q: Tensor, scale: float = 1.0) -> Tensor:
    """[V] norm(max(scale * p - q, 0)): what is left of a law once `q` has had its say.

    Where it underflows, p and q are equal up to rounding and it is p.
    """
    rest = (scale * p - q).clamp_(min=0)
    total = float(rest.sum())
    return rest / total if total > 0 else p


def without(q: Tensor, token: int) -> Tensor:
    """[V] a law with one token taken out; zeros if there was no other."""
    rest = q.clone()
    rest[token] = 0
    total = float(rest.sum())
    return rest / total if total > 0 else rest


def ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p / q at a token. A token that q no longer has (an elder twin took it) is accepted if p still has it."""
    above, below = float(p[token]), float(q[token])
    if below > 0:
        return above / below
    return 1.0 if above > 0 else 0.0
