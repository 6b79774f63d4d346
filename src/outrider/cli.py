"""The command line: thin, one function per command. Heavy rooms are imported by the command that needs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .errors import UsageError

app = typer.Typer(
    name="outrider",
    help="Speculative decoding for any Hugging Face causal language model: faster, and exactly its own words.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_EXAMPLES = """
[bold]Examples[/bold]

    outrider generate --target demo --chat "Name three rivers."

    outrider generate --target ./my-model --drafter model:./my-small-model --prompt "def add(" --trace

    outrider generate --target demo --chat "Tell a story." --temperature 0.8 --top-p 0.95 --seed 7

    outrider generate --target demo --prompts questions.jsonl --batch 8 --json > answers.json
"""

_COST_EXAMPLES = """
[bold]Examples[/bold]

    outrider costs --target demo --plot costs.png

    outrider costs --target ./my-model --drafter model:./small --widths 1,4,8 --batch 1,8 --contexts 512,4096 --json
"""

# Options that several commands share.
Target = Annotated[str, typer.Option(help="Hub id, folder, .gguf file, or 'demo'.")]
DrafterSpec = Annotated[
    str,
    typer.Option(
        help="suffix[:OPTIONS], lookup[:N], reference, recycle[:K], lookahead[:OPTIONS], model:SPEC, "
        "translated[:auto|tli|slem]:SPEC, early_exit:E, mtp[:FOLDER], cascade:A,B, none, or package.module:Class."
    ),
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Offline = Annotated[bool, typer.Option("--offline", help="Never ask a hub.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code from the model's repository. Read it first.")
]
Fast = Annotated[
    bool | None,
    typer.Option("--fast/--no-fast", help="Insist on fast modules, or keep Transformers'; by default what works."),
]
Quantize = Annotated[str | None, typer.Option(help="int8: round the weights; less memory, more speed.")]
DeviceMap = Annotated[
    str | None, typer.Option(help="'auto' spreads a model over GPUs, memory and disk (Accelerate's device_map).")
]
Compile = Annotated[bool, typer.Option("--compile", help="torch.compile at fixed shapes, for GPUs; slow to start.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Nothing to do before a command."""


@app.command(epilog=_EXAMPLES)
def generate(
    target: Target = "demo",
    drafter: DrafterSpec = "suffix",
    verifier: Annotated[
        str,
        typer.Option(
            help="match, token, block or traversal (lossless); ensemble[:w], typical[:epsilon,delta] or lenience:l "
            "(relaxed: another law than the target's, and by how much is reported)."
        ),
    ] = "match",
    policy: Annotated[
        str | None,
        typer.Option(
            help="How long to draft: goodput (the default), fixed:K[,NODES], heuristic, confidence[:t], or entropy."
        ),
    ] = None,
    chat: Annotated[str | None, typer.Option(help="A user's message, through the chat template.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Raw text to continue.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: a line each, or JSONL with 'prompt' or 'messages'.")
    ] = None,
    batch: Annotated[int, typer.Option(help="How many prompts of a file are served together.", min=1)] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest up to this sum; 1 is off.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Sample among those this likely, relative to the first; 0 is off.")
    ] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages repetition.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Subtracted once for tokens already written.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Subtracted per occurrence in what was written.")] = 0.0,
    min_new_tokens: Annotated[int, typer.Option(help="No end before that many tokens.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same tokens, with any drafter.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    quantize: Quantize = None,
    device_map: DeviceMap = None,
    compile_: Compile = False,
    prefill_chunk: Annotated[
        int, typer.Option(help="Prompt tokens per pass: fewer take less memory on long prompts.")
    ] = 512,
    prediction: Annotated[
        Path | None, typer.Option(help="A file with the text you expect, for the drafter 'reference'.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Text that the drafter 'suffix' may draft from: a file, or JSONL with 'text'.")
    ] = None,
    global_tokens: Annotated[
        int | None, typer.Option(help="Tokens of corpus and finished answers that 'suffix' keeps; 0 keeps none.")
    ] = None,
    json_: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show the rounds: drafted, accepted, rejected.")] = False,
) -> None:
    """Write an answer, or one per prompt of a file. Text goes to standard output, the figures to standard error."""
    from . import commands
    from .sampling import Sampling

    settings = commands.Settings(
        target,
        commands.with_texts(drafter, corpus, global_tokens),
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
        prefill_chunk,
    )
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_new_tokens=min_new_tokens,
        seed=seed,
    )
    wanted = commands.Wanted(chat, prompt, prompts, batch, max_new_tokens, tuple(stop or ()), prediction)
    document = commands.generate(settings, wanted, sampling, trace=trace, show=not json_)
    _print_json(document, json_)


@app.command()
def demo(
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 160,
    json_: Json = False,
) -> None:
    """The same answer twice, plainly and speculatively, on a real model: both speeds, and that nothing changed."""
    from . import commands

    _print_json(commands.demo(max_new_tokens, show=not json_), json_)


@app.command(epilog=_COST_EXAMPLES)
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
    json_: Json = False,
) -> None:
    """What a pass over 1 to 64 tokens costs here, and up to which width verification is free."""
    from . import commands
    from .measure.costs import Plan, parse_numbers

    settings = commands.Settings(
        target, drafter, "match", None, dtype, device, offline, trust_remote_code, fast, quantize, device_map, compile_
    )
    plan = Plan(
        parse_numbers(widths, "widths"), parse_numbers(batch, "batch"), parse_numbers(contexts, "contexts"), repeats
    )
    _print_json(commands.costs(settings, plan, plot, show=not json_), json_)


def _print_json(document: dict[str, Any], wanted: bool) -> None:
    if wanted:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))


def main() -> None:
    """Run the command line: mistakes of the caller are one sentence and exit code 2, Ctrl-C is exit code 130."""
    try:
        app(standalone_mode=True)
    except UsageError as error:
        print(f"outrider: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
