"""`outrider prove` proves what is right and finds what is wrong: planted faults, drafts never wrong, nothing drafted.

On toy targets whose law is known, and on tiny random models of Transformers against its own `generate`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import families
import pytest
import torch
from checks import continued, total_variation
from toy import Likeliest, Sampled, Scripted, Table, ToyTarget

import outrider
from outrider.drafters import Drafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.reference import Reference
from outrider.drafters.suffix import Suffix
from outrider.measure.certificate import Check, Proof
from outrider.measure.chi_square import fit
from outrider.measure.control import AcceptsEverything
from outrider.measure.proof import Plan, Prover, against_transformers
from outrider.measure.short_texts import LENGTH, count, short_texts
from outrider.measure.trials import Parts
from outrider.sampling import History, Law, Sampling
from outrider.types import Draft, Noise, Tree, Verdict
from outrider.verify import Verifier, make_verifier
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection

TABLE = Table(6, 3, dtype=torch.float32)
PROMPTS = ((0, 1), (2,), (3, 1, 4, 1, 0, 3, 1, 4))
PLAN = Plan(PROMPTS, (PROMPTS[2],), max_new_tokens=16, policies=("fixed:3",), seeds=2, samples=200)


def loaded(drafter: Drafter, verifier: Verifier, table: Table = TABLE, exactness: str = "bits") -> Any:
    """What a `Prover` looks at, on a toy target."""
    return SimpleNamespace(target=ToyTarget(table), drafter=drafter, verifier=verifier, exactness=exactness)


def another() -> ModelDrafter:
    """A draft model of another law."""
    return ModelDrafter(ToyTarget(Table(6, 4, dtype=torch.float32)), 6)


@pytest.mark.parametrize("rule", ["match", "block", "traversal"])
def test_what_is_right_passes_and_its_controls_are_caught(rule: str) -> None:
    verifier = make_verifier(rule)
    steps: list[int] = []
    prover = Prover(loaded(another(), verifier), PLAN, lambda: steps.append(1))
    checks = (prover.greedy(), prover.seeded() if verifier.coupled else next(prover.laws()))
    assert len(steps) == PLAN.steps(verifier, transformers=False)
    proof = Proof(checks)
    assert proof.verdict == "lossless", proof.reasons
    for check in checks:
        assert (check.faults, check.ties, check.lack) == (0, 0, None)
        assert check.control is not None
        assert check.control.how == "a rule that accepts every draft token"
        assert check.stats is not None
        assert 0 < check.stats.accepted < check.stats.drafted
    greedy = checks[0]
    assert greedy.compared == greedy.identical == 3 * len(PROMPTS)
    if checks[1].fit is not None:
        assert checks[1].compared == checks[1].fit.samples == PLAN.samples
        assert checks[1].fit.cells > 8
        assert 0.2 < (checks[1].fit.smallest_tv or 0) < 0.35


def test_chains_and_trees_are_counted_apart() -> None:
    """Siblings have a law of their own to keep; the texts are shared among the policies."""
    plan = replace(PLAN, policies=("fixed:3", "fixed:2,6"))
    steps: list[int] = []
    prover = Prover(loaded(another(), TokenRejection()), plan, lambda: steps.append(1))
    checks = tuple(prover.laws())
    assert Proof(checks).verdict == "lossless", Proof(checks).reasons
    assert [check.compared for check in checks] == [100, 100]
    assert len(steps) == 400 == 2 * 2 * plan.each
    chains, trees = (check.stats for check in checks)
    assert chains is not None and trees is not None
    assert trees.drafted > chains.drafted
    assert "fixed:2,6" in checks[1].what


class KeepsTheMismatch(Match):
    """Bug: writes the target's token behind the first wrong one instead of in its place."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        more = (len(verdict.path),) if len(verdict.path) < len(draft.tree) else ()
        return Verdict((*verdict.path, *more), verdict.token)


class NoResidual(TokenRejection):
    """Bug: after a refusal the target writes from its whole law, not from what the draft has left of it."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        return Verdict(verdict.path, noise.categorical(law.at(verdict.path[-1])))


class OtherNoise(Match):
    """Bug: lossless in law, but the tokens are not those of plain sampling with that seed."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        return super().__call__(law, draft, noise, position + 1000)


def test_greedy_faults_are_found_and_listed() -> None:
    proof = Proof((Prover(loaded(another(), KeepsTheMismatch()), PLAN).greedy(),))
    assert proof.verdict == "fault"
    assert "differ beyond rounding" in proof.reasons[0]
    (check,) = proof.checks
    told = check.divergences[0]
    assert (told.policy, told.seed) == ("fixed:3", None)
    assert told.divergence.expected != told.divergence.got
    document = proof.as_dict()
    assert (document["certificate"], document["verdict"]) == (False, "fault")
    listed = document["checks"][0]["divergences"]
    assert len(listed) == check.compared - (check.identical or 0) > 0
    assert {"expected", "got", "expected_logit", "got_logit", "top2_gap", "gap", "rounding", "verdict"} <= set(
        listed[0]
    )
    assert {item["verdict"] for item in listed} == {"fault"}


