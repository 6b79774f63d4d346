"""Charts: which ones appear, that predictions are the speed model's, and that drawings put things where they belong."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from measured import SMALL, SUFFIX, World, costs_of, everything, results_of

from outrider import speed
from outrider.measure.figures import summarise
from outrider.measure.predicting import pass_seconds, predictions, share_with_draft
from outrider.measure.reporting.charts import Bar, Bars, Columns, Group, Lines, Point, Series, Stack, Stacks
from outrider.measure.reporting.plots import charts
from outrider.measure.reporting.svg import legend, numbered, svg, ticks
from outrider.measure.reporting.tables import Column, Table, markdown
from outrider.measure.reporting.wording import histogram
from outrider.measure.results import PLAIN, Case, PassCost, Results, RoundFigures, Sample

SVG = "{http://www.w3.org/2000/svg}"


def keys(*cases: Case, prompts: int = 4) -> set[str]:
    """The charts of a run of these cases."""
    return {chart.key for chart in charts(results_of([(case, SMALL) for case in cases], prompts=prompts)[0])}


def test_charts_appear_only_where_they_have_something_to_say() -> None:
    plain, one = Case(drafter=PLAIN), Case(drafter="d", k=1)
    assert keys() == set()
    assert keys(plain) == {"rounds"}
    assert keys(plain, one) == {"speed", "categories", "kept", "rounds"}
    assert keys(plain, one, Case(drafter="d", k=2)) >= {"speed_by_k", "length_by_k", "survival", "conditional"}
    assert not keys(plain, one, Case(drafter="e", k=2)) & {"speed_by_k", "length_by_k"}, "k of two drafters is no curve"
    batches = keys(plain, one, Case(drafter=PLAIN, batch=4), Case(drafter="d", k=1, batch=4))
    assert batches >= {"speed_by_batch", "pareto", "speed_batch_4"}
    hot = keys(plain, one, Case(drafter=PLAIN, temperature=1.0), Case(drafter="d", k=1, temperature=1.0))
    assert hot >= {"length_by_temperature", "speed_T_1"} and not hot & {"pareto", "speed_by_batch"}
    assert "categories" not in keys(plain, one, prompts=1), "one kind of prompt is no comparison"


def test_settings_are_never_mixed_on_one_chart() -> None:
    results, _ = everything(4)
    for chart in charts(results):
        if chart.key.startswith(("speed_by_k", "survival", "conditional", "kept", "rounds")):
            names = {s.name for s in chart.series} if isinstance(chart, Lines) else {row[0] for row in chart.table.rows}
            of_batch = {"batch 4" in name for name in names if not isinstance(chart, Columns)}
            assert len(of_batch) <= 1 or chart.key.startswith("speed_by_k")


def test_the_front_is_what_nothing_beats_in_both() -> None:
    results, _ = everything(4)
    (chart,) = [chart for chart in charts(results) if chart.key == "pareto"]
    assert isinstance(chart, Lines)
    front = chart.series[0].points
    every = [(found.tokens_per_second, found.throughput) for found in results.summaries]
    best = {(u, t) for u, t in every if not any(a >= u and b >= t and (a, b) != (u, t) for a, b in every)}
    assert {(point.x, point.y) for point in front} == best
    assert numbered(chart) == [point.label for point in front] and len(front) > 1
    assert sum(len(one.points) for one in chart.series) == len(every)


def test_predictions_are_the_speed_models() -> None:
    """By hand, from the rounds that shorter drafts would have had, pass costs and the means of the rounds."""
    results, samples = results_of([(Case(drafter=PLAIN), SMALL), (Case(drafter="d", k=4), SMALL)], prompts=8)
    results = results.model_copy(update={"costs": costs_of(SMALL)})
    plain, found = results.summaries
    predicted = predictions(results, samples, 1)
    assert [one.k for one in predicted] == [1, 2, 3, 4]
    assert predicted[-1].acceptance_length == pytest.approx(found.acceptance_length), "its own length is no guess"
    for one in predicted:
        wide, narrow = 0.025 + 0.0012 * one.k, 0.025
        beside = found.verdict_seconds + found.other_seconds
        seconds = wide + one.k * SMALL.draft_seconds + beside
        plain_seconds = narrow + plain.draft_seconds + plain.verdict_seconds + plain.other_seconds
        assert one.decoding == pytest.approx(one.tokens_per_pass / seconds * plain_seconds, rel=0.04)
        assert 1 < one.speedup < one.decoding, "reading the prompt is not speeded up"
    assert predicted[-1].speedup == pytest.approx(found.speedup, rel=0.1)


def uneven(k: int, case: int) -> Sample:
    """An answer whose tokens are easy to draft for a while, and hard for a while, drafted k at a time."""
    right, rounds, here = ([True] * 80 + [False] * 40) * 4, [], 0
    while here < len(right):
        depth = min(k, len(right) - here - 1)
        kept = next((n for n in range(depth) if not right[here + n]), depth)
        here += kept + 1
        times = {"at": here / 100, "draft_seconds": 0.001, "verify_seconds": 0.01, "verdict_seconds": 0.0}
        rounds.append(RoundFigures(drafted=depth, depth=depth, accepted=kept, tokens=kept + 1, **times))
    return Sample(
        case=case, prompt="p", category="c", repeat=0, prompt_tokens=1, seconds=here / 100, rounds=tuple(rounds),
        arrivals=(), ids=(), text="", finish_reason="length", seed=0,
    )  # fmt: skip


def test_shorter_drafts_begin_at_other_places() -> None:
    """Where acceptance is uneven the survival of long drafts misleads (docs/speed.md); going through the answer again
    does not."""
    cases = (Case(drafter="d", k=2, policy="fixed:2"), Case(drafter="d", k=8, policy="fixed:8"))
    samples = [uneven(2, 0), uneven(8, 1)]
    short, long = summarise(cases, samples, {})
    results = Results(manifest={}, cases=cases, summaries=(short, long))
    found = predictions(results, samples, 1)[1]
    assert found.acceptance_length == pytest.approx(short.acceptance_length, rel=0.02)
    assert speed.acceptance_length(long.survival[:2]) < 0.8 * short.acceptance_length
    assert found.speedup is None, "nothing is known of plain decoding"


def test_predicted_length_is_exact_where_it_was_measured() -> None:
    results, samples = everything(8)
    (chart,) = [chart for chart in charts(results, samples) if chart.key == "length_by_k"]
    assert isinstance(chart, Lines)
    measured, predicted = chart.series[2:4]
    assert (measured.kind, predicted.kind, measured.colour) == ("line", "dashed", predicted.colour)
    found = results.summaries[10]
    assert results.cases[10].name == "model:small, k=5"
    assert predicted.points[-1].y == pytest.approx(found.acceptance_length)
    assert [point.y for point in measured.points] == [results.summaries[n].acceptance_length for n in range(6, 11)]
    (bare,) = [chart for chart in charts(results) if chart.key == "length_by_k"]
    assert isinstance(bare, Lines)
    assert all(series.kind == "line" for series in bare.series), "without the answers nothing is predicted"


@pytest.mark.parametrize(("width", "seconds"), [(1, 0.1), (4, 0.2), (3, 0.1 + 0.1 * 2 / 3), (8, None), (0, None)])
def test_pass_costs_lie_between_what_was_measured(width: int, seconds: float | None) -> None:
    costs = [
        PassCost(width=4, batch=1, context=256, seconds=0.2),
        PassCost(width=1, batch=1, context=256, seconds=0.1),
        PassCost(width=2, batch=1, context=4096, seconds=9.0),
        PassCost(width=8, batch=2, context=256, seconds=9.0),
    ]
    assert pass_seconds(costs, width, 1) == (None if seconds is None else pytest.approx(seconds))
    assert pass_seconds(costs, 1, 3) is None


def test_nothing_is_predicted_from_nothing() -> None:
    cases = [(Case(drafter=PLAIN), SMALL), (Case(drafter="d", k=2), SMALL), (Case(drafter="d"), SMALL)]
    results, samples = results_of(cases, prompts=4)
    assert [one.speedup for one in predictions(results, samples, 1)] == [None, None]
    with_costs = results.model_copy(update={"costs": costs_of(SMALL)})
    assert all(one.speedup for one in predictions(with_costs, samples, 1))
    assert predictions(with_costs, samples, 0) == () == predictions(with_costs, samples, 2)
    assert predictions(with_costs, [], 1) == ()
    alone = with_costs.model_copy(update={"summaries": with_costs.summaries[1:]})
    assert [one.speedup for one in predictions(alone, samples, 1)] == [None, None]
    trees = [
        sample.model_copy(update={"rounds": tuple(r.model_copy(update={"depth": 1}) for r in sample.rounds)})
        for sample in samples
    ]
    assert predictions(with_costs, trees, 1) == (), "a tree is no chain"


def test_rounds_without_a_draft_keep_their_share() -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SUFFIX), (Case(drafter="d", k=3), SUFFIX)], prompts=12)
    rounds = [round_ for sample in samples if sample.case == 1 for round_ in sample.rounds]
    true = sum(round_.drafted > 0 for round_ in rounds) / len(rounds)
    assert share_with_draft(results.summaries[1]) == pytest.approx(true, abs=1e-9)
    assert share_with_draft(results.summaries[0]) == 0


def test_the_histogram_is_survivals_differences() -> None:
    assert histogram((0.5, 0.25)) == (0.5, 0.25, 0.25)
    assert histogram(()) == (1.0,)


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [(0, 1, 0, 1), (0, 1.66, 0, 2), (0.97, 1.03, 0.96, 1.04), (3, 3, 3, 4), (0, 0, 0, 0.2), (0, 1234, 0, 1250)],
)
def test_ticks_are_round_and_hold_everything(low: float, high: float, first: float, last: float) -> None:
    found = ticks(low, high)
    assert (found[0], found[-1]) == (pytest.approx(first), pytest.approx(last))
    assert 2 <= len(found) <= 8


def drawn(chart: Lines | Bars | Stacks | Columns) -> ElementTree.Element:
    """A drawing as a tree; that it parses is part of the test."""
    return ElementTree.fromstring(svg(chart))


def test_lines_are_where_their_figures_are() -> None:
    series = Series("a", (Point(1, 1.0, 0.5, 1.5), Point(2, 2.0), Point(4, 0.0)))
    tree = drawn(Lines("key", "T", "D", "x", "y", (series, Series("b", (Point(1, 1),), "points", 5)), (1.0, "plain")))
    marks = [
        (float(m.get("cx", 0)), float(m.get("cy", 0))) for m in tree.iter(f"{SVG}circle") if "c0" in m.get("class", "")
    ]
    assert [x for x, _ in marks] == sorted(x for x, _ in marks)
    assert marks[1][1] < marks[0][1] < marks[2][1], "more is further up"
    assert marks[2][0] - marks[1][0] == pytest.approx(2 * (marks[1][0] - marks[0][0]), abs=0.2)
    assert marks[0][1] == pytest.approx((marks[1][1] + marks[2][1]) / 2, abs=0.2)
    reference = next(path for path in tree.iter(f"{SVG}path") if path.get("class") == "reference")
    assert float(re.findall(r"[\d.]+", reference.get("d", ""))[1]) == pytest.approx(marks[0][1], abs=0.2)
    assert sum(path.get("class", "").startswith("whisker") for path in tree.iter(f"{SVG}path")) == 1


def test_bars_are_as_long_as_their_figures() -> None:
    groups = (Group("chat", (Bar(0, 1.0, 0.5, 1.5), Bar(1, 2.0))),)
    tree = drawn(Bars("key", "T", "D", "x", ("a", "b"), groups, (1.0, "plain")))
    short, long = (float(box.get("width", 0)) for box in tree.iter(f"{SVG}rect"))
    assert long == pytest.approx(2 * short, abs=0.2)
    assert [name for _, name in legend(Bars("key", "T", "D", "x", ("a", "b"), groups))] == ["a", "b"]
    assert legend(Bars("key", "T", "D", "x", ("a",), groups)) == []


def test_stacks_add_up_and_columns_stand_side_by_side() -> None:
    boxes = list(drawn(Stacks("key", "T", "D", "ms", ("a", "b"), (Stack("s", (1.0, 3.0)),))).iter(f"{SVG}rect"))
    first, second = ((float(box.get("x", 0)), float(box.get("width", 0))) for box in boxes)
    assert second[0] == pytest.approx(first[0] + first[1], abs=0.2) and second[1] == pytest.approx(
        3 * first[1], abs=0.3
    )
    columns = list(drawn(Columns("key", "T", "D", "x", "y", ("a", "b"), ((0.5, 0.25), (0.5, 0.75)))).iter(f"{SVG}rect"))
    heights = [float(box.get("height", 0)) for box in columns]
    assert heights[3] == pytest.approx(3 * heights[1], abs=0.3) and heights[0] == heights[2]


def test_series_differ_in_shape_as_well_as_colour() -> None:
    series = tuple(Series(str(n), (Point(1, 1),), "points", n) for n in range(8))
    shapes = {re.sub(r"[\d. ]+|c\d", "", mark) for mark, _ in legend(Lines("key", "T", "D", "x", "y", series))}
    assert len(shapes) == 8


def test_tables_lose_empty_columns_and_their_definitions() -> None:
    columns = (Column("case", False), Column("speed"), Column("rate"))
    table = Table(
        "key", "T", columns, (("a", "1", "–"), ("b", "–", "–")), (("speed", "how fast"), ("rate", "how many"))
    )
    kept = table.without_empty("–")
    assert [column.name for column in kept.columns] == ["case", "speed"]
    assert kept.rows == (("a", "1"), ("b", "–")) and kept.terms == (("speed", "how fast"),)
    assert "| case | speed |" in markdown(kept) and "*speed*: how fast." in markdown(kept)
    with pytest.raises(ValueError, match="do not fit"):
        Table("key", "T", columns, (("a",),))


def test_a_world_without_noise_is_as_fast_as_its_arithmetic() -> None:
    """The simulated measurements that these tests stand on: everything kept, so k + 1 tokens a pass."""
    sure = World({"chat": 2.0}, fading=1.0, per_node=0.0, draft_seconds=0.0)
    results, _ = results_of([(Case(drafter=PLAIN), sure), (Case(drafter="d", k=3), sure)], prompts=4)
    assert results.summaries[1].survival == (1.0, 1.0, 1.0)
    assert results.summaries[1].acceptance_length == 4.0
    assert results.summaries[1].speedup == pytest.approx(3.5, abs=0.4)
