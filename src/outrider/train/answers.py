"""What drafters learn from: answers that the target itself wrote, as a folder that grows line by line.

`data.json` says whose answers they are, `answers.jsonl` has one per line, as ids. A line that was broken off is dropped
when the folder is opened again. Knows no models.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..checkpoints import TargetId
from ..errors import BadOption

_SOURCE, _ANSWERS = "data.json", "answers.jsonl"
_LARGEST = 8 << 30  # bytes


class Source(BaseModel):
    """Whose answers, and how they were drawn. A folder is continued with the same or not at all.

    Attributes:
        format: of the folder.
        target: who wrote them.
        template: `checkpoints.template_hash` of the prompts' chat template; None for raw text.
        seed: of prompts, temperatures and tokens.
        temperatures: drawn from, answer by answer.
        max_new_tokens: of an answer.
        held_out: share of the prompts that no drafter may be trained on.
        prompts: a hash of the prompts, or how many the target invents.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    target: TargetId
    template: str | None
    seed: int
    temperatures: tuple[float, ...]
    max_new_tokens: int
    held_out: float
    prompts: str


class Answer(BaseModel):
    """One answer, as ids.

    Attributes:
        number: of its prompt and sample, from 0.
        prompt, answer: ids; the answer has its end-of-sequence token if it ended by itself.
        temperature: at which it was drawn.
        category: of its prompt, where that has one.
        held_out: its prompt is for measuring only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    prompt: tuple[int, ...] = Field(min_length=1)
    answer: tuple[int, ...]
    temperature: float
    category: str = ""
    held_out: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer


class Folder:
    """A folder of answers, open for more.

    Args:
        path: made if need be.
        source: of the answers that will be added.

    Raises:
        BadOption: it holds answers of another source.
    """

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        about = path / _SOURCE
        if about.exists():
            _same(read_source(path), source, path)
        else:
            work = about.with_suffix(".tmp")
            work.write_text(source.model_dump_json(indent=2) + "\n", encoding="utf-8")
            work.rename(about)
        file = path / _ANSWERS
        file.touch()
        with file.open("rb+") as opened:  # drop a line that was broken off
            whole = opened.read()
            opened.truncate(whole.rfind(b"\n") + 1)
        self.done = {answer.number for answer in _lines(file)}

    def add(self, answers: Iterable[Answer]) -> None:
        """Append answers; they are on the disk when this returns."""
        with (self.path / _ANSWERS).open("a", encoding="utf-8") as opened:
            for answer in answers:
                opened.write(answer.model_dump_json() + "\n")
                self.done.add(answer.number)
            opened.flush()
            os.fsync(opened.fileno())


def read_source(path: Path) -> Source:
    """Whose answers a folder holds.

    Raises:
        BadOption: it holds none.
    """
    try:
        return Source.model_validate_json((path / _SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadOption(
            f"{path} holds no answers to train on (no {_SOURCE} that can be read): make them with 'outrider data'."
        ) from error


def read_answers(path: Path, vocabulary: int) -> list[Answer]:
    """The answers of a folder, in the order of their numbers.

    Args:
        path: of the folder.
        vocabulary: ids lie below it.

    Raises:
        BadOption: there are none, or one that cannot be used.
    """
    file = path / _ANSWERS
    found = sorted(_lines(file), key=lambda answer: answer.number) if file.is_file() else []
    if not any(answer.answer for answer in found):
        raise BadOption(f"{path} holds no answers: make some with 'outrider data' first.")
    for answer in found:
        if not all(0 <= token < vocabulary for token in answer.ids):
            raise BadOption(
                f"Answer {answer.number} in {file} has ids outside the target's vocabulary of {vocabulary}, so it is "
                "from another tokenizer: make the data with this target."
            )
    return found


def held_out(prompt: Sequence[int], seed: int, share: float) -> bool:
    """Whether a prompt is for measuring only; decided by the prompt itself, so that its samples stay together."""
    digest = hashlib.sha256(f"{seed} {','.join(map(str, prompt))}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _lines(file: Path) -> list[Answer]:
    if file.stat().st_size > _LARGEST:
        raise BadOption(f"{file} is larger than {_LARGEST >> 30} GiB: train on a part of it.")
    found = []
    with file.open(encoding="utf-8") as opened:
        for number, line in enumerate(opened, 1):
            if not line.endswith("\n"):
                break
            try:
                found.append(Answer.model_validate_json(line))
            except ValidationError as error:
                raise BadOption(f"Line {number} of {file} is no answer: drop it, or make the data anew.") from error
    return found


def _same(there: Source, given: Source, path: Path) -> None:
    mine, theirs = json.loads(there.model_dump_json()), json.loads(given.model_dump_json())
    for name, value in mine.items():
        if name == "target":
            there.target.check(given.target, path)
        elif theirs[name] != value:
            raise BadOption(
                f"{path} was begun with {name} {value} and is now given {theirs[name]}: continue it with the same, or "
                "name another folder."
            )
