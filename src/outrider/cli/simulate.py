"""`outrider simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Json, Offline, print_json

EXAMPLES = """
[bold]Examples[/bold]

    outrider generate --target demo --prompts questions.jsonl --json > answers.json

    outrider simulate --log answers.json --drafters suffix,lookup --k 1,2,4,8

    outrider simulate --log answers.json --drafters suffix --k 4,6 --nodes 8,16 --costs costs.json

    outrider simulate --log chats.jsonl --tokenizer ./my-model --json

    outrider simulate --trace traced.json --costs costs.json
"""


def simulate(
    log: Annotated[
        Path | None,
        typer.Option(
            help="Answers: JSONL with 'prompt', 'messages' or 'prompt_ids' and 'output' or 'output_ids', a document "
            "of outrider generate --json, or a folder of outrider bench."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Rounds instead: a document of outrider generate --trace --json. Predicts every smaller k."),
    ] = None,
    drafters: Annotated[
        str | None,
        typer.Option(help="Those that draft from text alone: suffix, lookup, reference, or a cascade of them."),
    ] = None,
    k: Annotated[str | None, typer.Option(help="Draft lengths; 1,2,4,8 by default, for a trace all of them.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Trees of these sizes, as deep as --k says.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="How many answers were written together, which matters to what suffix had seen.", min=1),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="A document of outrider costs --json, of this machine or another: predicts speed."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", "--target", help="Whose tokenizer, for a log of text; no weights are read."),
    ] = None,
    offline: Offline = False,
    json_: Json = False,
    config: Config = None,
) -> None:
    """What drafters would have done to recorded answers, at any draft length, without a model."""
    from ..commands.simulate import Wanted, run

    wanted = Wanted(log, trace, drafters, k, nodes, batch, costs, tokenizer, offline)
    print_json(run(wanted, show=not json_), json_)
