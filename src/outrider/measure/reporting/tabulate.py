"""The tables of a report, from results. Knows no models and no layout."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..results import Case, CategoryFigures, Percentiles, Results, Summary
from .tables import Column, Table
from .wording import (
    NOTHING,
    between,
    milliseconds,
    number,
    pairs,
    share,
    size,
    speculates,
    terms,
    times,
)

Row = tuple[str, ...]

_TWICE = ("plan.cases.", "plan.machine.")


def headline(results: Results) -> Table:
    """The figures that a choice is made by."""
    columns = ("case", "verdict", "speed", "interval", "tokens/s", "throughput", "acceptance length",
               "acceptance rate", "tokens/pass", "identical")  # fmt: skip
    rows = []
    for case, found in pairs(results):
        rows.append(
            (
                case.name,
                found.verdict or ("baseline" if not speculates(case) else NOTHING),
                times(found.speedup),
                between(found.speedup_interval) if found.speedup is not None else NOTHING,
                number(found.tokens_per_second, 1),
                number(found.throughput, 1),
                number(found.acceptance_length),
                share(found.acceptance_rate),
                number(found.tokens_per_pass),
                f"{found.identical} of {found.compared}" if found.compared else NOTHING,
            )
        )
    named = terms("speed", "verdict", "tokens/s", "throughput", "acceptance length", "acceptance rate", "tokens/pass",
                  "identical")  # fmt: skip
    return _table("headline", "Speed and acceptance by case", columns, rows, named, words=("case", "verdict"))


def positions(results: Results) -> Table | None:
    """Acceptance by position, unconditional and conditional one under the other."""
    drafting = [(case, found) for case, found in pairs(results) if found.survival]
    if not drafting:
        return None
    deepest = max(len(found.survival) for _, found in drafting)
    rows: list[Row] = []
    for case, found in drafting:
        for name, values in (("unconditional", found.survival), ("conditional", found.conditional)):
            cells = [share(value) for value in values]
            rows.append((case.name, name, *cells, *[""] * (deepest - len(cells))))
    columns = ("case", "acceptance", *(f"token {k}" for k in range(1, deepest + 1)))
    named = terms("unconditional", "conditional")
    return _table("positions", "Acceptance by position in the draft", columns, rows, named, ("case", "acceptance"))


def rounds(results: Results) -> Table | None:
    """Where a round's time goes."""
    timed = [(case, found) for case, found in pairs(results) if found.verify_seconds is not None]
    if not timed:
        return None
    parts = ("draft", "verify", "decide", "other")
    rows = []
    for case, found in timed:
        seconds = (found.draft_seconds, found.verify_seconds, found.verdict_seconds, found.other_seconds)
        whole = sum(value for value in seconds if value is not None)
        rows.append((case.name, *(milliseconds(value) for value in seconds), milliseconds(whole), f"{found.rounds:,}"))
    return _table(
        "rounds",
        "A pass and what belongs to it, in milliseconds (means)",
        ("case", *parts, "sum", "rounds"),
        rows,
        terms(*parts),
    )


def latency(results: Results) -> Table:
    """Times that a reader of the stream feels."""
    kinds: tuple[tuple[str, Callable[[Summary], Percentiles]], ...] = (
        ("first token", lambda found: found.time_to_first),
        ("per token", lambda found: found.per_token),
        ("between events", lambda found: found.between_events),
        ("between tokens", lambda found: found.between_tokens),
    )
    columns = ("case", *(f"{name}, {p}" for name, _ in kinds for p in ("p50", "p95", "p99")))
    rows = []
    for case, found in pairs(results):
        values = [value for _, of in kinds for value in (of(found).p50, of(found).p95, of(found).p99)]
        rows.append((case.name, *(milliseconds(value) for value in values)))
    named = terms(*(name for name, _ in kinds))
    return _table("latency", "Latency, in milliseconds (percentiles over all answers)", columns, rows, named)


