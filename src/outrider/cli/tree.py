"""`outrider tree`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Device, Dtype, Json, Offline, Target, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider tree runs/medusa --target demo --data runs/data

    outrider tree runs/medusa --data runs/data --nodes 24 --width 6 --dry-run

    outrider generate --target demo --drafter medusa:runs/medusa --policy fixed:4,12 --chat "Name three rivers."
"""


def tree(
    folder: Annotated[Path, typer.Argument(help="Of Medusa heads, as 'outrider train medusa' wrote it.")],
    data: Annotated[
        list[Path], typer.Option(help="Folder of answers; those that are held out are read. May be repeated.")
    ],
    target: Target = "demo",
    nodes: Annotated[
        int, typer.Option(help="Of the tree, best first: a policy takes as many as it pays for.", min=1)
    ] = 64,
    width: Annotated[int, typer.Option(help="Likeliest tokens of each head that may stand in it.", min=1)] = 10,
    longest: Annotated[int, typer.Option(help="Tokens of prompt and answer that are used.", min=1)] = 768,
    measured_prompts: Annotated[
        int, typer.Option(help="Held-out prompts for real acceptance before and after.", min=1)
    ] = 24,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Search and measure, but leave the folder as it is.")
    ] = False,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Search the static tree of Medusa heads from how often they are right on held-out answers, and keep it."""
    from ..commands.settings import Settings
    from ..commands.tree import Wanted, run

    settings = Settings(target, f"medusa:{folder}", "match", None, dtype, device, offline, trust_remote_code)
    asked = Wanted(folder, tuple(data), nodes, width, longest, measured_prompts, dry_run)
    print_json(run(settings, asked, show=not json_), json_)
