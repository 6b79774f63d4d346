"""`outrider tune`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Compile,
    Config,
    Device,
    DeviceMap,
    DraftDevice,
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

    outrider tune --target demo --drafters suffix,lookup,recycle

    outrider tune --target ./my-model --drafters suffix,model:./small --prompts mine.jsonl --k 1-8 --trees 4x8,4x16

    outrider tune --target ./my-model --quantize int8 --batch 1,4,8 --goal throughput --plot front.png

    outrider generate --config outrider.toml --chat "Name three rivers."
"""


class Goal(StrEnum):
    """What "best" means."""

    latency = "latency"
    throughput = "throughput"


def tune(
    target: Target = "demo",
    drafters: Annotated[
        str, typer.Option(help="Which to compare; plain decoding is always among them.")
    ] = "suffix,lookup,recycle",
    prompts: Annotated[
        str, typer.Option(help="builtin, spec_bench:FILE, datasets:ID[:SPLIT], or a file: a line each, or JSONL.")
    ] = "builtin",
    limit: Annotated[int, typer.Option(help="At most so many prompts.", min=1)] = 14,
    k: Annotated[str, typer.Option(help="Draft lengths.")] = "1-8",
    trees: Annotated[
        str | None, typer.Option(help="DEPTHxNODES, for drafters that make trees; 4x8,4x16 if nothing is said.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Requests served together.")] = "1",
    max_new_tokens: Annotated[int, typer.Option(help="Of every answer.", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.", min=0)] = 0.0,
    verifier: Annotated[str, typer.Option(help="The rule that is to be in force; see outrider generate.")] = "match",
    goal: Annotated[
        Goal, typer.Option(help="What is best: most tokens per second for each user, or for all together.")
    ] = Goal.latency,
    validate: Annotated[
        int, typer.Option(help="How many of the best to run against plain decoding; 0 believes the predictions.", min=0)
    ] = 3,
    repeats: Annotated[int, typer.Option(help="How often to run them.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="The file to write; one that is there is never overwritten.")] = Path(
        "outrider.toml"
    ),
    plot: Annotated[Path | None, typer.Option(help="Draw the front into this file, e.g. front.png.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    quantize: Quantize = None,
    device_map: DeviceMap = None,
    draft_device: DraftDevice = None,
    draft_quantize: DraftQuantize = None,
    compile_: Compile = False,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Which drafter, how long, how many at once: measured costs and acceptance, predictions, the best ones run."""
    from ..commands.settings import Settings
    from ..commands.tune import Sources, run
    from ..measure.costs import parse_numbers
    from ..measure.shapes import parse_trees
    from ..tune.tuning import Wanted

    settings = Settings(
        target, "none", verifier, None, dtype, device, offline, trust_remote_code, fast, quantize, device_map, compile_,
        draft_device=draft_device, draft_quantize=draft_quantize,
    )  # fmt: skip
    wanted = Wanted.of(
        drafters,
        lengths=parse_numbers(k, "k"),
        trees=None if trees is None else parse_trees(trees),
        batches=parse_numbers(batch, "batch"),
        max_new_tokens=max_new_tokens,
        verifier=verifier,
        temperature=temperature,
        goal=goal.value,
        validate=validate,
        repeats=repeats,
    )
    print_json(run(settings, wanted, Sources(prompts, limit, out, plot), show=not json_), json_)
