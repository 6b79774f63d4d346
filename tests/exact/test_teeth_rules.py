"""Planted bugs in the rules for trees and blocks, and in their drafts: each has to be found by the usual checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from checks import Case, assert_exact, assert_rule_exact, assert_samples_fit
from torch import Tensor
from toy import Branching, Context, Forked, Sampled, ScriptedNoise, Table, ToyState

from outrider.noise import SeededNoise, key, race
from outrider.sampling import History, Law, Sampling
from outrider.types import Draft, Noise, Tree, Verdict
from outrider.verify import Verifier
from outrider.verify.base import residual
from outrider.verify.block import Block
from outrider.verify.ensemble import Ensemble
from outrider.verify.rejection import TokenRejection
from outrider.verify.traversal import Traversal

PAIR = {(): 2}
FORK = {(): 2, (0,): 1}
USING_Q = pytest.mark.parametrize("verifier", [TokenRejection(), Traversal()], ids=["token", "traversal"])


@USING_Q
def test_no_update_of_q(verifier: Verifier) -> None:
    """Siblings drawn without replacement, judged as if each came from the whole law."""

    class Forgets(Forked):
        """Bug: claims that its children were drawn independently, so that q stays as it was."""

        def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
            """See `ToyDrafter`."""
            return replace(super().draft(state, depth, noise), drawn="iid")

    assert_rule_exact(Case(Table(4, 1), Forked(Table(4, 2), PAIR), verifier, depth=1))
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(Table(4, 1), Forgets(Table(4, 2), PAIR), verifier, depth=1))


def test_q_is_not_updated_within_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bug in the rules themselves."""
    for module, rule in (("rejection", TokenRejection()), ("traversal", Traversal())):
        case = Case(Table(3, 3), Forked(Table(3, 4), PAIR), rule, depth=1)
        assert_rule_exact(case)
        monkeypatch.setattr(f"outrider.verify.{module}.without", lambda q, token: q)
        with pytest.raises(AssertionError, match="TV"):
            assert_rule_exact(case)


@USING_Q
def test_siblings_deduplicated(verifier: Verifier) -> None:
    """Twins among children drawn with replacement are draws of their own; dropping the second biases."""

    class Deduplicates(Forked):
        """Bug: drops a child whose elder sibling has the same token."""

        def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
            """See `ToyDrafter`."""
            draft = super().draft(state, depth, noise)
            tokens = draft.tree.tokens.tolist()
            if draft.probs is None or len(set(tokens[1:])) == len(tokens) - 1:
                return draft
            return Draft(Tree.chain(tokens[:2]), draft.probs[:1], "iid")

    p, q = Table(4, 7), Table(4, 8)
    assert_rule_exact(Case(p, Forked(q, PAIR, "iid"), verifier, depth=1))
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(p, Deduplicates(q, PAIR, "iid"), verifier, depth=1))


@USING_Q
def test_siblings_in_another_order(verifier: Verifier) -> None:
    """Without replacement the order of the draws is part of the draft."""

    class Sorts(Forked):
        """Bug: the likeliest child first."""

        def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
            """See `ToyDrafter`."""
            draft = super().draft(state, depth, noise)
            if draft.probs is None:
                return draft
            tokens = draft.tree.tokens.tolist()
            tokens[1:] = sorted(tokens[1:], key=lambda token: -float(draft.probs[0, token]))  # type: ignore[index]
            return replace(draft, tree=Tree(torch.tensor(tokens), draft.tree.parents))

    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(Table(3, 7), Sorts(Table(3, 8), PAIR), verifier, depth=1))


class Claims(Branching):
    """Bug: a tree of the likeliest tokens that claims to be drawn from the model's law."""

    def __init__(self, table: Table, drawn: str) -> None:
        super().__init__(lambda context: table.law(context).topk(2).indices.tolist())
        self._table, self._drawn = table, drawn

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        tree = super().draft(state, depth, noise).tree
        if len(tree) == 1:
            return Draft(tree)
        texts: list[Context] = [tuple(state.tokens)]
        for token, parent in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:], strict=True):
            texts.append((*texts[parent], token))
        laws = torch.stack([self._table.law(text[:-1]) for text in texts[1:]])
        return Draft(tree, laws, self._drawn)  # type: ignore[arg-type]


