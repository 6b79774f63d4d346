"""`outrider train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device, Dtype, Json, Offline, Target, TrustRemoteCode, print_json

METHODS = (
    "Of the target as it is: eagle3, eagle, medusa, mtp, dflash, exit (a way from its middle layers to its head), "
    "draft (a small model of some of its layers). With another target in the end: medusa2, layerskip."
)
EXAMPLES = """
[bold]Examples[/bold]

    outrider data --target demo --prompts questions.jsonl --out runs/data

    outrider train eagle3 --target demo --data runs/data --out runs/eagle3 --dry-run

    outrider train eagle3 --target demo --data runs/data --out runs/eagle3

    outrider train eagle --cell transformer:2x4 --target demo --data runs/data --out runs/eagle-small

    outrider generate --target demo --drafter eagle3:runs/eagle3 --chat "Name three rivers."

    outrider train medusa --target demo --data runs/data --out runs/medusa --features stored --tracker tensorboard

    outrider train eagle3 --start-from runs/eagle3 --data runs/more --target demo --out runs/eagle3-more

    outrider train draft --target demo --data runs/data --out runs/draft

    outrider generate --target demo --drafter model:runs/draft --chat "Name three rivers."

    accelerate launch --multi_gpu --num_processes 2 -m outrider train eagle3 --data runs/data --out runs/eagle3

The same command again goes on where a broken run stopped.
"""


def train(
    method: Annotated[str, typer.Argument(help=METHODS)],
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
    learn: Annotated[
        str | None, typer.Option(help="At which tokens: of answers, or of whole texts, prompts too. [answers]")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Folder of a drafter of this method to go on from, with its draft vocabulary.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate. [of the method]")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="Multiply in bfloat16. [no]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, first weights and noise. [0]")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between measurements of acceptance. [200]")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints. [100]")] = None,
    measured_prompts: Annotated[int | None, typer.Option(help="Held-out prompts of a measurement. [24]")] = None,
    features: Annotated[
        str | None,
        typer.Option(help="online, or stored: the target's states are kept in DATA/features and read again. [online]"),
    ] = None,
    features_dtype: Annotated[
        str | None, typer.Option(help="Of stored ones: bfloat16, or float32, which takes twice the room. [bfloat16]")
    ] = None,
    features_limit: Annotated[
        float | None, typer.Option(help="GiB that they may take beside each folder of answers. [64]")
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option(help="Where loss and acceptance go too: one of Accelerate's, such as tensorboard. [none]"),
    ] = None,
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
    """Train a drafter for a target on answers that the target wrote. The target itself does not change, except with
    medusa2 and layerskip, which write another one: their drafters are lossless with respect to that."""
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
        "learn": learn,
        "start_from": None if start_from is None else str(start_from),
        "lr": lr,
        "bf16": bf16,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
        "measured_prompts": measured_prompts,
        "tracker": tracker,
        "features": features,
        "features_dtype": features_dtype,
        "features_limit": features_limit,
    }
    asked = wanted(method, data, out, config, given)
    settings = Settings(target, "none", "match", None, dtype, device, offline, trust_remote_code)
    document = run(settings, asked, dry=dry_run, show=not json_)
    print_json(document, json_ and bool(document))
