"""`outrider curves`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider curves runs/eagle3 runs/medusa

    outrider curves runs/eagle3 runs/eagle runs/mtp --plot curves.png
"""


def curves(
    runs: Annotated[list[Path], typer.Argument(help="What --out of 'outrider train' was; running ones, too.")],
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file, e.g. curves.png.")] = None,
    json_: Json = False,
) -> None:
    """How training runs learned: acceptance on held-out prompts against tokens learnt, side by side."""
    from ..commands.curves import run

    print_json(run(runs, plot, show=not json_), json_)
