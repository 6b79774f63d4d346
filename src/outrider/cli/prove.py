"""`outrider prove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Compile,
    Config,
    Device,
    DeviceMap,
    DraftDevice,
    DrafterSpec,
    DraftQuantize,
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

    outrider prove --target demo --drafter suffix

    outrider prove --target ./my-model --drafter model:./small --verifier block --seeds 8000

    outrider prove --target ./my-model --quantize int8 --prompts mine.jsonl --json > certificate.json

    outrider prove --target demo --drafter model:demo --verifier typical --quick

[bold]Exit codes[/bold]

    0: the certificate, or the bias of a relaxed verifier; 1: a fault, or nothing that proves anything; 2: a mistake
    in the options.
"""


def prove(
    target: Target = "demo",
    drafter: DrafterSpec = "suffix",
    verifier: Annotated[
        str,
        typer.Option(
            help="match, token, block or traversal: proved; ensemble[:w], typical[:epsilon,delta] or lenience:l: "
            "their bias is measured."
        ),
    ] = "match",
    policy: Annotated[
        str | None,
        typer.Option(help="How long to draft; by default chains of 5 and, where there are any, trees of 12."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Your own prompts: a line each, or JSONL with 'prompt' or 'messages'; else six of ours."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Of each output; 48 by default, 24 with --quick.", min=1)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Sampled texts: under match so many per prompt (4), else so many short ones for the chi-square test "
            "(2000; with --quick 1 and 400). More find smaller faults.",
            min=1,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything, for a first look.")] = False,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    quantize: Quantize = None,
    device_map: DeviceMap = None,
    compile_: Compile = False,
    draft_device: DraftDevice = None,
    draft_quantize: DraftQuantize = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Is speculation lossless on this very model? Checks that could have failed, every divergence, a certificate."""
    from ..commands.prove import Wanted, run
    from ..commands.settings import Settings

    settings = Settings(
        target,
        drafter,
        verifier,
        policy,
        dtype,
        device,
        offline,
        trust_remote_code,
        fast,
        quantize,
        device_map,
        compile_,
        draft_device=draft_device,
        draft_quantize=draft_quantize,
    )
    document, in_order = run(settings, Wanted(prompts, max_new_tokens, seeds, quick), show=not json_)
    print_json(document, json_)
    if not in_order:
        raise typer.Exit(1)
