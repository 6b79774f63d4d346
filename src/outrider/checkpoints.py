"""A trained drafter's folder: config.json, model.safetensors, README.md. Reading is strict and says what does not fit.

Knows no models and no modules: what a head is made of is between the method and its `shape`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .errors import BadOption, ModelNotFound

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
ORIGIN = "outrider.json"  # the manifest of a folder whose config.json is Transformers'
EARLIER = "went_on_from"  # of what a manifest tells of training: what it tells of that of the drafter before
_LARGEST_CONFIG = 1 << 20  # bytes
_LARGEST_WEIGHTS = 64 << 30  # bytes
_OFFSETS = (torch.uint8, torch.uint16, torch.int32, torch.int64)  # types of the vocabulary map, narrowest first


class TargetId(BaseModel):
    """Which target a drafter was trained for.

    Attributes:
        name: as it was named then.
        hash: `features.fingerprint`.
        vocabulary, width, depth: sizes of its logits, its states and its stack of layers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    hash: str
    vocabulary: int = Field(ge=1)
    width: int = Field(ge=1)
    depth: int = Field(ge=1)

    def check(self, other: TargetId, where: Path) -> None:
        """That a drafter for this target serves another one.

        Raises:
            BadOption: it does not; the message says what differs.
        """
        for what, mine, theirs in (
            ("a vocabulary of", self.vocabulary, other.vocabulary),
            ("states of width", self.width, other.width),
            ("a stack of layers of", self.depth, other.depth),
        ):
            if mine != theirs:
                raise BadOption(
                    f"The drafter in {where} was trained for {self.name} with {what} {mine}, and this target "
                    f"({other.name}) has {theirs}: name the target that it was trained for, or train one for this one."
                )
        if self.hash != other.hash:
            raise BadOption(
                f"The drafter in {where} was trained for {self.name}, and this target ({other.name}) has other weights "
                f"(hash {other.hash} instead of {self.hash}): name that target, or train a drafter for this one."
            )


class Manifest(BaseModel):
    """config.json.

    Attributes:
        format: of this file; another one is refused.
        method: "eagle3", "eagle", "medusa", ...
        target: what it was trained for.
        taps, tap_convention: target layers it sees, in `hidden_states` numbering.
        template: `template_hash` of the target's chat template; None where it had none.
        draft_vocabulary: how many tokens it can draft; `d2t` in the weights says which.
        shape: sizes of its modules, for the method to read.
        training: where it comes from: data, steps, tokens, acceptance, versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    method: str
    target: TargetId
    taps: tuple[int, ...]
    tap_convention: Literal["hidden_states"] = "hidden_states"
    template: str | None
    draft_vocabulary: int = Field(ge=1)
    shape: dict[str, Any]
    training: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder holds.

    Attributes:
        manifest: config.json.
        tensors: the head's own weights.
        ids: [draft vocabulary] int64, the target's id of each token it can draft, rising.
    """

    manifest: Manifest
    tensors: dict[str, Tensor]
    ids: Tensor


def write(folder: Path, checkpoint: Checkpoint, card: str) -> None:
    """Write a folder in one step: it is there whole, or as it was before."""
    replace_folder(folder, lambda work: fill(work, checkpoint, card))


