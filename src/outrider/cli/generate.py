"""`outrider generate`."""

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

    outrider generate --target demo --chat "Name three rivers."

    outrider generate --target ./my-model --drafter model:./my-small-model --prompt "def add(" --trace

    outrider generate --target demo --chat "Tell a story." --temperature 0.8 --top-p 0.95 --seed 7

    outrider generate --target demo --prompts questions.jsonl --batch 8 --json > answers.json

    outrider generate --target ./whisper-base --audio talk.mp3 --language en --timestamps
"""


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
    audio: Annotated[
        Path | None, typer.Option(help="A recording to transcribe, for a target that reads audio.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="What is spoken: a code or a name; detected if not given.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of a recording: transcribe, or translate (into English).")] = None,
    timestamps: Annotated[
        bool | None, typer.Option("--timestamps/--no-timestamps", help="Write time stamps of a recording.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="How many tokens to write at most: 256, or for each chunk of a recording all there is room for."
        ),
    ] = None,
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
    draft_device: DraftDevice = None,
    draft_quantize: DraftQuantize = None,
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
    config: Config = None,
    json_: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show the rounds: drafted, accepted, rejected.")] = False,
) -> None:
    """Write an answer, or one per prompt of a file. Text goes to standard output, the figures to standard error."""
    from ..commands.generate import Wanted, run, with_texts
    from ..commands.settings import Settings
    from ..sampling import Sampling

    settings = Settings(
        target,
        with_texts(drafter, corpus, global_tokens),
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
        draft_device,
        draft_quantize,
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
    stops = tuple(stop or ())
    wanted = Wanted(chat, prompt, prompts, batch, max_new_tokens, stops, prediction, audio, language, task, timestamps)
    document = run(settings, wanted, sampling, trace=trace, show=not json_)
    print_json(document, json_)
