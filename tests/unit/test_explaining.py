"""Explanations: the factors multiply to the measured speed, each is what it says, and advice follows from figures."""

from __future__ import annotations

import math

import pytest
from measured import SMALL, SUFFIX, World, costs_of, everything, results_of

from outrider.measure.advising import explained
from outrider.measure.explaining import Explanation, explain, prefill
from outrider.measure.figures import summarise
from outrider.measure.results import PLAIN, TRANSFORMERS, Case, Results, Sample


def run(world: World, *cases: Case, prompts: int = 8, plain: bool = True) -> tuple[Results, list[Sample]]:
    """These cases in a world, with plain decoding."""
    every = [(Case(drafter=PLAIN), world)] * plain + [(case, world) for case in cases]
    results, samples = results_of(every, prompts=prompts)
    return results.model_copy(update={"costs": costs_of(world)}), samples


def only(results: Results, samples: list[Sample]) -> Explanation:
    """Of the last case."""
    return explained(results, samples)[-1]


@pytest.mark.parametrize("with_samples", [True, False])
def test_factors_multiply_to_the_measured_speed(with_samples: bool) -> None:
    results, samples = everything()
    told = explain(results, samples if with_samples else ())
    assert len(told) == sum(case != case.plain for case in results.cases)
    for one in told:
        assert math.prod(factor.value for factor in one.factors) == pytest.approx(one.speedup)
        parts = [factor.part for factor in one.factors]
        assert parts[:4] == ["acceptance", "checking", "drafting", "overhead"]
        assert parts[4:] == (["reading", "averaging"] if with_samples else ["averaging"])
        if with_samples:
            assert one.factor("averaging") == pytest.approx(1, abs=0.12), "no factor hides in the last one"


def test_each_factor_is_what_it_says() -> None:
    """A world with round numbers: passes of 25 ms plus 1.2 per node, 4 ms per drafted token."""
    results, samples = run(SMALL, Case(drafter="d", k=4))
    one, found = only(results, samples), results.summaries[1]
    assert one.factor("acceptance") == pytest.approx(found.tokens_per_pass)
    assert one.factor("checking") == pytest.approx(25 / (25 + 4 * 1.2), rel=0.03)
    assert one.factor("drafting") == pytest.approx(29.8 / (29.8 + 16), rel=0.03)
    assert one.factor("overhead") == pytest.approx((45.8 / 47.3) * (26.5 / 25), rel=0.03)
    plain = [sample for sample in samples if sample.case == 0]
    share = sum(prefill(sample) for sample in plain) / sum(sample.seconds for sample in plain)
    assert f"{share * 100:.1f} %" in next(factor.words for factor in one.factors if factor.part == "reading")
    decoding = one.factor("acceptance") * one.factor("checking") * one.factor("drafting") * one.factor("overhead")
    assert one.factor("reading") == pytest.approx(1 / (share * decoding + 1 - share), rel=0.03), "Amdahl's law"


def test_a_ceiling_is_the_speed_without_that_cost() -> None:
    results, samples = run(SMALL, Case(drafter="d", k=4))
    one = only(results, samples)
    assert one.speedup is not None
    assert one.ceilings["drafting"] * one.factor("drafting") == pytest.approx(one.speedup)
    free, samples = run(World(SMALL.keep, draft_seconds=0.0), Case(drafter="d", k=4))
    assert one.ceilings["drafting"] == pytest.approx(only(free, samples).speedup, rel=0.08)
    assert "drafting" not in only(free, samples).ceilings


SLOW_DRAFTER = World({"chat": 0.8, "code": 0.8}, draft_seconds=0.02)
DEAR_PASSES = World({"chat": 0.8, "code": 0.8}, per_node=0.01)
WRONG = World({"chat": 0.2, "code": 0.25})
RIGHT = World({"chat": 0.98, "code": 0.99}, fading=1.0)
MIXED = World({"chat": 0.02, "code": 0.95}, per_node=0.004)
LONG_PROMPTS = World({"chat": 0.8, "code": 0.8}, prefill=0.02)


