"""`outrider doctor`."""

from __future__ import annotations

from .options import Json, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider doctor

    outrider doctor --json
"""


def doctor(json_: Json = False) -> None:
    """What this machine and installation can do: devices, bandwidth, kernels, and what is missing for which feature."""
    from ..commands.doctor import run

    print_json(run(show=not json_), json_)