@USING_Q
@pytest.mark.parametrize("drawn", ["iid", "without_replacement"])
def test_ratio_test_on_a_deterministic_tree(verifier: Verifier, drawn: str) -> None:
    """p / q(x) on siblings that were not drawn: found, while the point masses pass."""
    grow = Branching(lambda context: Table(3, 10).law(context).topk(2).indices.tolist())
    assert_exact(Case(Table(3, 9), grow, verifier, depth=1))
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 9), Claims(Table(3, 10), drawn), verifier, depth=1))


class Prunes(Forked):
    """Bug: drops the drawn children that the drafter finds unlikely."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        if draft.probs is None:
            return draft
        tokens = draft.tree.tokens.tolist()
        kept = [node for node in range(1, len(tokens)) if float(draft.probs[node - 1, tokens[node]]) >= 0.3]
        if not kept:
            return Draft(Tree.chain(tokens[:1]))
        tree = Tree(torch.tensor([tokens[0], *(tokens[node] for node in kept)]), torch.tensor([-1, *[0] * len(kept)]))
        return Draft(tree, draft.probs[[node - 1 for node in kept]], draft.drawn)


@USING_Q
def test_pruning_of_drawn_siblings(verifier: Verifier) -> None:
    """What was drawn has to be shown to the rule."""
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(Table(3, 11), Prunes(Table(3, 12), PAIR), verifier, depth=1))


class WrongLaw(Forked):
    """Bug: reports the law with elder siblings already taken out."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        draft = super().draft(state, depth, noise)
        if draft.probs is None:
            return draft
        laws = draft.probs.clone()
        for node in range(2, len(draft.tree)):
            laws[node - 1, int(draft.tree.tokens[1])] = 0
        return replace(draft, probs=laws.flip(0))


@USING_Q
def test_wrong_law_of_siblings(verifier: Verifier) -> None:
    """q is the law before removal, the rules remove."""
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(Table(3, 13), WrongLaw(Table(3, 14), PAIR), verifier, depth=1))


class BlindToBranches(Sampling):
    """Bug: penalties look at the nodes before a node in the list, not at its ancestors."""

    def law(self, logits: Tensor, tree: Tree, history: History, nodes: Sequence[int] | None = None) -> Law:
        """See `Sampling.law`."""
        return super().law(logits, Tree.chain(tree.tokens.tolist()), history, nodes)


@USING_Q
def test_penalties_with_the_history_of_a_sibling(verifier: Verifier) -> None:
    """Found by the same check that the right law passes."""
    options = {"temperature": 1.0, "repetition_penalty": 2.0, "presence_penalty": 1.0}
    drafter = Forked(Table(3, 16, support=(0, 2)), FORK)
    right, wrong = Sampling(**options), BlindToBranches(**options)
    assert_exact(Case(Table(3, 15), drafter, verifier, depth=2, sampling=right, rounds=1), tolerance=1e-6)
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(Table(3, 15), drafter, verifier, depth=2, sampling=wrong, rounds=1), tolerance=1e-6)


class SmallestTau(Block):
    """Bug: the block ends before the first prefix that fails, as if it were token by token."""

    def _longest(self, passing: Sequence[float], noise: Noise) -> int:
        length = 0
        while length < len(passing) and noise.accept(passing[length]):
            length += 1
        return length


