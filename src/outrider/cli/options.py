"""Options that several commands share, and how a command hands its document on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

_NAMES = {  # keys of the file whose options are called otherwise somewhere
    "batch": ("batch", "max_batch"),
    "compile": ("compile_",),
    "drafter": ("drafter", "drafters"),
    "policy": ("policy", "policies"),
    "verifier": ("verifier", "verifiers"),
}
_CHOSEN_TOGETHER = {"policy", "policies", "draft_device", "draft_quantize"}  # with the drafter: see _unless_given


def _take_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Let a file's values be the defaults of the options of this command; what is given beside it wins."""
    if path is not None:
        from ..config import read

        lists = {option.name for option in context.command.params if getattr(option, "multiple", False)}
        defaults = {}
        for key, value in read(path).given().items():
            for name in _NAMES.get(key, (key,)):
                found = [value] if name in lists else value
                defaults[name] = _unless_given(context, found) if name in _CHOSEN_TOGETHER else found
        context.default_map = defaults
    return path


def _unless_given(context: typer.Context, value: Any) -> Callable[[], Any]:
    """A default that holds as long as no drafter and no length is given; asked for when all that is given is known."""

    def default() -> Any:
        sources = [context.get_parameter_source(name) for name in ("drafter", "drafters", "k")]
        given = any(source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT") for source in sources)
        return None if given else value

    return default


def config_option(**more: Any) -> Any:
    """`--config`; `more` goes to `typer.Option`."""
    help_ = "A file with defaults for these options, as `outrider tune` writes it; options given here win."
    return typer.Option(help=help_, is_eager=True, callback=_take_defaults, **more)


Config = Annotated[Path | None, config_option()]

Target = Annotated[str, typer.Option(help="Hub id, folder, .gguf file, or 'demo'.")]
DrafterSpec = Annotated[
    str,
    typer.Option(
        help="suffix[:OPTIONS], lookup[:N], reference, recycle[:K], lookahead[:OPTIONS], model:SPEC, "
        "translated[:auto|tli|slem]:SPEC, early_exit:E, mtp[:FOLDER], eagle3:FOLDER, eagle:FOLDER, "
        "medusa:FOLDER, dflash:FOLDER, cascade:A,B, none, or module:Class."
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
Ray = Annotated[
    str | None,
    typer.Option(help="Spread the work over a running Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="'auto' spreads a model over GPUs, memory and disk (Accelerate's device_map).")
]
DraftDevice = Annotated[str | None, typer.Option(help="Where the drafter's model goes, if not with the target.")]
DraftQuantize = Annotated[
    str | None, typer.Option(help="int8: round the drafter's model alone; cheaper drafts, the same text.")
]
Compile = Annotated[bool, typer.Option("--compile", help="torch.compile at fixed shapes, for GPUs; slow to start.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def print_json(document: dict[str, Any], wanted: bool) -> None:
    """Print a command's document where `--json` asks for it."""
    if wanted:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
