"""`outrider import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Device, Dtype, Json, Offline, Target, TrustRemoteCode, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider import ./EAGLE3-LLaMA3.1-Instruct-8B --target meta-llama/Llama-3.1-8B-Instruct --out drafters/llama-eagle3

    outrider import ./medusa --target ./vicuna --set medusa_num_heads=5 --out drafters/medusa

    outrider import ./eagle3 --target ./model --set eagle_aux_hidden_state_layer_ids=[3,17,30] --out drafters/eagle3

A published folder can also be used as it is: --drafter eagle3:FOLDER. Importing says more, takes --set, and binds the
drafter to the weights of its target.
"""


def import_(
    folder: Annotated[Path, typer.Argument(help="Folder of a published drafter.")],
    out: Annotated[Path, typer.Option(help="Folder to write; one that is there is never overwritten.")],
    target: Target = "demo",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: take a key of config.json to be otherwise; null leaves it out."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Read a published drafter strictly, see that it fits a target, and keep it as a folder of ours."""
    from ..commands.import_ import parse_changes, run
    from ..commands.settings import Settings

    settings = Settings(target, "none", "match", None, dtype, device, offline, trust_remote_code)
    print_json(run(settings, folder, out, parse_changes(set_ or []), show=not json_), json_)
