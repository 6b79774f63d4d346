"""`outrider compare`: read two runs, show how they differ, say whether the gate holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import BadOption
from ..measure.comparing import Comparison, compare
from ..measure.reading import read
from ..measure.reporting.wording import between, number, times

_SHOWN = 12  # differences of the manifests; more of them are counted


def run(before: Path, after: Path, of: str, fail_below: float | None, *, show: bool) -> dict[str, Any]:
    """Compare two folders; `failed` in the document names the cases that a gate must not let pass.

    Raises:
        BadOption: options or folders that cannot be compared.
    """
    if of not in ("speed", "speedup"):
        raise BadOption(f"--of is {of!r}: write speed or speedup.")
    if fail_below is not None and not fail_below > 0:
        raise BadOption(f"--fail-below is {fail_below}: give a ratio above 0, such as 0.95.")
    found = compare(read(before), read(after), "speed" if of == "speed" else "speedup")
    failed = found.falling_below(fail_below) if fail_below is not None else []
    if show:
        _show(found, fail_below, failed)
    return {**found.model_dump(mode="json"), "fail_below": fail_below, "failed": failed}


def _show(found: Comparison, fail_below: float | None, failed: list[str]) -> None:
    console = Console(highlight=False)
    title = f"B against A: {found.of}, paired by prompt (the interval is over prompts)"
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    grid.add_column("case", overflow="fold")
    for name in ("B/A", "interval", "verdict", "tokens/s"):
        grid.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for one in found.cases:
        speeds = " → ".join(number(value, 1) for value in one.tokens_per_second)
        grid.add_row(escape(one.name), times(one.ratio), between(one.interval), one.verdict, speeds)
    console.print(grid)
    for one in found.cases:
        if one.identical < one.compared:
            differ = one.compared - one.identical
            console.print(f"{escape(one.name)}: {differ} of {one.compared} answers are not the same.", soft_wrap=True)
        if len(set(one.acceptance_length)) > 1:
            lengths = " → ".join(number(value) for value in one.acceptance_length)
            console.print(f"{escape(one.name)}: acceptance length {lengths}.", soft_wrap=True)
    for title, cases in (("Missing in B", found.missing), ("Only in B", found.added)):
        if cases:
            console.print(f"{title}: {escape('; '.join(cases))}.")
    for one_difference in found.differences[:_SHOWN]:
        line = f"{one_difference.name}: {one_difference.before} in A, {one_difference.after} in B"
        console.print(f"Not the same {escape(line)}.", soft_wrap=True)
    if len(found.differences) > _SHOWN:
        console.print(f"... and {len(found.differences) - _SHOWN} more differences of the manifests; --json has them.")
    if fail_below is not None:
        told = f"below {fail_below:g} or missing: {escape('; '.join(failed))}" if failed else "the gate holds"
        console.print(f"At least {fail_below:g}: {told}.", style="bold")
