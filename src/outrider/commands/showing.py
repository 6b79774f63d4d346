"""What commands show a person while they work and when they are done."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import __version__
from ..stats import Stats


@contextlib.contextmanager
def progress_bar(label: str, total: int, show: bool = True) -> Iterator[Callable[[], None]]:
    """A bar with the time left, on standard error and only before a person; gives what advances it."""
    errors = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not (show and errors.is_terminal)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def describe(stats: Stats, seconds: float) -> str:
    """The figures in one line."""
    line = f"{stats.tokens} tokens in {seconds:.1f} s ({stats.tokens / seconds:.1f} tokens/s), {stats.rounds} rounds"
    if stats.acceptance_length is None or stats.acceptance_rate is None:
        return f"{line}, nothing drafted"
    return f"{line}, acceptance length {stats.acceptance_length:.2f}, {stats.acceptance_rate:.0%} of the draft accepted"


def relaxed(stats: Stats, verifier: str) -> str:
    """That the output is not the target's own, and how far it is from it."""
    line = f"RELAXED by {verifier} (lossless: false): the output does not have the target's law"
    if stats.mean_tv is None or stats.mean_kl is None:
        return line
    return f"{line}; mean TV {stats.mean_tv:.3g}, mean KL {stats.mean_kl:.3g} over {stats.tokens} tokens"


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "outrider": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
