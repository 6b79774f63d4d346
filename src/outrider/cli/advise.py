"""`outrider advise`."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Dtype, Json, Offline, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider advise

    outrider advise --target ./my-model --memory 16GiB --hardware cpu --no-train --small-model --goal latency

    outrider advise --target ./my-model --draft-model ./small --batch 16 --goal throughput --json

    outrider advise --target ./my-model --results runs/monday --must-be-exact
"""


def advise(
    target: Annotated[
        str | None, typer.Option(help="Hub id, folder, .gguf file, or 'demo': only its configuration is read.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="A small model with the same tokenizer, likewise.")] = None,
    memory: Annotated[str | None, typer.Option(help="What models and caches may take, like 16GiB.")] = None,
    hardware: Annotated[str | None, typer.Option(help="cpu or gpu.")] = None,
    batch: Annotated[int | None, typer.Option(help="Requests served together. [1]", min=1)] = None,
    goal: Annotated[
        str | None, typer.Option(help="latency: one answer fast; throughput: all of them together.")
    ] = None,
    can_train: Annotated[
        bool | None, typer.Option("--can-train/--no-train", help="Whether something may be trained.")
    ] = None,
    small_model: Annotated[
        bool | None,
        typer.Option("--small-model/--no-small-model", help="Whether there is a smaller model with the tokenizer."),
    ] = None,
    text_in_prompt: Annotated[
        bool | None,
        typer.Option(
            "--text-in-prompt/--no-text-in-prompt", help="Whether answers repeat the prompt: edits, summaries."
        ),
    ] = None,
    must_be_exact: Annotated[
        bool | None,
        typer.Option("--must-be-exact/--may-differ", help="Whether the output has to be the target's own."),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the sampling.", min=0)] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a request at most. [4096]", min=1)] = None,
    dtype: Dtype = None,
    quantize: Annotated[str | None, typer.Option(help="int8: the target will be rounded.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="A folder of outrider bench: what was measured comes before what rules say.")
    ] = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Which drafter for which situation: a ranked list with reasons, memory, and the next command to run."""
    from ..commands.advise import Wanted, run
    from ..errors import BadOption

    if quantize not in (None, "int8"):
        raise BadOption(f"There is no quantization {quantize!r}: choose int8, or leave it out.")
    wanted = Wanted(
        target=target,
        draft_model=draft_model,
        memory=memory,
        hardware=hardware,
        batch=batch,
        goal=goal,
        can_train=can_train,
        small_model=small_model,
        text_in_prompt=text_in_prompt,
        must_be_exact=must_be_exact,
        temperature=temperature,
        context=context,
        dtype=dtype,
        int8=quantize is not None,
        results=results,
        offline=offline,
        trust_remote_code=trust_remote_code,
    )
    someone = sys.stdin.isatty() and not json_
    print_json(run(wanted, _commands(), show=not json_, ask=input if someone else None), json_)


def _commands() -> Collection[str]:
    """The commands that exist, by name."""
    from . import app

    return {info.name or info.callback.__name__ for info in app.registered_commands if info.callback is not None}
