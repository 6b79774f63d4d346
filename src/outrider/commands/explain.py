"""`outrider explain`: read a run, take each case's speed apart, show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import BadOption
from ..measure.advising import explained
from ..measure.explaining import Explanation
from ..measure.reading import read
from ..measure.reporting.wording import times

_NAMES = {
    "acceptance": "tokens per pass",
    "checking": "checking the draft",
    "drafting": "drafting",
    "overhead": "everything else",
    "reading": "reading the prompt",
    "averaging": "averaging",
}


def run(result: Path, *, show: bool) -> dict[str, Any]:
    """Explain every case of a run.

    Raises:
        BadOption: no such run, or none with drafts.
    """
    found = read(result)
    told = explained(found.results, found.samples)
    if not told:
        raise BadOption(
            f"{result} has nothing but plain decoding: measure a drafter too, with outrider bench --drafters."
        )
    if show:
        console = Console(highlight=False)
        for one in told:
            _show(console, one)
    return {"cases": [one.model_dump(mode="json") for one in told]}


def _show(console: Console, one: Explanation) -> None:
    if one.why_not is not None:
        console.print(f"[bold]{escape(one.case)}[/bold]: no factors, as {one.why_not}.")
    else:
        console.print(f"[bold]{escape(one.case)}[/bold]: {times(one.speedup)} plain decoding's speed")
        grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        grid.add_column(justify="right")
        grid.add_column()
        grid.add_column(overflow="fold")
        for factor in one.factors:
            grid.add_row(times(factor.value), _NAMES[factor.part], escape(factor.words))
        console.print(grid)
    for words in one.advice:
        console.print(f"  - {escape(words)}")
    console.print()
