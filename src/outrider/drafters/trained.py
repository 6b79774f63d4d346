"""What the drafters that `outrider train` makes have in common: their folder is read, checked and made ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from .. import features
from ..checkpoints import Checkpoint, TargetId, check_template, read
from ..errors import BadOption, ModelNotFound
from ..heads.base import DraftHead
from ..linear import can_pack, pack_linears
from ..target import Target
from .base import Setting
from .recurrent import Borrowed

Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder that goes with the target.

    Attributes:
        folder: where it lies.
        checkpoint: what it holds.
    """

    folder: Path
    checkpoint: Checkpoint

    @property
    def ids(self) -> Tensor | None:
        """The draft vocabulary's target ids; None where it is the target's whole vocabulary."""
        whole = self.checkpoint.manifest.target.vocabulary
        return None if len(self.checkpoint.ids) == whole else self.checkpoint.ids

    def shape(self, kind: type[Shape]) -> Shape:
        """The sizes of the head's modules.

        Raises:
            ModelNotFound: config.json has others than this method's.
        """
        try:
            return TypeAdapter(kind).validate_python(self.checkpoint.manifest.shape)
        except (ValidationError, ValueError) as error:
            raise ModelNotFound(
                f"The shape in {self.folder / 'config.json'} is not that of the method: {_say(error)}."
            ) from error

    def fill(self, head: DraftHead) -> None:
        """Put the weights into a head.

        Raises:
            ModelNotFound: they do not fit.
        """
        try:
            head.fill(self.checkpoint.tensors)
        except KeyError as error:
            raise ModelNotFound(
                f"The weights in {self.folder} do not fit its config.json ({error.args[0]}): take both from one run."
            ) from error


def open_folder(method: str, argument: str, setting: Setting) -> Opened:
    """The folder behind the colon of a drafter's spec.

    Raises:
        BadOption: none is named, or it was trained for another target or template.
        ModelNotFound: it holds no such drafter.
    """
    if not argument:
        raise BadOption(f"The drafter {method!r} needs the folder of a trained one: write {method}:FOLDER.")
    folder = Path(argument).expanduser()
    checkpoint = read(folder, method)
    checkpoint.manifest.target.check(identify(setting.target, str(setting.folder or "in memory")), folder)
    check_template(checkpoint.manifest, setting.tokenizer, folder)
    return Opened(folder, checkpoint)


def identify(target: Target, name: str) -> TargetId:
    """A target as checkpoints name it.

    Raises:
        UnsupportedModel: its parts cannot be reached.
    """
    return TargetId(
        name=name,
        hash=features.fingerprint(target),
        vocabulary=target.vocabulary,
        width=features.width_of(target),
        depth=features.depth_of(target),
    )


def ready(head: Any, target: Target) -> Any:
    """A head that nobody else holds, in the target's precision and place, with fast linears where there are any."""
    head = head.to(target.device, target.dtype).eval().requires_grad_(False)
    if can_pack(target.dtype, target.device):
        pack_linears(head)
    return head


def borrowed(target: Target, dtype: torch.dtype | None = None, head: DraftHead | None = None) -> Borrowed:
    """The parts of the target that heads use while they draft.

    Args:
        target: whose.
        dtype: of the head; the target's if not given, as `ready` makes it.
        head: its embedding takes the place of the target's where it has one of its own.
    """
    own = getattr(head, "embed_tokens", None)
    embed = features.embedding(target) if own is None else _at(own, target.device)
    return Borrowed(embed, target.vocabulary, target.eos, target.device, dtype or target.dtype)


def _at(table: Any, device: torch.device) -> features.Embed:
    def embed(ids: Tensor) -> Tensor:
        found: Tensor = table(ids.to(device))
        return found

    return embed


def _say(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).rstrip(".")
