"""`outrider import`: a published drafter as a folder of ours, bound to a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import checkpoints
from ..checkpoints import CONFIG
from ..drafters import TRAINED
from ..drafters.trained import open_published
from ..errors import BadOption, ModelNotFound
from ..layouts.reading import is_published
from .export import check_new_folder
from .settings import Settings, drafter_setting
from .showing import versions


def parse_changes(given: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` options; values are JSON, or texts where they are none.

    Raises:
        BadOption: one has no `=`.
    """
    changes: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not name or not sign:
            raise BadOption(f"--set {one} says nothing: write NAME=VALUE, with VALUE as in config.json.")
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value
    return changes


def run(settings: Settings, folder: Path, out: Path, changes: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """Read it, see that it drafts for the target, write it; the document is what `--json` prints."""
    check_new_folder(out)
    if not (folder / CONFIG).is_file():
        raise ModelNotFound(f"There is no {folder / CONFIG}: name the folder of a published drafter.")
    if not is_published(folder):
        raise BadOption(f"{folder} is no published layout: a folder that 'outrider train' wrote is used as it is.")
    llm = settings.load()
    setting = drafter_setting(llm)
    opened = open_published(None, folder, setting, settings.target, changes)
    manifest = opened.checkpoint.manifest
    TRAINED[manifest.method].of(opened, setting, str(folder))  # every tensor has its place
    checkpoints.write(out, opened.checkpoint, checkpoints.card(manifest, manifest.training))
    if show:
        print(f"{out}: {manifest.method} for {settings.target}; use it by --drafter {manifest.method}:{out}")
        for note in opened.notes:
            print(note)
    return {
        "out": str(out),
        "method": manifest.method,
        "target": settings.target,
        "taps": list(manifest.taps),
        "draft_vocabulary": manifest.draft_vocabulary,
        "shape": manifest.shape,
        "notes": list(opened.notes),
        **versions(),
    }
