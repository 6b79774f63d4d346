"""Negative controls: what is broken on purpose, so that a check which passes is known to be able to fail.

A rule that accepts every draft token is the commonest fault there could be. Where the drafter is never wrong on the
prompts at hand that rule is right, and then the drafts are spoilt too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .. import tree as trees
from ..drafters import Drafter
from ..kv import Seat
from ..sampling import Law, Sampling
from ..types import Budget, Draft, Noise, Scores, Tree, Verdict
from ..verify import Verifier


class AcceptsEverything(Verifier):
    """Broken on purpose: keeps the draft to its end, along the first child of each node, whatever the target says.

    Args:
        like: the rule that is broken; the loop treats this one as it would treat that one.
    """

    spec = "accepts everything"
    lossless = False

    def __init__(self, like: Verifier) -> None:
        self.needs_probs, self.coupled, self.chains_only = like.needs_probs, like.coupled, like.chains_only

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`; the target's own token follows the draft."""
        below = trees.children(draft.tree.parents)
        path = [0]
        while below[path[-1]]:
            path.append(below[path[-1]][0])
        own = law.draws(noise, [position + depth for depth in trees.depths(draft.tree.parents).tolist()])
        return Verdict(tuple(path), own[path[-1]])


class Spoilt(Drafter):
    """Another drafter's drafts with every token replaced by the next id, as chosen tokens without a law.

    Args:
        inner: the drafter; it sees what was committed, as if another one had drafted.
        vocabulary: ids there are.
    """

    def __init__(self, inner: Drafter, vocabulary: int) -> None:
        self._inner, self._vocabulary = inner, vocabulary
        self.taps, self.spec = inner.taps, f"{inner.spec}, spoilt"
        self.has_law, self.makes_trees, self.always_branches = False, inner.makes_trees, inner.always_branches

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> Any:
        """See `Drafter`."""
        return self._inner.begin(prompt, hidden)

    def propose(
        self,
        states: Sequence[Any],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        return [self._spoilt(draft) for draft in self._inner.propose(states, budgets, samplings, noises)]

    def _spoilt(self, draft: Draft) -> Draft:
        tokens = draft.tree.tokens.clone()
        tokens[1:] = (tokens[1:] + 1) % self._vocabulary
        return Draft(Tree(tokens, draft.tree.parents))

    def commit(self, state: Any, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        self._inner.commit(state, tokens, scores, path)

    def seated(self, state: Any, seat: Seat) -> None:
        """See `Drafter`."""
        self._inner.seated(state, seat)

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        self._inner.check_prediction(prediction)

    def expect(self, state: Any, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        self._inner.expect(state, prediction)

    def end(self, state: Any) -> None:
        """See `Drafter`."""
        self._inner.end(state)

    def room(self, state: Any) -> int:
        """See `Drafter`."""
        return self._inner.room(state)
