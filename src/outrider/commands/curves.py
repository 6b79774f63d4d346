"""`outrider curves`: how training runs learned, by what they measured on their way. Loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ..errors import BadOption
from ..measure.costs import check_plot
from ..train.saving import Progress, checkpoint_folder, read_progress
from .showing import versions

_SAME = ("target", "answers", "longest", "measured_prompts", "measured_tokens")  # or curves say different things


@dataclass(frozen=True, slots=True)
class Run:
    """A training run.

    Attributes:
        name: its folder.
        progress: how far it has come.
        about: what it was started with.
    """

    name: str
    progress: Progress
    about: Mapping[str, Any]


def run(folders: Sequence[Path], plot: Path | None, *, show: bool) -> dict[str, Any]:
    """Read the runs, show and draw them; the document is what `--json` prints."""
    if plot is not None:
        check_plot(plot)
    runs = [read(folder) for folder in folders]
    differing = [name for name in _SAME if len({str(one.about.get(name)) for one in runs}) > 1]
    if show:
        _show(runs, differing)
    if plot is not None:
        draw(runs, plot)
    return {
        "runs": [
            {
                "out": one.name,
                "method": one.about["method"],
                "started_with": dict(one.about),
                "steps": one.progress.step,
                "tokens": one.progress.tokens,
                "acceptance_length": one.progress.best,
                "best_step": one.progress.best_step,
                "curve": one.progress.curve,
            }
            for one in runs
        ],
        "differing": differing,
        **versions(),
    }


def read(folder: Path) -> Run:
    """A run by its folder.

    Raises:
        BadOption: it is no run's, or nothing has been measured yet.
    """
    found = read_progress(checkpoint_folder(folder))
    if found is None:
        raise BadOption(f"There is no training run of {folder}: name what --out of 'outrider train' was.")
    progress, about = found
    if not any(point["acceptance_length"] is not None for point in progress.curve):
        raise BadOption(f"The run of {folder} has measured nothing yet, after {progress.step} steps: look again later.")
    return Run(str(folder), progress, about)


def _show(runs: Sequence[Run], differing: Sequence[str]) -> None:
    screen = Console(highlight=False)
    table = Table("run", *(Column(name, no_wrap=True) for name in ("step", "tokens", "loss", "length", "by position")))
    for one in runs:
        for number, point in enumerate(one.progress.curve):
            loss, length = point["loss"], point["acceptance_length"]
            table.add_row(
                "" if number else f"{Path(one.name).name} ({one.about['method']})",
                str(point["step"]),
                f"{point['tokens']:,}",
                "" if loss is None else f"{loss:.3f}",
                "" if length is None else f"{length:.2f}",
                ", ".join(f"{share:.2f}" for share in point["survival"]),
                end_section=number == len(one.progress.curve) - 1,
            )
    screen.print(table)
    screen.print("Tokens learnt, repetitions included; acceptance length on held-out prompts, and by position.")
    if differing:
        screen.print(f"These runs differ in {', '.join(differing)}: their lengths are not of the same texts.")


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw acceptance length against tokens learnt, a line per run, into an image file that `check_plot` has passed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one in runs:
        points = [point for point in one.progress.curve if point["acceptance_length"] is not None]
        tokens = [point["tokens"] / 1e3 for point in points]
        axes.plot(tokens, [point["acceptance_length"] for point in points], marker="o", label=one.name)
    axes.set_xlabel("thousand tokens learnt, repetitions included")
    axes.set_ylabel("acceptance length on held-out prompts")
    axes.set_xlim(left=0)
    axes.legend()
    figure.savefig(path, dpi=150)
