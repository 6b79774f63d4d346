"""The charts of a report, from results: only those that have something to say. Knows no ink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from ..predicting import predictions
from ..results import Case, Results, Sample, Summary
from .charts import Bar, Bars, Chart, Columns, Group, Lines, Point, Series, Stack, Stacks, known
from .choosing import MOST, Pair, by_method, deepest_of_each, fastest_of_each, most, settings, speed
from .wording import histogram, method, pairs, speculates


def charts(results: Results, samples: Sequence[Sample] = ()) -> list[Chart]:
    """Every chart that these results have something to say in; predictions need the samples."""
    found: list[Chart] = []
    for make in (
        overall, by_k("speed", samples), by_k("length", samples), by_category, by_position("survival"),
        by_position("conditional"), kept, round_times, pass_costs, by_batch, by_temperature, pareto,
    ):  # fmt: skip
        found += make(results)
    return found


def overall(results: Results) -> Iterator[Chart]:
    """Speed of each case against plain decoding."""
    for named, part in settings(results):
        shown, note = most([(case, found) for case, found in part if known(found.speedup)], speed, 16)
        if shown:
            yield Bars(
                key=_key("speed", named),
                title=_title("Speed against plain decoding", named),
                description="Bars beyond the line at 1 are faster than plain decoding. A thin line is the bootstrap "
                f"interval over prompts: where it crosses 1, the two cannot be told apart.{note}",
                x="times plain decoding's speed",
                names=("speed",),
                groups=tuple(
                    Group(case.name, (_bar(0, found.speedup, found),)) for case, found in shown if found.speedup
                ),
                reference=(1.0, "plain"),
            )


def by_k(what: str, samples: Sequence[Sample]) -> Callable[[Results], Iterator[Chart]]:
    """Speed or acceptance length against the draft length, measured and predicted."""

    def make(results: Results) -> Iterator[Chart]:
        for named, part in settings(results):
            series: list[Series] = []
            lines = [line for line in by_method(part) if len({case.k for case, _ in line}) > 1]
            shown, note = most(lines, lambda line: max(speed(pair) for pair in line))
            for colour, line in enumerate(shown):
                measured = _measured(line, what)
                if len(measured) < 2:
                    continue
                name = method(line[0][0])
                series.append(Series(name, measured, "line", colour))
                predicted = _predicted(results, samples, line, what)
                if predicted:
                    series.append(Series(f"{name}, predicted", predicted, "dashed", colour))
            if series:
                yield _chart_by_k(what, named, tuple(series), note)

    return make


def _measured(line: list[Pair], what: str) -> tuple[Point, ...]:
    points = []
    for case, found in sorted(line, key=lambda pair: pair[0].k or 0):
        value = found.speedup if what == "speed" else found.acceptance_length
        sure = found.speedup_interval if what == "speed" else None
        if value is not None and known(value) and case.k is not None:
            points.append(Point(case.k, value, sure.low if sure else None, sure.high if sure else None))
    return tuple(points)


def _predicted(results: Results, samples: Sequence[Sample], line: list[Pair], what: str) -> tuple[Point, ...]:
    """From the answers of the case with the longest drafts."""
    longest = max(line, key=lambda pair: pair[0].k or 0)[1]
    found = predictions(results, samples, longest.case)
    if what == "speed":
        return tuple(Point(one.k, one.speedup) for one in found if one.speedup is not None)
    return tuple(Point(one.k, one.acceptance_length) for one in found)


def _chart_by_k(what: str, named: str, series: tuple[Series, ...], note: str) -> Lines:
    predicted = any(one.kind == "dashed" for one in series)
    ticks = tuple(sorted({point.x for one in series for point in one.points}))
    if what == "speed":
        return Lines(
            key=_key("speed_by_k", named),
            title=_title("Speed against the draft length k", named),
            description="Above the line at 1, drafting pays."
            + " Dashed: predicted from the answers with the longest drafts and the cost of passes." * predicted
            + note,
            x="k, tokens drafted at a time",
            y="times plain decoding's speed",
            series=series,
            reference=(1.0, "plain"),
            ticks=ticks,
        )
    return Lines(
        key=_key("length_by_k", named),
        title=_title("Acceptance length against k", named),
        description="Tokens written per round that had a draft, the bonus token counted; 1 at worst, k + 1 at best."
        + " Dashed: what shorter drafts would have come to in the answers with the longest ones." * predicted
        + note,
        x="k, tokens drafted at a time",
        y="acceptance length",
        series=series,
        ticks=ticks,
    )


def by_category(results: Results) -> Iterator[Chart]:
    """Speed on each kind of prompt: the fastest case of each method."""
    for named, part in settings(results):
        best, note = most(fastest_of_each(part), speed, 4)
        names = sorted({name for _, found in best for name in found.categories})
        groups = []
        for name in names:
            figures = [(place, found.categories.get(name)) for place, (_, found) in enumerate(best)]
            bars = [
                _bar(place, one.speedup, one) for place, one in figures if one and one.speedup and known(one.speedup)
            ]
            groups += [Group(name, tuple(bars))] if bars else []
        if len(groups) > 1:
            yield Bars(
                key=_key("categories", named),
                title=_title("Speed by kind of prompt", named),
                description="The fastest case of each method. Beyond the line at 1 it is faster than plain decoding; a "
                f"thin line is the bootstrap interval over prompts.{note}",
                x="times plain decoding's speed",
                names=tuple(case.name for case, _ in best),
                groups=tuple(groups),
                reference=(1.0, "plain"),
            )


def by_position(what: str) -> Callable[[Results], Iterator[Chart]]:
    """Acceptance by position: of the case with the longest drafts of each method."""

    def make(results: Results) -> Iterator[Chart]:
        survival = what == "survival"
        for named, part in settings(results):
            deepest, note = most(deepest_of_each(part), speed)
            series = tuple(
                Series(
                    case.name, tuple(Point(k, share) for k, share in enumerate(_shares(found, survival), 1)), "line", n
                )
                for n, (case, found) in enumerate(deepest)
                if len(_shares(found, survival)) > 1
            )
            if series:
                yield Lines(
                    key=_key(what, named),
                    title=_title(
                        "Survival: tokens 1 to k all kept" if survival else "Token k kept, once k-1 were", named
                    ),
                    description=(
                        "Share of rounds with a draft: unconditional, vLLM's acceptance per position. It can only fall."
                        if survival
                        else "Conditional acceptance. Where it stays high, longer drafts would be kept too."
                    )
                    + note,
                    x="k, position in the draft",
                    y="share of rounds",
                    series=series,
                    ticks=tuple(sorted({point.x for one in series for point in one.points})),
                    share=True,
                )

    return make


def _shares(found: Summary, survival: bool) -> tuple[float, ...]:
    return found.survival if survival else found.conditional


def kept(results: Results) -> Iterator[Chart]:
    """How many tokens a draft has kept: a histogram."""
    for named, part in settings(results):
        deepest, note = most(deepest_of_each(part), speed, 4)
        shares = [histogram(found.survival) for _, found in deepest]
        widest = max((len(one) for one in shares), default=0)
        if widest > 1:
            yield Columns(
                key=_key("kept", named),
                title=_title("Drafted tokens kept per round", named),
                description=f"Share of rounds with a draft in which so many tokens were kept, bonus not counted.{note}",
                x="tokens kept",
                y="share of rounds",
                names=tuple(case.name for case, _ in deepest),
                places=tuple(
                    tuple(one[place] if place < len(one) else 0.0 for one in shares) for place in range(widest)
                ),
            )


def round_times(results: Results) -> Iterator[Chart]:
    """A round's time in its parts: plain decoding and the fastest case of each method."""
    for named, part in settings(results):
        best = fastest_of_each(part)
        plain = [pair for pair in part if not speculates(pair[0])]
        stacks = []
        for case, found in [*plain, *most(best, speed)[0]]:
            parts = (found.draft_seconds, found.verify_seconds, found.verdict_seconds, found.other_seconds)
            milliseconds = tuple(max(0.0, one * 1e3) for one in parts if one is not None and known(one))
            if len(milliseconds) == 4:
                stacks.append(Stack(case.name, milliseconds))
        if stacks:
            yield Stacks(
                key=_key("rounds", named),
                title=_title("A pass and what belongs to it", named),
                description="Means. A pass writes one token per prompt in plain decoding, and with a draft as many as "
                "the acceptance length says.",
                x="milliseconds",
                names=("draft", "verify", "decide", "other"),
                stacks=tuple(stacks),
            )