def fill(work: Path, checkpoint: Checkpoint, card: str) -> None:
    """Write into a folder that nobody reads yet."""
    weights = {name: tensor.detach().to("cpu").contiguous() for name, tensor in checkpoint.tensors.items()}
    save_file({**weights, "d2t": _offsets(checkpoint.ids)}, work / WEIGHTS, {"format": "pt"})
    (work / CONFIG).write_text(checkpoint.manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (work / CARD).write_text(card, encoding="utf-8")


def describe(work: Path, manifest: Manifest, card: str) -> None:
    """Say in a folder whose config.json is Transformers' where its model comes from."""
    (work / ORIGIN).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (work / CARD).write_text(card, encoding="utf-8")


def read(folder: Path, method: str) -> Checkpoint:
    """Read a folder.

    Raises:
        ModelNotFound: there is none, or its files are broken.
        BadOption: it is another method's, or of a format that this version does not know.
    """
    config, weights = folder / CONFIG, folder / WEIGHTS
    if not config.is_file() or not weights.is_file():
        raise ModelNotFound(
            f"{folder} holds no trained drafter ({CONFIG} and {WEIGHTS}): name a folder that 'outrider train' wrote."
        )
    if config.stat().st_size > _LARGEST_CONFIG or weights.stat().st_size > _LARGEST_WEIGHTS:
        raise ModelNotFound(f"The files in {folder} are larger than a drafter's can be: check what they are.")
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("format") != FORMAT:
            raise BadOption(
                f"{config} has the format {found.get('format')!r} and this version reads {FORMAT}: name a folder that "
                "'outrider train' wrote, or take the version that wrote it."
            )
        manifest = Manifest.model_validate(found)
        tensors = load_file(weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelNotFound(
            f"The files in {folder} cannot be read ({_reason(error)}): check that they are whole."
        ) from error
    if manifest.method != method:
        raise BadOption(f"{folder} holds a drafter of the kind {manifest.method!r}: write {manifest.method}:{folder}.")
    return Checkpoint(manifest, tensors, _ids(tensors, manifest, folder))


def is_drafter(folder: Path) -> bool:
    """Whether a folder holds a drafter of `outrider train`, of whatever method and format, rather than a model."""
    config = folder / CONFIG
    try:
        found = json.loads(config.read_text(encoding="utf-8")) if config.stat().st_size <= _LARGEST_CONFIG else None
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"format", "method", "target"} <= found.keys()


def is_part(ids: Tensor, whole: int) -> bool:
    """Whether ids, [n] int64, can be a part of a vocabulary of so many tokens: rising, and none outside."""
    return bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < whole


def _offsets(ids: Tensor) -> Tensor:
    """From draft ids to target ids, in the narrowest type that holds them."""
    offsets = ids - torch.arange(len(ids))
    largest = int(offsets.max())
    return offsets.to(next(dtype for dtype in _OFFSETS if largest <= torch.iinfo(dtype).max))


def _ids(tensors: dict[str, Tensor], manifest: Manifest, folder: Path) -> Tensor:
    """Take the vocabulary map out of the weights. A mask `t2d`, as published checkpoints have one, has to agree."""
    offsets, reach = tensors.pop("d2t", None), tensors.pop("t2d", None)
    size, whole = manifest.draft_vocabulary, manifest.target.vocabulary
    if offsets is not None and offsets.shape == (size,) and not offsets.is_floating_point():
        ids = offsets.long() + torch.arange(size)
        if is_part(ids, whole) and (
            reach is None or (reach.shape == (whole,) and torch.equal(ids, reach.nonzero().flatten()))
        ):
            return ids
    raise ModelNotFound(f"The vocabulary map in {folder / WEIGHTS} is broken: check that the file is whole.")


def template_hash(tokenizer: Any) -> str | None:
    """A name for a chat template; None without one."""
    template = getattr(tokenizer, "chat_template", None)
    return hashlib.sha256(json.dumps(template).encode()).hexdigest()[:16] if template else None


def check_template(manifest: Manifest, tokenizer: Any, where: Path) -> None:
    """That prompts will look as they did in training.

    Raises:
        BadOption: the chat template is another one.
    """
    if tokenizer is None or template_hash(tokenizer) == manifest.template:
        return
    raise BadOption(
        f"The drafter in {where} was trained with another chat template (hash {manifest.template}) than this target's "
        f"tokenizer has ({template_hash(tokenizer)}): use the tokenizer that it was trained with, or train it anew."
    )


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Put a folder that `fill` fills in the place of another. Whoever reads finds the old one, the new one, or for an
    instant the old one under its name with `.old` behind (see `latest`)."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    old = folder.with_name(folder.name + ".old")
    try:
        fill(work)
        for file in filter(Path.is_file, work.rglob("*")):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        work.chmod(0o755)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        work.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def latest(folder: Path) -> Path | None:
    """The folder, or what stood in its place when a replacement was broken off; None if there is neither."""
    for found in (folder, folder.with_name(folder.name + ".old")):
        if found.is_dir():
            return found
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


@dataclass(frozen=True, slots=True)
class Use:
    """How what a folder holds is used, for its card.

    Attributes:
        title: what it is, in a few words.
        target, drafter: as `--target` and `--drafter` take them.
        promise: what becomes of the target's output.
    """

    title: str
    target: str
    drafter: str
    promise: str = "The target's output does not change."


def card(manifest: Manifest, facts: Mapping[str, Any], use: Use | None = None) -> str:
    """README.md: what the drafter is, how good it was when it was measured, and where it comes from."""
    target = manifest.target
    use = use or Use(f"{manifest.method} drafter for {target.name}", target.name, f"{manifest.method}:FOLDER")
    seen = f"{', '.join(map(str, manifest.taps))} ({manifest.tap_convention})" if manifest.taps else "none: texts only"
    lines = [
        f"# {use.title}",
        "",
        f"For speculative decoding with [Outrider](https://pypi.org/project/outrider/): it drafts for "
        f"`{target.name}` (hash `{target.hash}`) and for no other target. {use.promise}",
        "",
        "```",
        f'outrider generate --target {use.target} --drafter {use.drafter} --chat "Name three rivers."',
        "```",
        "",
    ]
    reach = f"{manifest.draft_vocabulary} of {target.vocabulary}"
    lines += _table({"target layers it sees": seen, "tokens it can draft": reach, **facts})
    earlier = facts.get(EARLIER)
    while earlier:
        lines += ["## What it went on from", "", *_table(earlier)]
        earlier = earlier.get(EARLIER)
    return "\n".join(lines)


def _table(facts: Mapping[str, Any]) -> list[str]:
    rows = [f"| {name.replace('_', ' ')} | {_cell(value)} |" for name, value in facts.items() if name != EARLIER]
    return ["| fact | value |", "|---|---|", *rows, ""]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(part)}" for name, part in value.items() if part not in (None, ""))
    return str(value)
