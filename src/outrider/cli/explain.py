"""`outrider explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider explain runs/monday

    outrider explain runs/monday --json
"""


def explain(
    result: Annotated[Path, typer.Argument(help="Folder of a run of outrider bench.", show_default=False)],
    json_: Json = False,
) -> None:
    """Why each case of a run is as fast as it is, as factors that multiply to its speed, and what would help."""
    from ..commands.explain import run

    print_json(run(result, show=not json_), json_)