def test_other_tokens_with_the_same_seed_are_found() -> None:
    """The law would be right; the promise is not kept."""
    prover = Prover(loaded(another(), OtherNoise()), PLAN)
    assert prover.greedy().faults == 0
    check = prover.seeded()
    assert check.faults > 0
    assert {found.seed for found in check.divergences} <= {1, 2}


def test_a_wrong_law_is_found() -> None:
    """Greedy decoding cannot tell: a law on one token has no residual."""
    prover = Prover(loaded(another(), NoResidual()), PLAN)
    assert prover.greedy().faults == 0
    check = next(Prover(loaded(another(), NoResidual()), replace(PLAN, samples=500)).laws())
    assert check.faults == 1
    assert Proof((check,)).verdict == "fault"
    assert "do not follow the target's law" in Proof((check,)).reasons[0]


@pytest.mark.parametrize("rule", ["match", "token"])
def test_a_drafter_that_is_never_wrong_has_its_drafts_spoilt(rule: str) -> None:
    """Accepting all that the target itself drafts is right, so that control alone would prove nothing."""
    verifier = make_verifier(rule)
    prover = Prover(loaded(ModelDrafter(ToyTarget(TABLE), 6), verifier), PLAN)
    for check in (prover.greedy(), prover.seeded() if verifier.coupled else next(prover.laws())):
        assert check.control is not None
        assert check.control.caught
        assert "replaced" in check.control.how
        assert check.lack is None


def test_nothing_drafted_proves_nothing() -> None:
    prover = Prover(loaded(Scripted([]), TokenRejection()), PLAN)
    checks = (prover.greedy(), next(prover.laws()))
    assert Proof(checks).verdict == "unproven"
    assert all("proposed nothing" in reason for reason in Proof(checks).reasons)
    assert len(Proof(checks).reasons) == 2


def test_drafts_that_are_never_right_are_told() -> None:
    """It is a proof, of refusals alone."""
    wrong = Scripted([[int(TABLE.law((2,)).argmin())]] * 30)
    plan = replace(PLAN, prompts=((2,),), max_new_tokens=2, policies=("fixed:1",))
    check = Prover(loaded(wrong, Match()), plan).greedy()
    assert (check.lack, check.faults) == (None, 0)
    assert check.caveat is not None and "only refusals" in check.caveat
    assert check.as_dict()["caveat"] == check.caveat


def test_a_control_that_passes_proves_nothing() -> None:
    """Whatever the reason: what could not fail is no proof."""
    right = Prover(loaded(another(), Match()), PLAN).greedy()
    assert Proof((right,)).verdict == "lossless"
    assert Proof((right,), missing=("interrupted",)).verdict == "unproven"
    assert Proof(()).verdict == "unproven"
    blind = Check("greedy", right.what, right.compared, right.identical, right.stats)
    assert Proof((blind,)).verdict == "unproven"
    assert "could not have failed" in Proof((blind,)).reasons[0]


def test_ties_are_ties_only_where_bits_are_not_promised() -> None:
    """Two tokens with the same logits, one of them written by whatever shares the pass."""

    class Even(Table):
        def make(self, context: tuple[int, ...]) -> list[float]:
            return [0.5, 0.5, 0, 0, 0, 0]

    class Flips(Match):
        def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
            verdict = super().__call__(law, draft, noise, position)
            return Verdict((0,), 1) if len(draft.tree) > 1 else verdict

    drafter = Likeliest(Table(6, 4, support=(0, 1)))
    for exactness, verdict in (("ties", "tie"), ("bits", "fault")):
        check = Prover(loaded(drafter, Flips(), Even(6), exactness), PLAN).greedy()
        assert check.divergences
        assert {found.divergence.verdict for found in check.divergences} == {verdict}


def test_the_law_of_short_texts_is_the_targets() -> None:
    texts = short_texts(ToyTarget(TABLE), PROMPTS[2])

    def following(context: tuple[int, ...]) -> torch.Tensor:
        logits = TABLE.law(context).log()[None]
        history = History(list(context), len(PROMPTS[2]))
        law = texts.sampling.law(logits, Tree.chain(context[-1:]), history).probs[0].double()
        return law / law.sum()

    assert sum(texts.law.values()) == pytest.approx(1)
    assert total_variation(texts.law, continued((), following, PROMPTS[2], LENGTH, ())) < 1e-6
    assert 20 < len(texts.law) <= 27