def quality(results: Results) -> Table:
    """Whether the output is plain decoding's, and what it takes in memory."""
    columns = ("case", "lossless", "identical", "perplexity", "mean TV", "mean KL", "peak memory", "drafter's weights")
    rows = []
    for case, found in pairs(results):
        rows.append(
            (
                case.name,
                {True: "yes", False: "NO, relaxed", None: NOTHING}[found.lossless],
                f"{found.identical} of {found.compared}" if found.compared else NOTHING,
                number(found.perplexity, 3),
                number(found.mean_tv, 4),
                number(found.mean_kl, 4),
                size(found.peak_memory),
                size(found.drafter_memory),
            )
        )
    named = terms("identical", "perplexity", "mean TV", "mean KL", "peak memory", "drafter's weights")
    return _table("quality", "Output and memory", columns, rows, named, words=("case", "lossless"))


def categories(results: Results) -> Table | None:
    """The same case on different kinds of text."""
    rows: list[Row] = []
    for case, found in pairs(results):
        if speculates(case) and len(found.categories) > 1:
            rows += [_category(case, name, figures) for name, figures in found.categories.items()]
    if not rows:
        return None
    columns = ("case", "category", "speed", "interval", "tokens/s", "acceptance length", "acceptance rate", "prompts")
    named = terms("speed", "tokens/s", "acceptance length", "acceptance rate")
    return _table("categories", "By kind of prompt", columns, rows, named, words=("case", "category"))


def _category(case: Case, name: str, found: CategoryFigures) -> Row:
    return (
        case.name,
        name,
        times(found.speedup),
        between(found.speedup_interval) if found.speedup is not None else NOTHING,
        number(found.tokens_per_second, 1),
        number(found.acceptance_length),
        share(found.acceptance_rate),
        str(found.prompts),
    )


def divergences(results: Results) -> Table | None:
    """Where answers left plain decoding's, with both logits."""
    if not results.divergences:
        return None
    columns = ("case", "prompt", "repeat", "verdict", "at token", "plain wrote", "its logit", "the other wrote",
               "that logit", "gap")  # fmt: skip
    rows = [
        (
            results.cases[found.case].name,
            found.prompt,
            str(found.repeat),
            found.verdict,
            str(found.place),
            str(found.plain),
            f"{found.plain_logit:.6g}",
            str(found.other),
            f"{found.other_logit:.6g}",
            f"{found.gap:.3g}",
        )
        for found in results.divergences
    ]
    named = terms("logit", "gap", "tie", "fault")
    caption = "Answers that left plain decoding's, at the first token that differs (token ids)"
    return _table("divergences", caption, columns, rows, named, words=("case", "prompt", "verdict"))


def passes(results: Results) -> Table | None:
    """What a pass of the target costs."""
    if not results.costs:
        return None
    ordered = sorted(results.costs, key=lambda cost: (cost.batch, cost.context, cost.width))
    narrowest = {(cost.batch, cost.context): cost.seconds for cost in reversed(ordered)}
    rows = [
        (
            str(cost.batch),
            str(cost.context),
            str(cost.width),
            milliseconds(cost.seconds),
            times(cost.seconds / narrowest[cost.batch, cost.context]),
        )
        for cost in ordered
    ]
    columns = ("batch", "context", "tokens per row", "ms", "against the narrowest")
    return _table("costs", "What a pass of the target costs", columns, rows, (), words=())


def manifest(results: Results) -> Table:
    """What was run and where."""
    rows = [(name, value) for name, value in told(results.manifest) if not name.startswith("left_out")]
    return _table("manifest", "What was run, and where", ("name", "value"), rows, (), words=("name", "value"))


def left_out(results: Results) -> list[str]:
    """What the run says that it left out."""
    said = results.manifest.get("left_out", [])
    return [str(item) for item in said] if isinstance(said, Sequence) and not isinstance(said, str) else [str(said)]


def told(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(dotted name, value as text) of a manifest, without what it says twice or `Results.cases` says as well."""
    return ((name, value) for name, value in _flattened(manifest) if not name.startswith(_TWICE))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{path}.")
        elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
            yield from _flattened({str(place): item for place, item in enumerate(value, 1)}, f"{path}.")
        elif name == "argv" and isinstance(value, Sequence) and not isinstance(value, str):
            yield path, shlex.join(str(item) for item in value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield path, ", ".join(str(item) for item in value) or NOTHING
        else:
            yield path, NOTHING if value is None else str(value)


def _table(
    key: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    named: tuple[tuple[str, str], ...],
    words: Sequence[str] = ("case",),
) -> Table:
    heads = tuple(Column(name, name not in words) for name in columns)
    return Table(key, caption, heads, tuple(rows), named).without_empty(NOTHING)
