"""The chain that drafters with a law of their own grow: q is the law of the draw, and stopping early biases nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import Case, assert_exact
from toy import Exact, Likeliest, Scripted, Table, ToyDrafter, ToyState

from outrider.drafters.cascade import Cascade
from outrider.drafters.chain import Chain
from outrider.drafters.lookup import Lookup
from outrider.sampling import Sampling
from outrider.types import Budget, Draft, Noise
from outrider.verify import Verifier
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection

RULES = pytest.mark.parametrize("verifier", [Match(), TokenRejection()], ids=["match", "token"])


class Growing(ToyDrafter):
    """Grows chains from a table, and stops behind a token that it was not sure of."""

    def __init__(self, table: Table, sampling: Sampling, sure: float = 0.0) -> None:
        super().__init__()
        self._table, self._sampling, self._sure = table, sampling, sure

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        budget = Budget(depth, stop=lambda law, token: float(law[token]) < self._sure)
        chain = Chain(state.tokens, state.prompt_length, (), budget, self._sampling, noise)
        while chain.open:
            chain.grow(self._table.law((*state.tokens, *chain.drafted)).log())
        return chain.draft()


@RULES
@pytest.mark.parametrize("sure", [0.0, 0.4])
def test_sampled_chain(verifier: Verifier, sure: float) -> None:
    """With the law that each token was drawn from, in full length or cut behind a kept token."""
    assert_exact(Case(Table(3, 61), Growing(Table(3, 62), Exact(), sure), verifier, depth=2))


@RULES
def test_greedy_chain(verifier: Verifier) -> None:
    """A point mass, for a target that samples."""
    assert_exact(Case(Table(3, 63), Growing(Table(3, 64), Sampling()), verifier, depth=3))


def test_its_own_history_counts() -> None:
    """Penalties see what was drafted before; nothing is drafted behind an end, or without a budget."""
    logits = torch.tensor([2.0, 1.5, 0.0, 0.4])
    for ends, expected in (((), [0, 1, 0]), ((1,), [0, 1])):
        chain = Chain([2], 1, ends, Budget(3), Sampling(repetition_penalty=4.0), None)  # type: ignore[arg-type]
        while chain.open:
            chain.grow(logits)
        assert chain.drafted == expected
        draft = chain.draft("begun")
        assert (draft.tree.tokens.tolist(), draft.probs, draft.started) == ([2, *expected], None, "begun")
    nothing = Chain([2, 3], 1, (), Budget(0), Sampling(), None)  # type: ignore[arg-type]
    assert (nothing.open, nothing.newest, nothing.draft().tree.tokens.tolist()) == (False, 3, [3])


class Unsure(Likeliest):
    """A first drafter that expects something now and then, as the text has it."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        return Draft(draft.tree, score=2.0 * (sum(state.tokens) % 2))


@RULES
@pytest.mark.parametrize("first", [Lookup(4), Unsure(Table(3, 65))], ids=["lookup", "unsure"])
def test_two_drafters_in_turn(verifier: Verifier, first: Any) -> None:
    """Which of the two drafts depends on the text and on what was accepted, and the law is the target's own."""
    drafter = Cascade(first, Growing(Table(3, 66), Exact()))
    assert_exact(Case(Table(3, 67), drafter, verifier, depth=2, prompt=(0, 1, 0)))


class Greedy(Cascade):
    """Bug: weighs the second draft after it was drawn, and drops it for what it is."""

    def propose(self, states: Any, budgets: Any, samplings: Any, noises: Any) -> list[Draft]:
        """See `Drafter`."""
        drafts = self._ask(1, list(zip(states, budgets, samplings, noises, strict=True)))
        for place, draft in enumerate(drafts):
            states[place].asked = 1
            if draft.probs is not None and float(draft.probs[0][draft.tree.tokens[1]]) < 0.5:
                drafts[place] = self._ask(0, [(states[place], budgets[place], samplings[place], noises[place])])[0]
        return drafts


def test_a_choice_that_looks_at_what_was_drawn_is_found() -> None:
    """Why the first drafter may draw nothing at random: under rejection such a choice is no longer lossless."""
    drafter = Greedy(Scripted([]), Growing(Table(3, 66), Exact()))
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 67), drafter, TokenRejection(), depth=2))
