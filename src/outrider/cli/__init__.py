"""The command line: thin, one file per command. Heavy rooms are imported by the command that needs them.

Adding a command is one file that defines it and its `EXAMPLES`, and one line below.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import UsageError
from . import (
    advise,
    bench,
    compare,
    costs,
    curves,
    data,
    demo,
    deploy,
    doctor,
    explain,
    export,
    generate,
    import_,
    prove,
    serve,
    simulate,
    train,
    tree,
    tune,
)

app = typer.Typer(
    name="outrider",
    help="Speculative decoding for any Hugging Face causal language model: faster, and exactly its own words.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    generate.generate,
    demo.demo,
    costs.costs,
    bench.bench,
    tune.tune,
    prove.prove,
    simulate.simulate,
    advise.advise,
    compare.compare,
    explain.explain,
    data.data,
    train.train,
    curves.curves,
    tree.tree,
    export.export,
    import_.import_,
    deploy.deploy,
    serve.serve,
    doctor.doctor,
):
    app.command(command.__name__.rstrip("_"), epilog=sys.modules[command.__module__].EXAMPLES)(command)


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


def main() -> None:
    """Run the command line: mistakes of the caller are one sentence and exit code 2, Ctrl-C is exit code 130."""
    sys.path.append(str(Path.cwd()))  # a drafter of the caller's own may lie here; last, so that it hides nothing
    try:
        app(standalone_mode=True)
    except UsageError as error:
        print(f"outrider: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
