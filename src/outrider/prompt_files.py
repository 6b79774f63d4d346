"""Files of prompts. Knows nothing of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import BadPrompt
from .text import Prompt

_LARGEST_FILE = 64 << 20  # bytes of prompts read into memory


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a file: JSON lines with "prompt" or "messages" where it is named .jsonl, else a line each.

    Raises:
        BadPrompt: missing, too large, empty, or a line that is neither.
    """
    if path.suffix != ".jsonl":
        return list(read_lines(path))
    return [prompt_of(record, where) for record, where in read_records(path)]


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not blank.

    Raises:
        BadPrompt: missing, too large or empty.
    """
    if not path.is_file():
        raise BadPrompt(f"There is no file {path}: check the path.")
    if path.stat().st_size > _LARGEST_FILE:
        raise BadPrompt(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: split it.")
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadPrompt(f"{path} is not UTF-8 text: convert it first.") from error
    if not lines:
        raise BadPrompt(f"{path} has no prompts: put one on each line.")
    return lines


def read_records(path: Path) -> list[tuple[Any, str]]:
    """The lines of a JSONL file, and for each where it stands, for messages.

    Raises:
        BadPrompt: as `read_lines`, or a line that is no JSON.
    """
    found = []
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            found.append((json.loads(line), where))
        except json.JSONDecodeError as error:
            raise BadPrompt(f"{where} is no JSON: write one object per line.") from error
    return found


def prompt_of(record: Any, where: str) -> Prompt:
    """The prompt of a record: its "prompt" or its "messages".

    Raises:
        BadPrompt: it has neither.
    """
    if isinstance(record, dict):
        for name, kind in (("prompt", str), ("messages", list)):
            if isinstance(record.get(name), kind) and record[name]:
                found: Prompt = record[name]
                return found
    raise BadPrompt(f'{where} has neither a "prompt" (text) nor "messages" (a list): add one.')
