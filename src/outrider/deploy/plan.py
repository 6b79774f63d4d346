"""What a deployment is: what was chosen, on how many devices, and the commands in order. Knows no engine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..errors import BadOption
from ..loading import DEMO, demo_folder

TRAINED = ("eagle3", "eagle", "medusa", "dflash")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be deployed, and on what.

    Attributes:
        config: the file, with what was given beside it.
        length: tokens drafted per round, if it was given.
        tensor, pipeline: devices that share each layer, and groups of devices that share the layers.
        machines: how many.
        port: of the server.
        trust_remote_code: allowed.
    """

    config: Config
    length: int | None = None
    tensor: int = 1
    pipeline: int = 1
    machines: int = 1
    port: int | None = None
    trust_remote_code: bool = False

    @property
    def target(self) -> str:
        """The model as another program finds it.

        Raises:
            BadOption: the file names none.
        """
        if self.config.target is None:
            raise BadOption('The configuration names no target: add target = "..." to it, or give --target.')
        return elsewhere(self.config.target)

    @property
    def drafter(self) -> tuple[str, str]:
        """Name and argument of the drafter."""
        name, _, argument = (self.config.drafter or "none").partition(":")
        return name, argument

    @property
    def chain(self) -> int:
        """How many tokens are drafted per round.

        Raises:
            BadOption: nothing says it.
        """
        if self.length is not None:
            return self.length
        name, _, argument = (self.config.policy or "").partition(":")
        first = argument.partition(",")[0]
        if name == "fixed" and first.isdigit() and int(first) > 0:
            return int(first)
        raise BadOption(
            f"The policy {self.config.policy or 'goodput'!r} finds the draft length while it runs, and other engines "
            "draft a fixed number: give --k, or let outrider tune find one."
        )

    @property
    def tree(self) -> bool:
        """Whether trees were chosen."""
        return "," in (self.config.policy or "") and self.length is None


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        argv: it.
        where: on which machine.
    """

    argv: tuple[str, ...]
    where: str = "this machine"

    @property
    def line(self) -> str:
        """For a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment.

    Attributes:
        steps: in order; the last one serves.
        notes: what else to know, a sentence each.
        speculative_config: vLLM's, where it is vLLM.
    """

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    speculative_config: dict[str, object] | None = None


def elsewhere(name: str) -> str:
    """A model's name for other programs: a path that does not depend on where one stands, or a hub id."""
    if name == DEMO:
        return str(demo_folder())
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def exported(method: str, folder: str, layout: str, suffix: str, more: Sequence[str] = ()) -> tuple[Path, list[Step]]:
    """Where a trained drafter lies in a published layout, and the command that puts it there if it is not there yet.

    Args:
        method: of the drafter.
        folder: ours, or published already.
        layout, more: for `outrider export`.
        suffix: of the folder beside it.

    Raises:
        BadOption: no folder is named.
    """
    from ..layouts.reading import is_published

    if not folder:
        raise BadOption(f"The drafter {method!r} names no folder, and other engines need one: write {method}:FOLDER.")
    path = Path(folder).expanduser().resolve()
    if is_published(path):
        return path, []
    out = path.with_name(f"{path.name}-{suffix}")
    if out.is_dir():
        return out, []
    argv = ("outrider", "export", f"{method}:{path}", "--format", layout, "--out", str(out), *more)
    return out, [Step(argv)]
