"""`outrider compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider compare runs/monday runs/tuesday

    outrider compare runs/main runs/branch --of speedup --fail-below 0.95 --json
"""


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of a run: the one to compare with.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="Folder of the other run.", show_default=False)],
    of: Annotated[
        str,
        typer.Option(help="speed; or speedup, against plain decoding of the same run, for machines of unlike speed."),
    ] = "speed",
    fail_below: Annotated[
        float | None,
        typer.Option(help="Exit code 1 if a case's ratio is below this, or a case is missing: a gate for CI."),
    ] = None,
    json_: Json = False,
) -> None:
    """Two runs against each other: per prompt, paired, with bootstrap intervals and a verdict for each case."""
    from ..commands.compare import run

    document = run(before, after, of, fail_below, show=not json_)
    print_json(document, json_)
    if document["failed"]:
        raise typer.Exit(1)
