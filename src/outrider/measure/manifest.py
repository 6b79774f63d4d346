"""What was run and where: enough to tell whether two measurements may be compared. Runs no models.

`plan` holds all that makes two runs the same; a run that is gone on with has to ask for the very same. What may differ
between the sessions of one run (the time, the load, the revision of the code) stands under `sessions`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import machine
from .prompts import BenchPrompt, digest
from .results import SCHEMA, Case
from .runner import WARM_UP, Plan

_ENDS = 1 << 20  # bytes of a weight file that are read at its beginning, where its header is, and at its end
_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt"}
_SKIPPED = {".md", ".lock"}


def build(
    options: dict[str, Any],
    cases: Sequence[Case],
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    *,
    argv: Sequence[str],
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest of a run that is about to begin.

    Args:
        options: how targets are loaded and whatever else decides what is measured, with the hashes of models.
        cases, prompts, plan: of the run.
        argv: the command line.
        left_out: what was asked for and could not be measured, in sentences.
    """
    about = machine.describe()
    here = ("cpu", "cores", "capability", "gpu", "threads", "outrider", "torch", "transformers")
    manifest = {
        "schema_version": SCHEMA,
        "argv": list(argv),
        "targets": {},
        "plan": {
            **options,
            "cases": [case.model_dump() for case in cases],
            "prompts": digest(prompts),
            **asdict(plan),
            "machine": {key: about[key] for key in here},
        },
        "prompts": dict(Counter(prompt.category for prompt in prompts)),
        "warm_up_tokens": WARM_UP,
        "left_out": list(left_out),
        "machine": about,
        "sessions": [session()],
    }
    plain: dict[str, Any] = json.loads(json.dumps(manifest))  # as it will be read back
    return plain


def session() -> dict[str, Any]:
    """When this begins, on how busy a machine, and with which code."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_average": machine.describe()["load_average"],
        "revision": revision(),
    }


def revision() -> str | None:
    """Git's name for the code that runs, "-dirty" if it was edited since; None outside a work tree."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def fingerprint(folder: Path) -> str:
    """A hash of a model's files: the whole of small ones, of weights their size, header and end.

    Reading gigabytes before every run would cost more than the run; weights that differ nowhere but in their middle are
    not told apart.
    """
    found = hashlib.sha256()
    files = [folder] if folder.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        if path.suffix in _SKIPPED or path.name.startswith("."):
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            if path.suffix not in _WEIGHTS or size <= 2 * _ENDS:
                found.update(hashlib.file_digest(file, "sha256").digest())
            else:
                found.update(file.read(_ENDS))
                file.seek(-_ENDS, 2)
                found.update(file.read(_ENDS))
    return found.hexdigest()


def fingerprints(spec: str) -> dict[str, str]:
    """Of all files and folders that a drafter's spec names."""
    parts = re.split(r"[:,=]", spec)
    return {part: fingerprint(Path(part)) for part in parts if part and Path(part).expanduser().exists()}
