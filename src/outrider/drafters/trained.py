"""What the drafters that `outrider train` makes have in common: their folder is read, checked and made ready to run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from .. import features
from ..checkpoints import Checkpoint, TargetId, check_template, read, template_hash
from ..errors import BadOption, ModelNotFound
from ..heads.base import DraftHead
from ..heads.lean import can_be_lean, make_lean
from ..heads.recurrent import RecurrentHead
from ..layouts.base import View
from ..layouts.reading import is_published, read_published
from ..linear import can_pack, pack_linears
from ..target import Target
from .base import Drafter, Setting

SHIPPED = Path(__file__).parent.parent / "data" / "drafters"  # for the demo model, a folder for each method
Shape = TypeVar("Shape")
_PART = 4096  # rows of an embedding that are compared at a time


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What a head uses of its target.

    Attributes:
        embed: ids -> embeddings.
        vocabulary: width of its logits.
        eos: ids behind which nothing is drafted.
        device, dtype: where the head computes, and in what.
        state_bytes: of one of the target's states.
    """

    embed: features.Embed
    vocabulary: int
    eos: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder that goes with the target.

    Attributes:
        folder: where it lies.
        checkpoint: what it holds.
        notes: what was concluded from a published layout, a sentence each.
    """

    folder: Path
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> Tensor | None:
        """The draft vocabulary's target ids; None where it is the target's whole vocabulary."""
        whole = self.checkpoint.manifest.target.vocabulary
        return None if len(self.checkpoint.ids) == whole else self.checkpoint.ids

    @property
    def note(self) -> str:
        """For the drafter's user: what was concluded."""
        return " ".join(self.notes)

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
    """The folder behind the colon of a drafter's spec; the one that comes with Outrider where none is named.

    Raises:
        BadOption: none is named and none of this method comes along, or it was trained for another target or template.
        ModelNotFound: it holds no such drafter.
    """
    folder = Path(argument).expanduser() if argument else SHIPPED / method
    if not argument and not folder.is_dir():
        raise BadOption(f"The drafter {method!r} needs the folder of a trained one: write {method}:FOLDER.")
    name = str(setting.folder or "in memory")
    if is_published(folder):
        return open_published(method, folder, setting, name)
    checkpoint = read(folder, method)
    try:
        checkpoint.manifest.target.check(identify(setting.target, name), folder)
    except BadOption as error:
        if argument:
            raise
        raise BadOption(
            f"The {method} drafter that comes with Outrider is for the demo model: write {method}:FOLDER with one that "
            "was trained for this target (outrider train)."
        ) from error
    check_template(checkpoint.manifest, setting.tokenizer, folder)
    return Opened(folder, checkpoint)


def open_published(
    method: str | None, folder: Path, setting: Setting, name: str, changes: Mapping[str, Any] | None = None
) -> Opened:
    """A folder in a published layout.

    Args:
        method: that it has to be of; None for any.
        folder, changes: see `layouts.reading.read_published`.
        setting: target and tokenizer.
        name: of the target.

    Raises:
        BadOption, ModelNotFound, UnsupportedModel: see `read_published`; it is another method's.
    """
    published = read_published(folder, _view(setting, name), changes)
    manifest = published.checkpoint.manifest
    if method is not None and manifest.method != method:
        raise BadOption(f"{folder} holds a drafter of the kind {manifest.method!r}: write {manifest.method}:{folder}.")
    check_template(manifest, setting.tokenizer, folder)
    return Opened(folder, published.checkpoint, published.notes)


def _view(setting: Setting, name: str) -> View:
    """What a published layout may be compared with."""
    target = setting.target

    def embeds(table: Tensor) -> bool:
        embed = features.embedding(target)
        parts = torch.split(torch.arange(target.vocabulary), _PART)
        return all(torch.equal(embed(ids).cpu(), table[ids].to(target.dtype)) for ids in parts)

    def answers(rows: Tensor, ids: Tensor) -> bool:
        weight = features.output(target, ids).linear.weight
        return torch.equal(weight.cpu(), rows.to(weight.dtype))

    return View(
        identify(target, name),
        template_hash(setting.tokenizer),
        embeds,
        answers,
        features.scales_embeddings(features.built(target).config),
    )


class Trained(Drafter):
    """A drafter that `outrider train` makes. A kind of it names its method and makes the head that weights go into.

    Args:
        head: in evaluation mode.
        parts: the target's.
        taps: target layers whose states it reads.
        ids: [n] int64, the target's ids of the draft vocabulary; None where it is the target's own.
        spec: its name in reports.

    Attributes:
        method: its name in specs and checkpoints.
        head: see above.
    """

    method: str
    has_law = True

    def __init__(self, head: Any, parts: Borrowed, taps: tuple[int, ...], ids: Tensor | None, spec: str) -> None:
        self.head, self._parts, self.taps, self.spec = head, parts, taps, spec
        self._device, self._dtype = parts.device, parts.dtype
        self._ids = None if ids is None else ids.to(self._device)

    @classmethod
    @abstractmethod
    def empty(cls, opened: Opened, target: Target) -> DraftHead:
        """A head of the shape that a folder tells, without its weights.

        Raises:
            ModelNotFound: config.json has another method's shape.
        """

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Self:
        """`METHOD:FOLDER`, as `outrider train` wrote it or in a published layout; without a folder the one that comes
        with Outrider, if there is one.

        Raises:
            BadOption, ModelNotFound, UnsupportedModel: see `open_folder`.
        """
        spec = f"{cls.method}:{argument}" if argument else cls.method
        return cls.of(open_folder(cls.method, argument, setting), setting, spec)

    @classmethod
    def of(cls, opened: Opened, setting: Setting, spec: str) -> Self:
        """What a folder holds, ready to draft; `spec` names it in reports.

        Raises:
            ModelNotFound: its weights do not fit its config.
        """
        head = cls.empty(opened, setting.target)
        opened.fill(head)
        dtype = _precision(opened.checkpoint.tensors, setting.target)
        head = ready(head, setting.target, dtype)
        taps = opened.checkpoint.manifest.taps
        drafter = cls(head, borrowed(setting.target, dtype, head), taps, opened.ids, spec)
        drafter.note = opened.note
        return drafter


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


def _precision(tensors: Mapping[str, Tensor], target: Target) -> torch.dtype:
    """The target's, or bfloat16 where the weights have no more than that and the machine has fast linears for it."""
    narrow = all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    return torch.bfloat16 if narrow and can_pack(torch.bfloat16, target.device) else target.dtype


def ready(head: Any, target: Target, dtype: torch.dtype | None = None) -> Any:
    """A head that nobody else holds, in this precision or the target's, with fast parts where there are any."""
    dtype = dtype or target.dtype
    head = head.to(target.device, dtype).eval().requires_grad_(False)
    if isinstance(head, RecurrentHead) and can_be_lean(head):
        make_lean(head)
    elif can_pack(dtype, target.device):
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
    state = features.width_of(target) * target.dtype.itemsize
    return Borrowed(embed, target.vocabulary, target.eos, target.device, dtype or target.dtype, state)


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
