"""Recorded answers, to be replayed: from JSONL, from documents of `outrider generate --json`, from folders of a bench.

Knows no models. Text needs a tokenizer; ids do not. What was written is taken as it stands, whatever model wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import BadOption
from ..prompt_files import prompt_of
from ..row import Request
from ..sampling import Sampling
from ..text import encode, encode_prediction
from ..types import FinishReason, Round, Tree

_LARGEST = 1 << 30  # bytes of a log
_FOLDER_FILE = "rounds.jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written after a prompt.

    Attributes:
        prompt, output: ids, at least one of each.
        finish: "stop" where an end of sequence or a stop string ended it, "length" where the budget did, None where
            nobody knows.
        limit: how many tokens it might have had; drafts are cut short before it.
        prediction: ids that the caller expected, for drafters that use them.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    finish: FinishReason | None = None
    limit: int | None = None
    prediction: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """The id that ended it, if one did that is nowhere else in it."""
        *before, last = self.output
        return (last,) if self.finish == "stop" and last not in before else ()

    def request(self) -> Request:
        """To be written again."""
        limit = max(self.limit or 0, len(self.output)) if self.ends else len(self.output)
        return Request(self.prompt, Sampling(), 0, limit, prediction=self.prediction)


@dataclass(frozen=True, slots=True)
class Log:
    """Answers in the order in which they were written.

    Attributes:
        answers: at least one.
        together: how many were served together, where the log says so; else 1.
    """

    answers: tuple[Answer, ...]
    together: int = 1

    @property
    def vocabulary(self) -> int:
        """One more than the highest id."""
        return 1 + max(max(*answer.prompt, *answer.output, *answer.prediction) for answer in self.answers)


def read_log(path: Path, tokenizer: Any = None) -> Log:
    """The answers of a file or of a bench's folder.

    Args:
        path: JSONL with a line for each answer: "prompt" (text), "messages" or "prompt_ids", and "output" (text) or
            "output_ids", "token_ids" or "ids"; if wanted "finish_reason", "max_new_tokens" and "prediction". Or one
            document of `outrider generate --json`. Or the folder of a bench.
        tokenizer: for text.

    Raises:
        BadOption: it cannot be read, or has no answers; with the remedy.
    """
    if path.is_dir():
        return Log(_distinct(_records(path / _FOLDER_FILE), tokenizer, _limit(path)))
    document = _document(path)
    if document is None:
        return Log(_distinct(_records(path), tokenizer))
    outputs = document.get("outputs")
    if not isinstance(outputs, list):
        raise BadOption(f'{path} has no "outputs": give a document of outrider generate --json, or JSONL.')
    shared = {"max_new_tokens": document.get("max_new_tokens")}
    told = [({**shared, **output}, f"{path}, output {n}") for n, output in enumerate(outputs, 1) if output]
    answers = tuple(_answer(record, where, tokenizer) for record, where in told if record.get("token_ids"))
    if not answers:
        raise BadOption(f"{path} has no answers: nothing can be replayed.")
    together = document.get("batch")
    return Log(answers, together if isinstance(together, int) and together > 0 else 1)


def read_rounds(path: Path) -> list[list[Round]]:
    """The rounds of each answer in a recorded trace.

    Args:
        path: a document of `outrider generate --json --trace`, or the folder of a bench.

    Raises:
        BadOption: it cannot be read, or has no rounds.
    """
    if path.is_dir():
        holders = [record for record, _ in _records(path / _FOLDER_FILE)]
    else:
        outputs = (_document(path) or {}).get("outputs")
        holders = outputs if isinstance(outputs, list) else []
    told = [holder["rounds"] for holder in holders if isinstance(holder, dict) and "rounds" in holder]
    if not any(isinstance(rounds, list) and rounds for rounds in told):
        raise BadOption(f"{path} has no rounds: record them with outrider generate --trace --json.")
    try:
        return [[_round(record) for record in rounds] for rounds in told]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"{path} has a round that is none: record it with outrider generate --trace --json.") from error


def _round(record: dict[str, Any]) -> Round:
    """What `trace.as_json` wrote. The pending token is not recorded; 0 stands for it."""
    return Round(
        request=record["request"],
        number=record["round"],
        start=record["start"],
        tree=Tree(torch.tensor([0, *record["draft_tokens"]]), torch.tensor([-1, *record["draft_parents"]])),
        path=tuple(record["path"]),
        tokens=tuple(record["tokens"]),
        finish=record["finish"],
        draft_seconds=record["draft_seconds"],
        verify_seconds=record["verify_seconds"],
    )


def _text(path: Path) -> str:
    if not path.is_file():
        raise BadOption(f"There is no file {path}: check the path.")
    if path.stat().st_size > _LARGEST:
        raise BadOption(f"{path} is larger than {_LARGEST >> 30} GiB: split it.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadOption(f"{path} is not UTF-8 text: convert it first.") from error


def _document(path: Path) -> dict[str, Any] | None:
    """The file as one JSON object, or None where it is lines of them."""
    found = _object(path)
    return found if found is not None and ("outputs" in found or "\n" in _text(path).strip()) else None


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(_text(path))
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _records(path: Path) -> Iterator[tuple[Any, str]]:
    lines = _text(path).split("\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield json.loads(line), where
            except json.JSONDecodeError as error:
                if path.name == _FOLDER_FILE and number == len(lines):
                    return  # a bench was broken off while it wrote this
                raise BadOption(f"{where} is no JSON: write one object per line.") from error


def _limit(folder: Path) -> int | None:
    """How many tokens the answers of a bench might have had, where its manifest says so."""
    path = folder / "manifest.json"
    manifest = _object(path) if path.is_file() else None
    plan = (manifest or {}).get("plan")
    limit = plan.get("max_new_tokens") if isinstance(plan, dict) else None
    return limit if isinstance(limit, int) else None


def _distinct(records: Iterator[tuple[Any, str]], tokenizer: Any, limit: int | None = None) -> tuple[Answer, ...]:
    """Each answer once: a bench has the same one from every drafter."""
    told = (_answer(record, where, tokenizer) for record, where in records)
    found = tuple(dict.fromkeys(replace(answer, limit=answer.limit or limit) for answer in told))
    if not found:
        raise BadOption("The log has no answers: put one on each line.")
    return found


def _answer(record: Any, where: str, tokenizer: Any) -> Answer:
    if not isinstance(record, dict):
        raise BadOption(f"{where} is no object: write one with a prompt and an output.")
    finish = record.get("finish_reason")
    output = _output(record, where, tokenizer)
    if isinstance(record.get("rounds"), list) and record["rounds"] and finish is None:
        finish = record["rounds"][-1].get("finish")
    limit = record.get("max_new_tokens")
    prediction = record.get("prediction")
    return Answer(
        _prompt(record, where, tokenizer),
        output,
        finish if finish in ("stop", "length") else None,
        limit if isinstance(limit, int) else None,
        encode_prediction(tokenizer, prediction) if prediction else (),
    )


def _prompt(record: dict[str, Any], where: str, tokenizer: Any) -> tuple[int, ...]:
    ids = _ids(record.get("prompt_ids"))
    if ids:
        return ids
    if not any(name in record and not isinstance(record[name], int) for name in ("prompt", "messages")):
        raise BadOption(f'{where} has no prompt: give "prompt" (text), "messages" or "prompt_ids".')
    _needs_tokenizer(tokenizer, where)
    return tuple(encode(tokenizer, prompt_of(record, where)))


def _output(record: dict[str, Any], where: str, tokenizer: Any) -> tuple[int, ...]:
    for name in ("output_ids", "token_ids", "ids"):
        ids = _ids(record.get(name))
        if ids:
            return ids
    if isinstance(record.get("rounds"), list):
        ids = tuple(token for round_ in record["rounds"] for token in round_.get("tokens", ()))
        if ids:
            return ids
    text = record.get("output")
    if not isinstance(text, str) or not text:
        raise BadOption(f'{where} has no output: give "output" (text) or "output_ids".')
    _needs_tokenizer(tokenizer, where)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _ids(value: Any) -> tuple[int, ...]:
    known = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(value) if known and all(isinstance(token, int) and token >= 0 for token in value) else ()


def _needs_tokenizer(tokenizer: Any, where: str) -> None:
    if tokenizer is None:
        raise BadOption(f"{where} is text, which needs a tokenizer: name the model with --tokenizer.")
