"""`outrider export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Json, Offline, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider export runs/eagle3 --format speculators --k 4 --out runs/eagle3-vllm

    vllm serve runs/eagle3-vllm

    outrider export eagle:runs/eagle --format eagle --engine sglang --out runs/eagle-sglang

    outrider import runs/eagle3-vllm --target demo --out runs/eagle3-again
"""


def export(
    drafter: Annotated[str, typer.Argument(help="Folder of a trained drafter, or METHOD:FOLDER.")],
    format_: Annotated[str, typer.Option("--format", help="speculators, eagle3, eagle, medusa, dflash or mtp.")],
    out: Annotated[Path, typer.Option(help="Folder to write; one that is there is never overwritten.")],
    target: Annotated[
        str | None, typer.Option(help="What it drafts for, where that lies now. [the name it was trained under]")
    ] = None,
    k: Annotated[int | None, typer.Option(help="speculators: tokens drafted per round. [3]", min=1)] = None,
    engine: Annotated[str | None, typer.Option(help="eagle: whose names to write, vllm or sglang. [vllm]")] = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Write a trained drafter in a published layout, for vLLM, SGLang and others. No weight changes."""
    from ..commands.export import Wanted, run

    wanted = Wanted(drafter, format_, out, target, k, engine, offline, trust_remote_code)
    print_json(run(wanted, show=not json_), json_)
