"""`outrider data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Config,
    Device,
    DrafterSpec,
    Dtype,
    Fast,
    Json,
    Offline,
    Quantize,
    Ray,
    Target,
    TrustRemoteCode,
    print_json,
)

EXAMPLES = """
[bold]Examples[/bold]

    outrider data --target demo --prompts questions.jsonl --out runs/data

    outrider data --prompts chat.jsonl --prompts code.jsonl --samples 2 --max-new-tokens 384 --out runs/data

    outrider data --target demo --self 2000 --out runs/invented

    outrider data --target demo --prompts questions.jsonl --out runs/data --features auto

    outrider data --prompts chat.jsonl --out runs/data --ray auto

The same command again goes on where a broken run stopped.
"""


def data(
    out: Annotated[Path, typer.Option(help="Folder for the answers.")],
    target: Target = "demo",
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompts: builtin, spec_bench:FILE, datasets:ID[:SPLIT], or a file as for 'generate'; may be repeated."
        ),
    ] = None,
    self_: Annotated[int, typer.Option("--self", help="So many prompts that the target invents.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Answers to each prompt.", min=1)] = 1,
    limit: Annotated[int | None, typer.Option(help="Use only so many prompts of each file.", min=1)] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=8)] = 256,
    temperatures: Annotated[str, typer.Option(help="Each answer is drawn at one of these.")] = "0.7,0.8,0.9,1.0",
    held_out: Annotated[float, typer.Option(help="Share of the prompts that is kept for measuring.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of prompts, temperatures and tokens.")] = 0,
    batch: Annotated[int, typer.Option(help="Answers written at a time.", min=1)] = 16,
    features: Annotated[
        str,
        typer.Option(
            help="Keep the target's states in OUT/features too, for 'train --features stored': auto (those of eagle3, "
            "eagle and medusa), or layers like 2,15,27."
        ),
    ] = "",
    features_limit: Annotated[float | None, typer.Option(help="GiB that they may take. [64]")] = None,
    drafter: DrafterSpec = "none",
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    quantize: Quantize = None,
    ray: Ray = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Let a target write the answers that its drafter will be trained on."""
    from ..commands.data import Wanted, run
    from ..commands.settings import Settings

    settings = Settings(target, drafter, "match", None, dtype, device, offline, trust_remote_code, fast, quantize)
    asked = Wanted(
        out,
        tuple(prompts or ()),
        self_,
        samples,
        limit,
        max_new_tokens,
        temperatures,
        held_out,
        seed,
        batch,
        features,
        features_limit,
        ray,
    )
    print_json(run(settings, asked, show=not json_), json_)
