"""What a rule looks like. Rules are pure: law and draft in, verdict out, all chance through `Noise`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..sampling import Law
from ..types import Draft, Noise, Verdict


class Verifier(ABC):
    """Decides which nodes of a draft stay and what the target writes after them.

    Attributes:
        coupled: the drafter may draw with the target's own noise. True only where the target's draw at a node does not
            depend on the draft.
        chains_only: trees with branches are not served.
    """

    coupled: bool = False
    chains_only: bool = False

    @abstractmethod
    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """The verdict on one row's draft.

        Args:
            law: the target's law at each node.
            draft: N nodes, node 0 pending.
            noise: this round's randomness.
            position: absolute position of the token that follows node 0.
        """
