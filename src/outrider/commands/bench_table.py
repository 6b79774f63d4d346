"""A bench's results as a table on the screen, and under it what its words mean. Measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..measure.reporting import wording
from ..measure.results import OWN, PLAIN, Case, Results, Summary

_Show = Callable[[Case, Summary], str]


def show(results: Results) -> None:
    """Print two tables with a line per case, the definitions of what they show, and what the run left out."""
    console = Console(highlight=False)
    if not results.summaries:
        console.print("Nothing was measured.")
        return
    shown: list[str] = []
    for columns in (_SPEED, _TIME):
        used = {name: cell for name, (cell, has) in columns.items() if any(map(has, results.summaries))}
        grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
        grid.add_column("case", overflow="fold", vertical="bottom")
        for name in used:
            grid.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
        for summary in results.summaries:
            case = results.cases[summary.case]
            grid.add_row(case.name, *(cell(case, summary) for cell in used.values()))
        console.print(grid, "")
        shown += used
    console.print("Times are in milliseconds, medians over answers or means per pass; per token: p50 / p95 / p99.")
    for name, text in wording.terms(*(name for name in shown if name in wording.TERMS)):
        console.print(f"{name}: {text}", style="dim")
    _remarks(results, console)


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


_SPEED: dict[str, tuple[_Show, Callable[[Summary], object]]] = {
    "speed": (_speed, lambda s: s.speedup),
    "interval": (_interval, lambda s: s.speedup_interval),
    "verdict": (lambda c, s: s.verdict or "", lambda s: s.verdict),
    "acceptance length": (lambda c, s: wording.number(s.acceptance_length), lambda s: s.acceptance_length),
    "acceptance rate": (lambda c, s: wording.share(s.acceptance_rate), lambda s: s.acceptance_rate is not None),
    "identical": (_identical, lambda s: s.compared),
    "perplexity": (lambda c, s: wording.number(s.perplexity, 3), lambda s: s.perplexity),
    "mean TV": (lambda c, s: wording.number(s.mean_tv, 4), lambda s: s.mean_tv is not None),
    "mean KL": (_kl, lambda s: s.mean_tv is not None),
}
_TIME: dict[str, tuple[_Show, Callable[[Summary], object]]] = {
    "tokens/s": (lambda c, s: wording.number(s.tokens_per_second, 1), lambda s: True),
    "throughput": (lambda c, s: wording.number(s.throughput, 1), lambda s: True),
    "first token": (lambda c, s: wording.milliseconds(s.time_to_first.p50), lambda s: True),
    "per token": (_percentiles, lambda s: s.per_token.p50),
    "draft": (lambda c, s: wording.milliseconds(s.draft_seconds), lambda s: s.draft_seconds),
    "verify": (lambda c, s: wording.milliseconds(s.verify_seconds), lambda s: s.verify_seconds),
    "decide": (lambda c, s: wording.milliseconds(s.verdict_seconds), lambda s: s.verdict_seconds),
    "other": (lambda c, s: wording.milliseconds(s.other_seconds), lambda s: s.other_seconds),
    "peak memory": (lambda c, s: wording.size(s.peak_memory), lambda s: s.peak_memory),
    "drafter's weights": (lambda c, s: wording.size(s.drafter_memory), lambda s: s.drafter_memory),
}
