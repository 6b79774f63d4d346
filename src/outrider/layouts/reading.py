"""Any published folder, read and written; beside the published files lies `outrider.json` with what no layout says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save_file

from ..checkpoints import CONFIG, WEIGHTS, Checkpoint, Manifest, replace_folder
from ..errors import BadOption, ModelNotFound, UnsupportedModel
from .base import Layout, Reading, Serving, View
from .dflash import DFlash
from .eagle import Eagle
from .eagle3 import Eagle3
from .folder import Found, read_config, read_folder
from .medusa import Medusa
from .mtp import Mtp
from .speculators import Speculators

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (Speculators(), Eagle3(), Eagle(), Medusa(), DFlash(), Mtp())
}
EXTRA = "outrider.json"
_LARGEST_EXTRA = 16 << 20  # bytes
_PUBLISHED = ("architectures", "model_type", "speculators_model_type", "medusa_num_heads")


class _Extra(BaseModel):
    """outrider.json: the manifest, and the draft vocabulary where the layout has no place for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    manifest: Manifest
    offsets: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A published folder, read.

    Attributes:
        layout: of it.
        checkpoint: in our terms.
        notes: what was concluded, a sentence each.
    """

    layout: str
    checkpoint: Checkpoint
    notes: tuple[str, ...]


def is_published(folder: Path) -> bool:
    """Whether a folder holds a config that is not ours."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_config(folder)
    return "format" not in config and any(name in config for name in _PUBLISHED)


def layout_of(config: Mapping[str, Any], where: Path) -> Layout:
    """The layout of a config.

    Raises:
        UnsupportedModel: it is none that we know; the message has its architectures.
    """
    for layout in LAYOUTS.values():
        if layout.recognises(config):
            return layout
    raise UnsupportedModel(
        f"{where} is of no layout that is known: architectures is {config.get('architectures')!r}, and one of "
        "Eagle3DraftModel (speculators), LlamaForCausalLMEagle3, EagleLlamaForCausalLM, MedusaModel, DFlashDraftModel, "
        "MiMoForCausalLM was expected."
    )


def is_of(folder: Path, name: str) -> bool:
    """Whether a folder is in this published layout."""
    return is_published(folder) and LAYOUTS[name].recognises(read_config(folder))


def read_published(folder: Path, view: View, changes: Mapping[str, Any] | None = None) -> Published:
    """A published folder.

    Args:
        folder: it.
        view: of the target that it is to draft for.
        changes: keys of its config that are taken to be otherwise; None leaves one out.

    Raises:
        ModelNotFound: files are missing or broken.
        UnsupportedModel: it is not understood; with the key or tensor, and what was expected.
        BadOption: it was made for another target, or `changes` has a key that changes nothing.
    """
    found = read_folder(folder)
    config = _changed(found.config, changes or {})
    layout = layout_of(config, found.where)
    reading = layout.read(Found(folder, config, found.tensors), view)
    extra = _extra(folder)
    if extra is not None:
        return Published(layout.name, _as_before(reading, extra, layout, view, folder), ())
    about = {"layout": layout.name, "verifier": reading.verifier, "concluded": list(reading.notes)}
    manifest = Manifest(
        method=reading.method,
        target=view.id,
        taps=reading.taps,
        template=view.template,
        draft_vocabulary=len(reading.ids),
        shape=reading.shape,
        training={"imported": about},
    )
    return Published(layout.name, Checkpoint(manifest, reading.tensors, reading.ids), reading.notes)


def write_published(folder: Path, layout: Layout, checkpoint: Checkpoint, serving: Serving) -> tuple[str, ...]:
    """Write a drafter of ours in a published layout, in one step.

    Returns:
        What the layout cannot say, a sentence each.

    Raises:
        BadOption: the layout is another method's.
        UnsupportedModel: see `Layout.write`.
    """
    manifest = checkpoint.manifest
    if manifest.method not in layout.methods:
        raise BadOption(
            f"A drafter of the kind {manifest.method!r} cannot be written as {layout.name}: choose "
            f"{' or '.join(name for name, other in LAYOUTS.items() if manifest.method in other.methods)}."
        )
    writing = layout.write(checkpoint, serving)
    offsets = None if layout.says_ids else (checkpoint.ids - torch.arange(len(checkpoint.ids))).tolist()
    extra = _Extra(manifest=manifest, offsets=offsets)
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in writing.tensors.items()}

    def fill(work: Path) -> None:
        save_file(tensors, work / WEIGHTS, {"format": "pt"})
        (work / CONFIG).write_text(json.dumps(writing.config, indent=2) + "\n", encoding="utf-8")
        (work / EXTRA).write_text(extra.model_dump_json(indent=1) + "\n", encoding="utf-8")

    replace_folder(folder, fill)
    return writing.notes


def _changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other values; a dot goes into a table."""
    changed: dict[str, Any] = json.loads(json.dumps(config))
    for name, value in changes.items():
        *way, last = name.split(".")
        table = changed
        for step in way:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise BadOption(f"--set {name}: {step} is no table in this config: name another key.")
        if table.get(last) == value:
            raise BadOption(f"--set {name} changes nothing, as the config says that already: leave it out.")
        table[last] = value
    return changed


def _extra(folder: Path) -> _Extra | None:
    path = folder / EXTRA
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _LARGEST_EXTRA:
            raise ValueError("it is too large")
        return _Extra.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelNotFound(
            f"{path} cannot be read ({reason}): remove it if the folder is not from outrider."
        ) from error


def _as_before(reading: Reading, extra: _Extra, layout: Layout, view: View, folder: Path) -> Checkpoint:
    """The drafter that was written here, if the published files still say the same."""
    manifest = extra.manifest
    manifest.target.check(view.id, folder)
    ids = reading.ids
    if extra.offsets is not None:
        ids = torch.tensor(extra.offsets) + torch.arange(len(extra.offsets))
    shape = {name: value for name, value in reading.shape.items() if name not in layout.unsaid}
    said = {
        "method": (reading.method, manifest.method),
        "taps": (reading.taps, manifest.taps),
        "draft_vocabulary": (len(ids), manifest.draft_vocabulary),
        **{name: (value, manifest.shape.get(name, value)) for name, value in shape.items()},
    }
    for name, (here, before) in said.items():
        if _plain(here) != _plain(before):
            raise UnsupportedModel(
                f"{folder / EXTRA} says {name} {before!r} and the published files say {here!r}: remove {EXTRA} if they "
                "were changed on purpose."
            )
    return Checkpoint(manifest, reading.tensors, ids)


def _plain(value: Any) -> Any:
    """A value as JSON has it; of a table what is not merely a default left out."""
    plain = json.loads(json.dumps(value))
    return {key: one for key, one in plain.items() if one not in (None, False)} if isinstance(plain, dict) else plain
