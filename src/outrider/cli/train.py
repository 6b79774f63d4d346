"""`outrider train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device, Dtype, Json, Offline, Target, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider data --target demo --prompts questions.jsonl --out runs/data

    outrider train eagle3 --target demo --data runs/data --out runs/eagle3 --dry-run

    outrider train eagle3 --target demo --data runs/data --out runs/eagle3

    outrider train eagle --cell transformer:2x4 --target demo --data runs/data --out runs/eagle-small

    outrider generate --target demo --drafter eagle3:runs/eagle3 --chat "Name three rivers."

The same command again goes on where a broken run stopped.
"""


def train(
    method: Annotated[str, typer.Argument(help="eagle3, eagle, medusa, mtp or dflash.")],
    data: Annotated[list[Path], typer.Option(help="Folder of answers that 'outrider data' wrote; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder for the drafter; checkpoints go to OUT.training beside it.")],
    target: Target = "demo",
    draft_vocab: Annotated[int | None, typer.Option(help="Tokens that can be drafted, the commonest. [8192]")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times that each answer is seen. [2]")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of epochs.")] = None,
    steps_ahead: Annotated[
        int | None, typer.Option(help="Tokens ahead that the head is trained for. [of the method]")
    ] = None,
    cell: Annotated[
        str | None, typer.Option(help="eagle: target (a layer like its), transformer:LAYERSxHEADS, or gru. [target]")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens of a batch, padding included. [1024]")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches whose gradients make one step. [1]")] = None,
    longest: Annotated[int | None, typer.Option(help="Tokens of prompt and answer that are used. [768]")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate. [of the method]")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="Multiply in bfloat16. [no]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, first weights and noise. [0]")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between measurements of acceptance. [200]")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints. [100]")] = None,
    measured_prompts: Annotated[int | None, typer.Option(help="Held-out prompts of a measurement. [24]")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML with these and the method's own options; given ones come first.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False,
    json_: Json = False,
) -> None:
    """Train a drafter for a target on answers that the target wrote. The target itself does not change."""
    from ..commands.settings import Settings
    from ..commands.train import run, wanted

    given = {
        "draft_vocab": draft_vocab,
        "epochs": epochs,
        "steps": steps,
        "steps_ahead": steps_ahead,
        "cell": cell,
        "batch_tokens": batch_tokens,
        "accumulate": accumulate,
        "longest": longest,
        "lr": lr,
        "bf16": bf16,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
        "measured_prompts": measured_prompts,
    }
    asked = wanted(method, data, out, config, given)
    settings = Settings(target, "none", "match", None, dtype, device, offline, trust_remote_code)
    document = run(settings, asked, dry=dry_run, show=not json_)
    print_json(document, json_ and bool(document))
