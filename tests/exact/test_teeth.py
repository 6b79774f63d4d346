"""The checks can fail: each of these planted bugs has to be found by the very functions that the other tests call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from checks import (
    Case,
    assert_exact,
    assert_nothing_kept_behind_a_mismatch,
    assert_samples_fit,
    assert_worked_example,
)
from torch import Tensor
from toy import Likeliest, Sampled, Table, ToyState

from outrider.noise import SeededNoise, key, race
from outrider.sampling import History, Law, Sampling
from outrider.types import Draft, Noise, Scores, Tree, Verdict
from outrider.verify.base import Verifier
from outrider.verify.block import Block
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection
from outrider.verify.traversal import Traversal


class KeepsBehindMismatch(Match):
    """Bug: keeps every drafted token that equals the target's own draw, wherever it stands."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        tokens = draft.tree.tokens.tolist()
        own = law.draws(noise, [position + node for node in range(len(tokens))])
        kept = [node for node in range(1, len(tokens)) if own[node - 1] == tokens[node]]
        return Verdict((0, *kept), own[kept[-1] if kept else 0])


def test_tokens_kept_behind_a_mismatch() -> None:
    """Found by the negative probe and by the law; the example's own drafts have nothing right behind X."""
    bug = KeepsBehindMismatch()
    with pytest.raises(AssertionError, match="kept"):
        assert_nothing_kept_behind_a_mismatch(bug)
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 1), Likeliest(Table(3, 2)), bug, depth=3, rounds=1))


class KeepsTheWholeDraft(Match):
    """Bug: writes the target's token behind the draft instead of in the place of the first mismatch."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        return Verdict((*verdict.path, len(verdict.path)), verdict.token) if len(verdict.path) > 1 else verdict


def test_one_token_too_many_fails_the_worked_example() -> None:
    """The mismatch itself is kept: the example's first round shows it."""
    with pytest.raises(AssertionError, match="kept"):
        assert_worked_example(KeepsTheWholeDraft())


class SharedNoise(SeededNoise):
    """Bug (vLLM #54282): the residual is drawn with the very noise that the refused draft token was drawn with."""

    def categorical(self, probs: Tensor) -> int:
        """See `types.Noise`; as many acceptances were asked for as draft tokens looked at."""
        draft = SeededNoise.for_draft(self._seed, self._number, coupled=False)
        return race(probs, key(self._seed, draft._purpose, self._number, self._lane))


def test_shared_noise_under_token_rejection() -> None:
    """Found by chi-square; the same case with noise of its own passes."""
    p, q = (Table(3, seed, dtype=torch.float32) for seed in (3, 4))
    case = Case(p, Sampled(q), TokenRejection(), depth=1)
    assert_samples_fit(case, samples=2500)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_samples_fit(case, samples=2500, noise=SharedNoise)


class LikeliestWithLaw(Likeliest):
    """Bug: a deterministic draft that claims to be drawn from the model's law."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        tree = super().draft(state, depth, noise).tree
        tokens = tree.tokens[1:].tolist()
        laws = [self._table.law((*state.tokens, *tokens[:place])) for place in range(len(tokens))]
        return Draft(tree, torch.stack(laws) if laws else None, "iid")


def test_ratio_test_on_a_deterministic_draft() -> None:
    """p / q(x) with the model's q on a draft that was not drawn from it: found, while the point mass passes."""
    assert_exact(Case(Table(3, 5), Likeliest(Table(3, 6)), TokenRejection(), depth=2))
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 5), LikeliestWithLaw(Table(3, 6)), TokenRejection(), depth=2))


class WrongLaw(Sampled):
    """Bug: reports the law at another temperature than the one it drew at."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        if draft.probs is None:
            return draft
        return replace(draft, probs=draft.probs.sqrt() / draft.probs.sqrt().sum(1, True))


class ShiftedLaw(Sampled):
    """Bug: each token's law is reported for the token before it."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        return draft if draft.probs is None else replace(draft, probs=draft.probs.roll(1, 0))


USING_Q = pytest.mark.parametrize("rule", [TokenRejection(), Block(), Traversal()], ids=["token", "block", "traversal"])


@USING_Q
@pytest.mark.parametrize("drafter", [WrongLaw, ShiftedLaw])
def test_wrong_draft_law(drafter: type[Sampled], rule: Verifier) -> None:
    """Found under the rules that use q; `match` does not look at it and passes."""
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 7), drafter(Table(3, 8)), rule, depth=2))
    assert_exact(Case(Table(3, 7), drafter(Table(3, 8)), Match(), depth=2))


class Prunes(Sampled):
    """Bug under rejection: drops sampled tokens, and what follows them, because their own q is low."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        if draft.probs is None:
            return draft
        tokens = draft.tree.tokens.tolist()
        sure = [float(law[token]) >= 0.3 for law, token in zip(draft.probs, tokens[1:], strict=True)]
        kept = sure.index(False) if False in sure else len(sure)
        return Draft(Tree.chain(tokens[: kept + 1]), draft.probs[:kept] if kept else None, "iid")


@USING_Q
def test_pruning_of_sampled_tokens(rule: Verifier) -> None:
    """Found under the rules that use q; `match` is immune."""
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 9), Prunes(Table(3, 10)), rule, depth=2))
    assert_exact(Case(Table(3, 9), Prunes(Table(3, 10)), Match(), depth=2))


class BlindToDrafts(Sampling):
    """Bug: penalties look at the committed text alone, as if every node were the pending token."""

    def law(self, logits: Tensor, tree: Tree, history: History, nodes: Sequence[int] | None = None) -> Law:
        """See `Sampling.law`."""
        alone = Tree.chain(history.tokens[-1:])
        rows = [super(BlindToDrafts, self).law(row[None], alone, history).probs for row in logits]
        return Law(probs=torch.cat(rows))


@pytest.mark.parametrize("verifier", [Match(), TokenRejection(), Block()], ids=["match", "token", "block"])
def test_penalties_without_draft_history(verifier: Verifier) -> None:
    """Found by the same check that the right law passes."""
    options = {"temperature": 1.0, "repetition_penalty": 2.0, "presence_penalty": 1.0}
    drafter = Sampled(Table(3, 12))
    assert_exact(Case(Table(3, 11), drafter, verifier, depth=2, sampling=Sampling(**options)), tolerance=1e-6)
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 11), drafter, verifier, depth=2, sampling=BlindToDrafts(**options)), tolerance=1e-6)


class WrongPending(Sampled):
    """Bug: the drafter believes that every round ended with token 0, and hangs its draft on that."""

    def commit(self, state: ToyState, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        super().commit(state, tokens, scores, path)
        state.tokens[-1] = 0


def test_a_pending_token_that_is_not_the_rows() -> None:
    """The draft's node 0 is not the committed token: the target then sees another text, and the law tells."""
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 13), WrongPending(Table(3, 14)), TokenRejection(), depth=2))
