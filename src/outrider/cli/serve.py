"""`outrider serve`. Every option has an environment variable: `--max-batch` is `OUTRIDER_MAX_BATCH`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadOption
from .options import config_option

EXAMPLES = """
[bold]Examples[/bold]

    outrider serve --target demo

    outrider serve --target ./my-model --drafter model:./my-small-model --drafter suffix --max-batch 16

    outrider serve --target ./my-model --host 0.0.0.0 --api-key-file keys --memory 8GiB

    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "Name three rivers."}]}'

The page at / shows where each token came from. Every option has an environment variable, such as OUTRIDER_PORT.
"""


def _option(name: str, help_: str, *flags: str) -> typer.models.OptionInfo:
    """An option with its environment variable."""
    option: typer.models.OptionInfo = typer.Option(*flags, help=help_, envvar=f"OUTRIDER_{name.upper()}")
    return option


def serve(
    target: Annotated[str, _option("target", "Hub id, folder, .gguf file, or 'demo'.")] = "demo",
    drafter: Annotated[
        list[str] | None,
        _option("drafter", "As for generate; given more than once, requests may choose, and the first is usual."),
    ] = None,
    verifier: Annotated[str, _option("verifier", "As for generate.")] = "match",
    policy: Annotated[str | None, _option("policy", "As for generate; requests may ask for another one.")] = None,
    host: Annotated[str, _option("host", "Other than loopback only with a key.")] = "127.0.0.1",
    port: Annotated[int, _option("port", "0 takes a free one.")] = 8000,
    name: Annotated[str | None, _option("name", "The model's name for clients, if not the target's.")] = None,
    api_key_file: Annotated[
        Path | None, _option("api_key_file", "Keys, one a line; clients have to show one of them.")
    ] = None,
    unprotected: Annotated[
        bool, _option("unprotected", "Let other machines in without a key.", "--unprotected")
    ] = False,
    max_batch: Annotated[int, _option("max_batch", "Answers that are written at once.")] = 8,
    max_queue: Annotated[int, _option("max_queue", "Answers that wait beyond those; then 429.")] = 64,
    max_tokens: Annotated[int, _option("max_tokens", "Tokens that an answer may have.")] = 2048,
    memory: Annotated[
        str | None, _option("memory", "For keys and values, e.g. 8GiB; by default half of what is free.")
    ] = None,
    prefix_memory: Annotated[
        str, _option("prefix_memory", "For those of finished requests, which a chat's next turn starts from; 0: none.")
    ] = "512MiB",
    max_body: Annotated[str, _option("max_body", "Largest request.")] = "4MiB",
    drain: Annotated[float, _option("drain", "Seconds that requests may take to end after the first SIGTERM.")] = 30.0,
    keep_alive: Annotated[float, _option("keep_alive", "Seconds after which a silent stream gets a comment.")] = 15.0,
    report: Annotated[
        bool, _option("report", "Tell acceptance and timings in every answer, asked or not.", "--report")
    ] = False,
    log_level: Annotated[str, _option("log_level", "debug, info, warning or error.")] = "info",
    dtype: Annotated[str | None, _option("dtype", "float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, _option("device", "cpu, cuda, cuda:1, ...")] = None,
    offline: Annotated[bool, _option("offline", "Never ask a hub.", "--offline")] = False,
    trust_remote_code: Annotated[
        bool,
        _option("trust_remote_code", "Run code from the model's repository. Read it first.", "--trust-remote-code"),
    ] = False,
    fast: Annotated[
        bool | None, _option("fast", "Insist on fast modules, or keep Transformers'.", "--fast/--no-fast")
    ] = None,
    quantize: Annotated[str | None, _option("quantize", "int8: less memory, more speed.")] = None,
    device_map: Annotated[str | None, _option("device_map", "'auto' spreads a model over devices and disk.")] = None,
    draft_device: Annotated[
        str | None, _option("draft_device", "Where the drafter's model goes, if not with the target.")
    ] = None,
    compile_: Annotated[bool, _option("compile", "torch.compile at fixed shapes, for GPUs.", "--compile")] = False,
    prefill_chunk: Annotated[int, _option("prefill_chunk", "Prompt tokens per pass.")] = 512,
    config: Annotated[Path | None, config_option(envvar="OUTRIDER_CONFIG")] = None,
    json_: Annotated[bool, _option("json", "Print one JSON document once the model is there.", "--json")] = False,
) -> None:
    """Serve a model to OpenAI's clients, and a page to people, with continuous batching."""
    from ..commands.settings import Settings

    try:
        from ..commands.serve import Wanted, limits, run
        from ..serve.room import parse_size
    except ImportError as error:
        raise BadOption(f"Serving takes an extra ({error.name} is missing): pip install 'outrider[serve]'.") from error
    first, *others = drafter or ["suffix"]
    settings = Settings(
        target,
        first,
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
        prefix_memory=parse_size(prefix_memory, "--prefix-memory"),
    )
    wanted = Wanted(host, port, name, tuple(others), api_key_file, unprotected, report, log_level)
    allowed = limits(
        max_batch=max_batch,
        max_queue=max_queue,
        max_tokens=max_tokens,
        memory=memory,
        max_body=max_body,
        drain=drain,
        keep_alive=keep_alive,
    )
    run(settings, wanted, allowed, show=not json_)