class ResidualOfTheToken(Block):
    """Bug: after a block that was cut short, the token's residual norm(max(p - q, 0)) instead of the block's."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        kept = len(verdict.path) - 1
        if kept == len(draft.tree) - 1:
            return verdict
        p, q = self._laws(law, draft, kept)
        return replace(verdict, token=noise.categorical(residual(p, q)))


@pytest.mark.parametrize("bug", [SmallestTau(), ResidualOfTheToken()])
def test_bugs_of_block_verification(bug: Block) -> None:
    """Both are right for one drafted token, and wrong from two on."""
    p, q = Table(3, 17), Table(3, 18)
    assert_rule_exact(Case(p, Sampled(q), bug, depth=1))
    assert_rule_exact(Case(p, Sampled(q), Block(), depth=2))
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(Case(p, Sampled(q), bug, depth=2))


class NothingRecomputed(Traversal):
    """Bug: a leaf that was refused is cut off, but its parent stays as likely to be kept as it was."""

    def _cut(self, node, draft):  # type: ignore[no-untyped-def]
        before = node.cover
        super()._cut(node, draft)
        node.cover = before


def test_traversal_that_does_not_recompute() -> None:
    """The parent's chance has to fall with its leaf."""
    case = Case(Table(3, 19), Forked(Table(3, 20), {(): 1, (0,): 1}), Traversal(), depth=2)
    assert_rule_exact(case)
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(replace(case, verifier=NothingRecomputed()))


class SharedNoise(SeededNoise):
    """Bug (vLLM #54282): the rule's noise is the very noise that the draft was drawn with."""

    def categorical(self, probs: Tensor) -> int:
        """See `types.Noise`."""
        return race(probs, key(self._seed, SeededNoise.for_draft(0, 0, False)._purpose, self._number, 1))


class KeyedByPosition(Block):
    """Bug: a prefix is judged with the noise of the position where it ends, which a later round may look at again.

    A uniform is known by the interval in which earlier looks have left it, so that this can be enumerated.
    """

    _start = 0

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        self._start = position
        return super().__call__(law, draft, noise, position)

    def _longest(self, passing: Sequence[float], noise: Noise) -> int:
        assert isinstance(noise, ScriptedNoise)
        script = noise.script
        known: dict[int, tuple[float, float]] = script.__dict__.setdefault("uniforms", {})
        for length in range(len(passing), 0, -1):
            low, high = known.get(self._start + length, (0.0, 1.0))
            cut = min(max(passing[length - 1], low), high)
            passes = script.choose([cut - low, high - cut]) == 0
            known[self._start + length] = (low, cut) if passes else (cut, high)
            if passes:
                return length
        return 0


def test_block_noise_keyed_by_position() -> None:
    """Found over two rounds; one round has nothing to look at again."""
    case = Case(Table(3, 29), Sampled(Table(3, 30)), KeyedByPosition(), depth=2, beyond=1)
    assert_exact(replace(case, rounds=1))
    assert_exact(replace(case, verifier=Block()))
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(case)


def float32(seed: int) -> Table:
    """Three tokens, as models have them."""
    return Table(3, seed, dtype=torch.float32)


@pytest.mark.parametrize(
    "case",
    [
        Case(float32(21), Forked(float32(22), PAIR), TokenRejection(), depth=1),
        Case(float32(23), Sampled(float32(24)), Block(), depth=2),
        Case(float32(25), Forked(float32(26), PAIR), Traversal(), depth=1),
    ],
    ids=["token on a tree", "block", "traversal"],
)
def test_noise_shared_with_the_draft(case: Case) -> None:
    """Found by chi-square; the same case with noise of its own passes (test_chi_square)."""
    with pytest.raises(AssertionError, match="chi-square"):
        assert_samples_fit(replace(case, horizon=3), samples=2000, noise=SharedNoise)


class BonusFromTheTarget(Ensemble):
    """Bug: after a refusal the target's own law, not what is left of the mixture."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        return replace(verdict, token=noise.categorical(law.at(verdict.path[-1])))


def test_an_ensemble_that_is_not_its_mixture() -> None:
    """A relaxed rule has a law of its own, and is held to it."""
    p, q = Table(3, 27), Table(3, 28)
    mixture = lambda context: 0.6 * p.law(context) + 0.4 * q.law(context)  # noqa: E731
    case = Case(p, Sampled(q), Ensemble(0.6), depth=2, horizon=2, beyond=1, expected=mixture)
    assert_rule_exact(case)
    with pytest.raises(AssertionError, match="TV"):
        assert_rule_exact(replace(case, verifier=BonusFromTheTarget(0.6)))
