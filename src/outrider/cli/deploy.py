"""`outrider deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider tune --target ./my-model --drafters suffix,eagle3:runs/eagle3 --prompts mine.jsonl

    outrider deploy vllm --config outrider.toml

    outrider deploy vllm --config outrider.toml --tensor-parallel 8 --pipeline-parallel 2 --machines 2

    outrider deploy sglang --config outrider.toml --k 4 --run

    outrider deploy llamacpp --config outrider.toml
"""


def deploy(
    engine: Annotated[str, typer.Argument(help="vllm, sglang or llamacpp.")],
    config: Annotated[Path, typer.Option(help="The file that outrider tune wrote, or one like it.")] = Path(
        "outrider.toml"
    ),
    target: Annotated[str | None, typer.Option(help="Another target than the file's.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Another drafter than the file's; then give --k too.")] = None,
    k: Annotated[int | None, typer.Option(help="Tokens drafted per round. [the file's policy]", min=1)] = None,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share each layer.", min=1)] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Groups of devices that share the layers.", min=1)] = 1,
    machines: Annotated[int, typer.Option(help="Over how many machines.", min=1)] = 1,
    port: Annotated[int | None, typer.Option(help="Of the server. [the engine's]", min=1, max=65535)] = None,
    trust_remote_code: TrustRemoteCode = False,
    run_: Annotated[bool, typer.Option("--run", help="Run the commands here.")] = False,
    json_: Json = False,
) -> None:
    """The exact commands that serve a configuration on vLLM, SGLang or llama.cpp, on one machine or several."""
    from ..commands.deploy import run
    from ..config import read
    from ..deploy.plan import Asked

    changes: dict[str, object] = {} if target is None else {"target": target}
    if drafter is not None:
        changes |= {"drafter": drafter, "policy": None, "measured": None}
    asked = Asked(
        read(config).model_copy(update=changes),
        k,
        tensor_parallel,
        pipeline_parallel,
        machines,
        port,
        trust_remote_code,
    )
    document, code = run(engine, asked, start=run_, show=not json_)
    print_json(document, json_)
    if code:
        raise typer.Exit(code)
