"""`outrider demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Json, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider demo

    outrider demo --max-new-tokens 64 --json
"""


def demo(
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 160,
    json_: Json = False,
) -> None:
    """The same answer twice, plainly and speculatively, on a real model: both speeds, and that nothing changed."""
    from ..commands.demo import run

    print_json(run(max_new_tokens, show=not json_), json_)