def pass_costs(results: Results) -> Iterator[Chart]:
    """Verification cost against width."""
    ordered = sorted(results.costs, key=lambda cost: (cost.batch, cost.context, cost.width))
    series: list[Series] = []
    for (batch, context), line in groupby(ordered, key=lambda cost: (cost.batch, cost.context)):
        points = tuple(Point(cost.width, cost.seconds * 1e3) for cost in line if known(cost.seconds))
        if len(points) > 1:
            series.append(Series(f"batch {batch}, context {context}", points, "line", len(series)))
    if series:
        yield Lines(
            key="costs",
            title="What a pass of the target costs",
            description="Checking a draft of k tokens takes a pass over k + 1. Where the line is flat, checking is "
            "free; where it climbs, long drafts have to be right to pay.",
            x="tokens per row in one pass",
            y="milliseconds",
            series=tuple(series[:MOST]),
            ticks=tuple(sorted({point.x for one in series for point in one.points})),
            doubling=True,
        )


def by_batch(results: Results) -> Iterator[Chart]:
    """Speed against the batch, with the break-even line."""
    yield from _along(
        results,
        of=lambda case: case.batch,
        same=lambda case: case.model_copy(update={"batch": 1}),
        value=lambda found: found.speedup,
        key="speed_by_batch",
        title="Speed against the batch",
        description="Each against plain decoding of the same batch: on the line at 1 speculation breaks even.",
        x="prompts served together",
        y="times plain decoding's speed",
        reference=(1.0, "plain"),
    )


