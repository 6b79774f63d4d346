"""`outrider costs`: measure, show as tables, draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import BadOption
from ..measure.costs import FREE, Costs, Plan, check_plot, draw_costs
from ..measure.costs import measure as costs_of
from .settings import Settings
from .showing import progress_bar


def run(settings: Settings, plan: Plan, plot: Path | None, *, show: bool) -> dict[str, Any]:
    """Measure what passes and drafts cost, show it as a table, and draw it if asked.

    Raises:
        BadOption: the plan does not fit into the context, or the plot could not be drawn.
    """
    if plot is not None:
        check_plot(plot)
    llm = settings.load()
    furthest = max(plan.contexts) + max(plan.widths)
    if furthest > llm.target.context:
        raise BadOption(
            f"Context and width reach {furthest} tokens and the target holds {llm.target.context}: take smaller ones."
        )
    with progress_bar("measuring", plan.steps) as advance:
        measured = costs_of(llm, plan, advance)
    if plot is not None:
        draw_costs(measured, plot)
    if show:
        _show_costs(measured)
    return measured.as_dict()


def _show_costs(measured: Costs) -> None:
    console = Console(highlight=False)
    for (batch, context), line in measured.lines.items():
        grid = Table(title=f"batch {batch}, {context} tokens before", title_justify="left")
        for name in ("tokens per row", "ms per pass", "against the first"):
            grid.add_column(name, justify="right")
        for cost in line:
            grid.add_row(str(cost.width), f"{cost.seconds * 1e3:.1f}", f"{measured.ratio(cost):.2f}")
        console.print(grid)
        console.print(f"Free (at most {FREE} of the first) up to {measured.knee(batch, context)} tokens.\n")
    console.print(
        f"Weights read per pass: {measured.pass_bytes / 1e9:.2f} GB, at {measured.bandwidth_share:.0%} of the "
        f"{measured.bandwidth / 1e9:.1f} GB/s that a copy reaches here."
    )
    if measured.draft_seconds is None:
        console.print("The drafter proposed nothing.")
    else:
        console.print(
            f"Drafting: {measured.draft_seconds * 1e3:.3f} ms per token, {measured.drafted} tokens at a time."
        )