def test_texts_end_at_the_end_of_sequence() -> None:
    texts = short_texts(ToyTarget(TABLE, eos=(1,)), PROMPTS[2])
    assert any(len(text) < LENGTH for text in texts.law)
    assert all(1 not in text[:-1] for text in texts.law)
    parts = Parts.of(loaded(another(), TokenRejection()), "fixed:2")
    counts, _ = count(Parts(ToyTarget(TABLE, eos=(1,)), *_rest(parts)), texts, 300)
    assert fit(counts, texts.law).fits


def _rest(parts: Parts) -> tuple[Any, ...]:
    return parts.drafter, parts.verifier, parts.make_policy, parts.policy


def test_a_prediction_is_given_where_one_is_wanted() -> None:
    prover = Prover(loaded(Reference(), Match()), PLAN)
    checks = (prover.greedy(), prover.seeded())
    assert Proof(checks).verdict == "lossless", Proof(checks).reasons
    assert checks[0].stats is not None
    assert checks[0].stats.accepted > 30


@pytest.mark.parametrize("spec", ["ensemble:0.5", "typical", "lenience:0.5"])
def test_a_relaxed_rule_has_its_bias_measured(spec: str) -> None:
    verifier = make_verifier(spec)
    steps: list[int] = []
    bias = Prover(loaded(another(), verifier), PLAN, lambda: steps.append(1)).bias()
    assert bias.stats.mean_tv is not None
    assert 0.01 < bias.stats.mean_tv < 1
    assert bias.lossless.mean_tv is None
    assert (bias.stats.acceptance_length or 0) > (bias.lossless.acceptance_length or 0)
    assert bias.identical == (3 if spec != "ensemble:0.5" else bias.identical)
    assert Proof(bias=bias).verdict == "relaxed"
    assert Proof(bias=bias).as_dict()["bias"]["mean_tv"] == bias.stats.mean_tv
    assert len(steps) == PLAN.steps(verifier, transformers=True)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("drafter", "policies"), [("suffix", ("fixed:5", "fixed:4,12")), ("lookahead", ("fixed:4,12",))]
)
def test_against_transformers(fast: bool, drafter: str, policies: tuple[str, ...]) -> None:
    model = families.make("llama")
    llm = outrider.load(model, drafter, fast=fast)
    prompts = tuple(tuple(prompt) for prompt in families.prompts(24, 40, 3))
    plan = Plan(prompts, prompts[:1], max_new_tokens=20, policies=policies, seeds=1, samples=50)
    prover = Prover(llm, plan)
    checks = (prover.greedy(), prover.seeded(), against_transformers(prover.outputs, model))
    assert Proof(checks).verdict == "lossless", Proof(checks).reasons
    assert checks[2].compared == checks[2].identical == 3


def test_another_model_is_not_the_same() -> None:
    """The comparison with Transformers can fail: here its weights are others."""
    model, other = families.make("llama"), families.make("llama")
    with torch.no_grad():
        other.lm_head.weight.add_(0.02 * torch.randn_like(other.lm_head.weight))
    prompts = tuple(tuple(prompt) for prompt in families.prompts(24, 40, 3))
    plan = Plan(prompts, prompts[:1], max_new_tokens=20, policies=("fixed:5",), seeds=1, samples=50)
    prover = Prover(outrider.load(model, "suffix"), plan)
    prover.greedy()
    check = against_transformers(prover.outputs, other)
    assert check.faults > 0
    assert Proof((check,)).verdict == "fault"


def test_the_broken_rule_is_treated_like_the_one_it_stands_for() -> None:
    for spec in ("match", "token", "block", "ensemble"):
        like = make_verifier(spec)
        broken = AcceptsEverything(like)
        assert (broken.coupled, broken.chains_only, broken.needs_probs) == (
            like.coupled,
            like.chains_only,
            like.needs_probs,
        )
    tree = Tree(torch.tensor([0, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]))
    law = Sampling().law(torch.eye(6)[[5, 4, 3, 2]], tree, History([0], 1))
    assert broken(law, Draft(tree), None, 1) == Verdict((0, 1, 3), 2)  # type: ignore[arg-type]


def test_suffix_learns_only_drafts() -> None:
    """What it keeps of finished requests makes the later ones' drafts better, and changes nothing."""
    check = Prover(loaded(Suffix(factor=4), Match()), PLAN).seeded()
    assert check.faults == 0
    assert check.stats is not None
    assert check.stats.drafted > 0


def test_a_sampled_drafter_of_ones_own() -> None:
    proof = Proof(tuple(Prover(loaded(Sampled(Table(6, 9, dtype=torch.float32)), TokenRejection()), PLAN).laws()))
    assert proof.verdict == "lossless", proof.reasons