def by_temperature(results: Results) -> Iterator[Chart]:
    """How temperature eats acceptance."""
    yield from _along(
        results,
        of=lambda case: case.temperature,
        same=lambda case: case.model_copy(update={"temperature": 0.0}),
        value=lambda found: found.acceptance_length,
        key="length_by_temperature",
        title="Acceptance length against temperature",
        description="Tokens written per round that had a draft, the bonus token counted.",
        x="temperature",
        y="acceptance length",
        reference=None,
    )


def _along(
    results: Results,
    *,
    of: Callable[[Case], float],
    same: Callable[[Case], Case],
    value: Callable[[Summary], float | None],
    key: str,
    title: str,
    description: str,
    x: str,
    y: str,
    reference: tuple[float, str] | None,
) -> Iterator[Chart]:
    """A figure along one part of the case, a line for all else; only the fastest draft length of each method."""
    speculating = [pair for pair in pairs(results) if speculates(pair[0]) and known(value(pair[1]))]
    lines: dict[Case, list[Pair]] = {}
    for pair in speculating:
        lines.setdefault(same(pair[0]), []).append(pair)
    long = [line for line in lines.values() if len({of(case) for case, _ in line}) > 1]
    shown, note = most(long, lambda line: max(speed(pair) for pair in line), 6)
    series = tuple(
        Series(
            same(line[0][0]).name,
            tuple(Point(of(case), value(found) or 0.0) for case, found in sorted(line, key=lambda pair: of(pair[0]))),
            "line",
            colour,
        )
        for colour, line in enumerate(shown)
    )
    if series:
        ticks = tuple(sorted({point.x for one in series for point in one.points}))
        yield Lines(key, title, f"{description}{note}", x, y, series, reference, ticks)


def pareto(results: Results) -> Iterator[Chart]:
    """Speed for one user against all users together, where batches differ."""
    every = pairs(results)
    if len({case.batch for case, _ in every}) < 2:
        return
    usable = [(case, found) for case, found in every if known(found.tokens_per_second) and known(found.throughput)]
    places = [Point(found.tokens_per_second, found.throughput, label=case.name) for case, found in usable]
    best = [not any(_beats(other, place) for other in places) for place in places]
    front = tuple(sorted((place for place, good in zip(places, best, strict=True) if good), key=lambda place: place.x))
    groups: list[Series] = []
    for batch in sorted({case.batch for case, _ in usable}):
        for drafts in (False, True):
            points = tuple(
                place
                for (case, _), place, good in zip(usable, places, best, strict=True)
                if not good and (case.batch, speculates(case)) == (batch, drafts)
            )
            if points:
                name = f"batch {batch}, {'with drafts' if drafts else 'plain'}"
                groups.append(Series(name, points, "points", len(groups) + 1))
    yield Lines(
        key="pareto",
        title="Speed per user against total throughput",
        description="Each point is a case; further right is faster for one user, further up more work per second. On "
        "the line lie those that no other case beats in both.",
        x="tokens/s for one user (median)",
        y="tokens/s of all together",
        series=(Series("nothing is better in both", front, "line", 0), *groups[: MOST - 1]),
    )


def _beats(one: Point, other: Point) -> bool:
    return one.x >= other.x and one.y >= other.y and (one.x, one.y) != (other.x, other.y)


def _bar(place: int, value: float, found: object) -> Bar:
    sure = getattr(found, "speedup_interval", None)
    return Bar(place, value, sure.low if sure else None, sure.high if sure else None)


def _key(name: str, named: str) -> str:
    tail = "".join(letter if letter.isalnum() else "_" for letter in named)
    return f"{name}_{tail}" if tail else name


def _title(title: str, named: str) -> str:
    return f"{title} ({named})" if named else title
