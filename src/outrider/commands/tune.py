"""`outrider tune`: find out, show what was found, write it down."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import __version__
from ..api import Outrider
from ..config import check_new, write
from ..measure.costs import check_plot
from ..measure.prompts import digest, read
from ..measure.results import PLAIN
from ..tune.document import checks, configured, deployed, document, off
from ..tune.plot import draw_front
from ..tune.search import Prediction, front
from ..tune.tuning import Contender, Tuning, Wanted, tune
from ..tune.validation import EXPECTED, error
from .settings import Settings, decoder_only, model_holder
from .showing import progress_bar


@dataclass(frozen=True, slots=True)
class Sources:
    """Where prompts come from and results go.

    Attributes:
        prompts: a spec, see `measure.prompts.read`.
        limit: at most so many.
        out: the configuration to be written.
        plot: the picture to be drawn, or None.
    """

    prompts: str
    limit: int
    out: Path
    plot: Path | None


def run(settings: Settings, wanted: Wanted, sources: Sources, *, show: bool) -> dict[str, Any]:
    """Tune, show, write; the document is what `--json` prints."""
    check_new(sources.out)
    if sources.plot is not None:
        check_plot(sources.plot)
    prompts = read(sources.prompts, limit=sources.limit, offline=settings.offline)
    told = {"spec": sources.prompts, "count": len(prompts), "sha256": digest(prompts)}
    loaded = replace(settings, drafter=model_holder(settings, wanted.drafters), prefix_memory=0)

    def load() -> Outrider:
        llm = loaded.load()
        decoder_only(llm, "tune")
        return llm

    tuning = tune(load, wanted, prompts, progress_bar)
    if sources.plot is not None:
        draw_front(tuning, sources.plot)
    comment = f"Written by outrider {__version__} tune. Every command takes it with --config {sources.out.name}."
    write(configured(tuning, settings.given(tuning.chosen.setting.drafter), told), sources.out, comment)
    if show:
        _show(tuning, sources)
    return document(tuning, told) | {"written": str(sources.out)}


def _show(tuning: Tuning, sources: Sources) -> None:
    console = Console(highlight=False)
    if tuning.interrupted:
        console.print("Interrupted: what follows rests on what was done by then.\n", style="yellow")
    _show_checks(tuning, console)
    _show_front(tuning, console)
    if tuning.contenders:
        _show_contenders(tuning, console)
    _show_choice(tuning, console)
    console.print(f"\nWritten to {sources.out}: outrider generate --config {sources.out} ...", soft_wrap=True)
    vllm = deployed(tuning)
    if vllm.config is not None:
        console.print(f"vLLM: {shlex.join(vllm.arguments)}", soft_wrap=True, markup=False)
    for note in vllm.notes:
        console.print(note, style="dim")


def _show_checks(tuning: Tuning, console: Console) -> None:
    answers = checks(tuning)
    one = answers["several_tokens_cost_one"]
    ratios = ", ".join(f"{width}: {ratio:.2f}" for width, ratio in one["ratios"].items())
    console.print("Does a pass over several tokens cost what one costs here?", style="bold")
    free = f"Yes, up to {one['up_to']}" if one["answer"] else "No"
    console.print(f"{free} (at most {one['free']} of one counts as free). Against one token, by tokens: {ratios}.")
    share = answers["accepted_enough"]
    console.print("\nIs enough of the drafts accepted?", style="bold")
    grid = Table()
    grid.add_column("drafter")
    grid.add_column("its best")
    for name in ("accepted", "tokens per pass", "needed", "enough"):
        grid.add_column(name, justify="right", no_wrap=True)
    for found in share["drafters"]:
        best = found["shape"] + (f", batch {found['batch']}" if len(tuning.wanted.batches) > 1 else "")
        figures = (f"{found['accepted']:.0%}", f"{found['tokens_per_pass']:.2f}", f"{found['needed']:.2f}")
        grid.add_row(found["drafter"], best, *figures, "yes" if found["enough"] else "no")
    console.print(grid)
    console.print(
        "accepted: of the tokens drafted, the target's own not counted. tokens per pass: with it. needed: tokens per "
        "pass at which nothing is gained.\n",
        style="dim",
    )


def _show_front(tuning: Tuning, console: Console) -> None:
    alone = [one for one in tuning.predictions if one.setting.drafter == PLAIN]
    kept = front(tuning.predictions)
    grid = Table(title="The front, predicted: nothing beats these in both", title_justify="left")
    grid.add_column("setting")
    for name in ("tokens/s per user", "tokens/s altogether", "against plain", "tokens per pass"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in [*kept, *(other for other in alone if other not in kept)]:
        figures = (one.per_user, one.throughput, one.speedup, one.behaviour.tokens)
        style = None if one in kept else "dim"
        grid.add_row(one.setting.name, *(f"{figure:.2f}" for figure in figures), style=style)
    console.print(grid)
    console.print(
        f"While decoding, with {tuning.prompts} prompts; against plain: with the same batch. Dim: plain decoding "
        "behind the front.\n",
        style="dim",
    )


def _show_contenders(tuning: Tuning, console: Console) -> None:
    grid = Table(title="The best of them, run in turns with plain decoding", title_justify="left")
    grid.add_column("setting")
    together = max(one.setting.batch for one in tuning.contenders) > 1
    for name in ("tokens/s", *["altogether"] * together, "x plain", "95 %", "predicted", "error", "iid", "naive"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in tuning.contenders:
        altogether = [f"{one.measured.throughput:.2f}"] * together
        grid.add_row(one.setting.name, f"{one.measured.per_user:.2f}", *altogether, *_row(one))
    console.print(grid)
    console.print(
        "tokens/s: of one request, while decoding. x plain: against plain decoding with the same batch, and 95 % the "
        "interval of that over prompts. iid: what the formula for equal chances makes of the same acceptance; naive: "
        "the widely copied K*a / (1 + K*(1-a)), which is wrong.",
        style="dim",
    )
    worst = max((abs(found) for found in off(tuning)), default=0.0)
    if worst > EXPECTED:
        console.print(
            f"Predictions were off by up to {worst:.0%}, more than the {EXPECTED:.0%} expected: other work on the "
            "machine or too few prompts do that. What was measured decides.",
            style="yellow",
        )
    for one in tuning.contenders:
        if one.measured.different:
            console.print(
                f"{one.setting.name}: {one.measured.different} of {one.measured.compared} answers differ from plain "
                "decoding's; outrider prove says whether these are ties.",
                style="yellow",
            )
    console.print()


def _row(one: Contender) -> list[str]:
    """What was measured against plain decoding, and what was promised."""
    found, promised = one.measured, one.predicted
    if one.setting.drafter == PLAIN:
        return ["1.00"]
    interval = "" if found.interval is None else f"{found.interval.low:.2f}-{found.interval.high:.2f}"
    cells = [f"{found.speedup:.2f}", interval]
    if promised is None:
        return cells
    cells += [f"{promised.speedup:.2f}", f"{error(promised.speedup, found.speedup):+.0%}"]
    return [*cells, *("" if other is None else f"{other:.2f}" for other in (promised.equal_chances, promised.naive))]


def _show_choice(tuning: Tuning, console: Console) -> None:
    chosen = tuning.chosen
    figures = chosen if isinstance(chosen, Prediction) else chosen.measured
    how = "predicted" if isinstance(chosen, Prediction) else "measured"
    aim = "each user" if tuning.wanted.goal == "latency" else "all together"
    console.print(f"Best for {aim}: {chosen.setting.name}", style="bold")
    if chosen.setting.drafter == PLAIN:
        console.print(f"Nothing that was looked at is faster here than plain decoding ({how}).")
        return
    line = f"{figures.speedup:.2f} times plain decoding with the same batch ({how})"
    if isinstance(chosen, Contender) and chosen.measured.verdict == "indistinguishable":
        line += ", which more or other prompts may turn around: the interval holds 1"
    console.print(f"{line}.", soft_wrap=True)
