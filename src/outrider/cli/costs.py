"""`outrider costs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Compile,
    Config,
    Device,
    DeviceMap,
    DrafterSpec,
    Dtype,
    Fast,
    Json,
    Offline,
    Quantize,
    Target,
    TrustRemoteCode,
    print_json,
)

EXAMPLES = """
[bold]Examples[/bold]

    outrider costs --target demo --plot costs.png

    outrider costs --target ./my-model --drafter model:./small --widths 1,4,8 --batch 1,8 --contexts 512,4096 --json
"""


def costs(
    target: Target = "demo",
    drafter: DrafterSpec = "suffix",
    widths: Annotated[str, typer.Option(help="Tokens per row and pass.")] = "1,2,4,8,16,32,64",
    batch: Annotated[str, typer.Option(help="Rows per pass.")] = "1",
    contexts: Annotated[str, typer.Option(help="Tokens in the cache before.")] = "256",
    repeats: Annotated[int, typer.Option(help="Alternating runs; the median counts.", min=1)] = 7,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    quantize: Quantize = None,
    device_map: DeviceMap = None,
    compile_: Compile = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file, e.g. costs.png.")] = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """What a pass over 1 to 64 tokens costs here, and up to which width verification is free."""
    from ..commands.costs import run
    from ..commands.settings import Settings
    from ..measure.costs import Plan, parse_numbers

    settings = Settings(
        target, drafter, "match", None, dtype, device, offline, trust_remote_code, fast, quantize, device_map, compile_
    )
    plan = Plan(
        parse_numbers(widths, "widths"), parse_numbers(batch, "batch"), parse_numbers(contexts, "contexts"), repeats
    )
    print_json(run(settings, plan, plot, show=not json_), json_)
