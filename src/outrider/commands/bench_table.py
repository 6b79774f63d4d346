"""A bench's results as a table on the screen, and under it what its words mean. Measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..measure.reporting import wording
from ..measure.results import OWN, PLAIN, Case, Results, Summary

_WIDEST_NAME = 34  # characters of a case's name in one line


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure: its name in `wording.TERMS`, how it is shown, and whether there is anything to show."""

    name: str
    show: Callable[[Case, Summary], str]
    has: Callable[[Summary], object] = lambda summary: True


def show(results: Results) -> None:
    """Print tables with a line per case, the definitions of what they show, and what the run left out."""
    console = Console(highlight=False)
    if not results.summaries:
        console.print("Nothing was measured.")
        return
    columns = [column for column in _COLUMNS if any(map(column.has, results.summaries))]
    for part in _fitting(columns, results, console.width):
        console.print(_grid(part, results), "")
    console.print("Times are in milliseconds, medians over answers or means per pass; per token: p50 / p95 / p99.")
    for name, text in wording.terms(*(column.name for column in columns if column.name in wording.TERMS)):
        console.print(f"{name}: {text}", style="dim")
    _remarks(results, console)


def _fitting(columns: Sequence[_Column], results: Results, width: int) -> list[list[_Column]]:
    """As many tables as are needed for every column to be seen whole."""
    parts: list[list[_Column]] = [[]]
    first = left = width - min(_WIDEST_NAME, max(len(results.cases[found.case].name) for found in results.summaries))
    for column in columns:
        cells = [column.show(results.cases[found.case], found) for found in results.summaries]
        needed = 2 + max(len(line) for line in (*column.name.split(), *cells))
        if needed > left and parts[-1]:
            parts.append([])
            left = first
        parts[-1].append(column)
        left -= needed
    return parts


def _grid(columns: Sequence[_Column], results: Results) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    grid.add_column("case", overflow="fold", vertical="bottom", max_width=_WIDEST_NAME)
    for column in columns:
        grid.add_column(column.name.replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for summary in results.summaries:
        case = results.cases[summary.case]
        grid.add_row(case.name, *(column.show(case, summary) for column in columns))
    return grid


def _remarks(results: Results, console: Console) -> None:
    """Faults first, then what drafters have to say and what is not there."""
    for divergence in results.divergences:
        line = (
            f"{divergence.verdict.upper()}: {results.cases[divergence.case].name}, prompt {divergence.prompt}: token "
            f"{divergence.place} is {divergence.other} (logit {divergence.other_logit:.6g}) and plain decoding's is "
            f"{divergence.plain} ({divergence.plain_logit:.6g})."
        )
        console.print(line, style="red" if divergence.verdict == "fault" else "dim")
    for note in (*results.manifest.get("notes", {}).values(), *results.manifest.get("left_out", ())):
        console.print(note, style="yellow")


def _speed(case: Case, summary: Summary) -> str:
    if summary.speedup is None:
        return "1" if case.system == OWN and case.drafter == PLAIN else wording.NOTHING
    return wording.times(summary.speedup)


def _interval(case: Case, summary: Summary) -> str:
    found = summary.speedup_interval
    return "" if found is None else f"{found.low:.2f}-{found.high:.2f}"


def _identical(case: Case, summary: Summary) -> str:
    return f"{summary.identical} of {summary.compared}" if summary.compared else wording.NOTHING


def _kl(case: Case, summary: Summary) -> str:
    infinite = summary.mean_tv is not None and summary.mean_kl is None
    return wording.number(math.inf if infinite else summary.mean_kl, 4)


def _percentiles(case: Case, summary: Summary) -> str:
    every = (summary.per_token.p50, summary.per_token.p95, summary.per_token.p99)
    return " / ".join(wording.milliseconds(value) for value in every)


_COLUMNS = (
    _Column("speed", _speed, lambda s: s.speedup),
    _Column("interval", _interval, lambda s: s.speedup_interval),
    _Column("verdict", lambda c, s: s.verdict or "", lambda s: s.verdict),
    _Column("acceptance length", lambda c, s: wording.number(s.acceptance_length), lambda s: s.acceptance_length),
    _Column("acceptance rate", lambda c, s: wording.share(s.acceptance_rate), lambda s: s.acceptance_rate is not None),
    _Column("identical", _identical, lambda s: s.compared),
    _Column("perplexity", lambda c, s: wording.number(s.perplexity, 3), lambda s: s.perplexity),
    _Column("mean TV", lambda c, s: wording.number(s.mean_tv, 4), lambda s: s.mean_tv is not None),
    _Column("mean KL", _kl, lambda s: s.mean_tv is not None),
    _Column("tokens/s", lambda c, s: wording.number(s.tokens_per_second, 1)),
    _Column("throughput", lambda c, s: wording.number(s.throughput, 1)),
    _Column("first token", lambda c, s: wording.milliseconds(s.time_to_first.p50)),
    _Column("per token", _percentiles, lambda s: s.per_token.p50),
    _Column("draft", lambda c, s: wording.milliseconds(s.draft_seconds), lambda s: s.draft_seconds),
    _Column("verify", lambda c, s: wording.milliseconds(s.verify_seconds), lambda s: s.verify_seconds),
    _Column("decide", lambda c, s: wording.milliseconds(s.verdict_seconds), lambda s: s.verdict_seconds),
    _Column("other", lambda c, s: wording.milliseconds(s.other_seconds), lambda s: s.other_seconds),
    _Column("peak memory", lambda c, s: wording.size(s.peak_memory), lambda s: s.peak_memory),
    _Column("drafter's weights", lambda c, s: wording.size(s.drafter_memory), lambda s: s.drafter_memory),
)