@pytest.mark.parametrize(
    ("world", "case", "says"),
    [
        (SLOW_DRAFTER, Case(drafter="d", k=3), "A cheaper drafter: at most"),
        (SLOW_DRAFTER, Case(drafter="d", k=5), "Shorten the draft to k = 1"),
        (DEAR_PASSES, Case(drafter="d", k=4), "A smaller tree or a shorter draft (now 3.9 tokens, where there is one)"),
        (WRONG, Case(drafter="d", k=3), "A drafter that knows this text better"),
        (WRONG, Case(drafter="d", k=5, policy="fixed:5"), "Take --policy goodput"),
        (RIGHT, Case(drafter="d", k=3), "measure k = 6"),
        (MIXED, Case(drafter="d", k=3), "pauses where drafting loses (chat 0."),
        (LONG_PROMPTS, Case(drafter="d", k=3), "Longer answers"),
        (SUFFIX, Case(drafter="suffix", k=3), "cascade:A,B"),
    ],
)  # fmt: skip
def test_advice_follows_from_the_figures(world: World, case: Case, says: str) -> None:
    results, samples = run(world, case)
    assert any(says in words for words in only(results, samples).advice), only(results, samples).advice


def test_advice_stays_away_where_nothing_is_wrong() -> None:
    """A drafter that is right, free and long enough to leave nothing to be said but that it could go on."""
    perfect = World({"chat": 2.0, "code": 2.0}, fading=1.0, per_node=0.0, draft_seconds=0.0, prefill=0.0)
    results, samples = run(perfect, Case(drafter="d", k=8))
    assert [words.partition(":")[0] for words in only(results, samples).advice] == ["Longer drafts"]


def test_what_was_measured_faster_comes_first() -> None:
    results, samples = run(SLOW_DRAFTER, Case(drafter="d", k=1), Case(drafter="d", k=5))
    best = results.summaries[1].speedup
    assert f"Take d, k=1: measured in this run at {best:.2f}×." in explained(results, samples)[1].advice
    assert not any("Take d" in words for words in explained(results, samples)[0].advice)


def test_without_plain_decoding_there_is_nothing_to_take_apart() -> None:
    results, samples = run(SMALL, Case(drafter="d", k=2), plain=False)
    one = only(results, samples)
    assert one.factors == () and one.speedup is None and one.advice == ()
    assert "plain decoding was not measured" in (one.why_not or "")


def test_a_server_that_tells_no_rounds_is_not_taken_apart() -> None:
    results, samples = run(SMALL, Case(drafter="d", k=2))
    bare = results.summaries[1].model_copy(update={"verify_seconds": None, "draft_seconds": None})
    mute = [sample.model_copy(update={"rounds": ()}) for sample in samples]
    one = only(results.model_copy(update={"summaries": (results.summaries[0], bare)}), mute)
    assert one.factors == () and one.speedup is not None
    assert "not known" in (one.why_not or "")


def test_another_systems_loop_is_not_taken_apart() -> None:
    """It has no rounds; nor does anybody advise it."""
    results, samples = run(SMALL, Case(drafter=PLAIN, system=TRANSFORMERS))
    mute = [sample.model_copy(update={"rounds": ()}) if sample.case == 1 else sample for sample in samples]
    kinds = results.cases
    one = only(results.model_copy(update={"summaries": summarise(kinds, mute)}), mute)
    assert one.factors == () == one.advice and one.speedup == pytest.approx(1, abs=0.1)
    assert "not known" in (one.why_not or "")


def test_no_drafts_at_all() -> None:
    results, samples = run(SMALL, Case(drafter="d", k=2))
    update = {"drafted": 0, "accepted": 0, "survival": (), "conditional": (), "acceptance_length": None,
              "acceptance_rate": None, "tokens_per_pass": 1.0, "draft_seconds": 0.0}  # fmt: skip
    silent = results.summaries[1].model_copy(update=update)
    one = only(results.model_copy(update={"summaries": (results.summaries[0], silent)}), samples)
    assert math.prod(factor.value for factor in one.factors) == pytest.approx(one.speedup)
    assert one.advice[0].startswith("Nothing was drafted")
