"""The runner on the toy target: what is served, in which order, and what a sample holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from toy import Scripted, Stream, Table, ToyTarget

from outrider.api import Outrider
from outrider.draft_models import DraftModels
from outrider.loading import Loaded, Loader
from outrider.measure import runner
from outrider.measure.prompts import BenchPrompt
from outrider.measure.results import Case, Sample
from outrider.measure.runner import Plan, prepared, run, run_case, turns, warm_up
from outrider.prefix import Prefixes

EOS = 7
TEXT = (0, 1, 2, 3, 4, EOS, 5, 5)


def toy(table: Table | None = None, eos: tuple[int, ...] = ()) -> Outrider:
    """An `Outrider` on the toy target, which by default writes TEXT."""
    loaded = Loaded(ToyTarget(table or Stream(8, 1, TEXT), eos), None, "toy", None)
    return Outrider(loaded, DraftModels(Loader()), "none", "match", "goodput", 512, Prefixes(0))


def scripted(drafts: Sequence[Sequence[int]], k: int = 6, eos: tuple[int, ...] = (EOS,)) -> Outrider:
    """The same with a drafter that does as it is told."""
    llm = toy(eos=eos).using(policy=f"fixed:{k}")
    llm.drafter = Scripted(drafts)
    return llm


def prompts(*firsts: int) -> list[BenchPrompt]:
    """Prompts of one token."""
    return [BenchPrompt(f"p{place}", "even" if place % 2 == 0 else "odd", [id_]) for place, id_ in enumerate(firsts)]


def test_a_sample_holds_its_rounds() -> None:
    """Two rounds: two of three kept and the bonus; then three, with EOS inside the block."""
    (sample,) = run_case(scripted([[0, 1, 3], [3, 4, EOS, 5, 5]]), 4, prompts(6), 20, seed=9, repeat=2)
    assert (sample.case, sample.prompt, sample.category, sample.repeat, sample.seed) == (4, "p0", "even", 2, 9)
    assert (sample.ids, sample.finish_reason, sample.prompt_tokens) == (TEXT[:6], "stop", 1)
    first, second = sample.rounds
    assert (first.drafted, first.depth, first.accepted, first.tokens) == (3, 3, 2, 3)
    assert (second.drafted, second.depth, second.accepted, second.tokens) == (5, 5, 3, 3)
    assert 0 < first.at < second.at == sample.seconds
    assert sample.arrivals == ((first.at, 3), (second.at, 3))
    assert sample.group is None and sample.started > 1e9


def test_rows_of_a_batch_share_passes_and_arrivals() -> None:
    """Three prompts, two at a time: the third is alone in its group."""
    samples = run_case(scripted([[0, 1], []]), 0, prompts(6, 6, 6), 6, batch=2)
    assert [sample.group for sample in samples] == [0, 0, None]
    assert [sample.ids for sample in samples] == [TEXT[:6]] * 3
    one, other, alone = samples
    assert [r.at for r in one.rounds] == [r.at for r in other.rounds]
    assert {r.rows for r in one.rounds} == {2} and {r.rows for r in alone.rounds} == {1}
    assert [(a.place, b.place) for a, b in zip(one.rounds, other.rounds, strict=True)] == [(0, 1)] * len(one.rounds)


CASES = [Case(drafter="none"), Case(drafter="lookup", k=2), Case(drafter="suffix", k=2)]


def keys(samples: Sequence[Sample]) -> list[tuple[int, str, int]]:
    """Case, prompt and repeat of each."""
    return [(sample.case, sample.prompt, sample.repeat) for sample in samples]


def everything(
    cases: Sequence[Case], asked: list[BenchPrompt], plan: Plan, done: Sequence[tuple[int, str, int]] = ()
) -> list[Sample]:
    """Prepare, warm up and run on the toy."""
    own = dict(enumerate(cases))
    llms = prepared(toy(), own)
    warm_up(llms, own, asked, plan)
    return list(run(llms, own, turns(own, asked, plan, frozenset(done)), plan))


def test_cases_take_turns_in_an_order_that_rotates() -> None:
    samples = everything(CASES, prompts(1, 2), Plan(5, 2, 30))
    assert keys(samples) == [
        (0, "p0", 0), (1, "p0", 0), (2, "p0", 0),
        (1, "p1", 0), (2, "p1", 0), (0, "p1", 0),
        (2, "p0", 1), (0, "p0", 1), (1, "p0", 1),
        (0, "p1", 1), (1, "p1", 1), (2, "p1", 1),
    ]  # fmt: skip
    assert {sample.seed for sample in samples if sample.repeat} == {31}
    assert all(len(sample.ids) == 5 for sample in samples)


def test_what_is_done_is_not_done_again() -> None:
    plan = Plan(5, 2)
    whole = keys(everything(CASES, prompts(1, 2), plan))
    rest = everything(CASES, prompts(1, 2), plan, whole[:7])
    assert keys(rest) == whole[7:]
    assert turns(dict(enumerate(CASES)), prompts(1, 2), plan, frozenset(whole)) == []


def test_a_batch_that_is_half_done_is_served_again() -> None:
    cases, plan = [Case(drafter="none"), Case(drafter="lookup", batch=2)], Plan(5, 1)
    samples = everything(cases, prompts(1, 2, 3), plan, [(0, "p1", 0), (1, "p0", 0)])
    assert keys(samples) == [(0, "p0", 0), (0, "p2", 0), (1, "p0", 0), (1, "p1", 0), (1, "p2", 0)]


@pytest.mark.parametrize(("keep_history", "learned"), [(False, [0, 0, 0, 0]), (True, [0, 1, 0, 1])])
def test_history_is_dropped(monkeypatch: pytest.MonkeyPatch, keep_history: bool, learned: list[int]) -> None:
    """Before every batch, or before every repeat where a drafter shall learn from the prompts before."""
    known: list[int] = []
    served = runner._served

    def watched(llm: Outrider, *args: object) -> object:
        known.append(llm.drafter._outputs.size)  # type: ignore[attr-defined]
        return served(llm, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "_served", watched)
    plan = Plan(5, 2, keep_history=keep_history)
    everything([Case(drafter="suffix", k=2)], prompts(1, 2), plan)
    assert [min(size, 1) for size in known] == learned
