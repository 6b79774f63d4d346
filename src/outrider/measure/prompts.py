"""Prompts to measure on: our own, Spec-Bench's layout, files, data sets. Knows no models.

A prompt's text is never shown or logged; reports carry its id and its category.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import BadOption, BadPrompt, first_line
from ..prompt_files import prompt_of, read_lines, read_records
from ..text import Prompt

BUILTIN = "builtin"
CATEGORIES = ("chat", "code", "rewriting", "summarising", "translating", "maths", "retrieval")
_COLUMNS = ("messages", "prompt", "question", "instruction", "problem", "text")
_WHOLE = 2000  # prompts read of a data set at most, where no limit says otherwise


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        id: unique among those that are measured together.
        category: its kind.
        prompt: text to be continued, chat messages, or ids.
    """

    id: str
    category: str
    prompt: Prompt

    def fitted(self, tokenizer: Any) -> Prompt:
        """As this tokenizer can take it: without a chat template, a user's only message stands for itself."""
        if isinstance(self.prompt, str) or getattr(tokenizer, "chat_template", None) or len(self.prompt) != 1:
            return self.prompt
        (only,) = self.prompt
        return only["content"] if isinstance(only, dict) and isinstance(only.get("content"), str) else self.prompt


def read(
    spec: str, *, limit: int | None = None, per_category: int | None = None, offline: bool = False
) -> list[BenchPrompt]:
    """The prompts of a spec, in their order.

    Args:
        spec: "builtin" (our own, five of each of seven kinds), "spec_bench:FILE" (JSONL with "category" and "turns", of
            which the first is asked: the later ones need the answers to those before), "datasets:ID" (the train split
            of a data set of the Hugging Face hub or a folder; "datasets:ID:SPLIT" for another one), or a file: a prompt
            a line, or JSONL with "prompt" or "messages" and, if wanted, "id" and "category".
        limit: at most so many altogether.
        per_category: at most so many of each category.
        offline: never ask a hub.

    Raises:
        BadPrompt, BadOption: in one sentence, with the remedy.
    """
    kind, _, rest = spec.partition(":")
    found: Iterable[BenchPrompt]
    if spec == BUILTIN:
        with resources.as_file(resources.files("outrider") / "data" / "prompts.jsonl") as path:
            found = [_recorded(record, where, "own") for record, where in read_records(path)]
    elif kind == "spec_bench":
        found = _spec_bench(Path(rest))
    elif kind == "datasets":
        found = _dataset(rest, _WHOLE if per_category else limit or _WHOLE, offline)
    elif Path(spec).suffix == ".jsonl":
        found = [_recorded(record, where, Path(spec).stem) for record, where in read_records(Path(spec))]
    else:
        found = [BenchPrompt(str(n), Path(spec).stem, line) for n, line in enumerate(read_lines(Path(spec)), 1)]
    chosen = list(islice(_thinned(found, per_category), limit))
    twice = [name for name, count in Counter(prompt.id for prompt in chosen).items() if count > 1]
    if twice:
        raise BadPrompt(f"Two prompts of {spec} have the id {twice[0]!r}: give each its own.")
    return chosen


def digest(prompts: Sequence[BenchPrompt]) -> str:
    """A hash of prompts, ids and categories, so that two runs can tell whether they measured on the same."""
    texts = [[prompt.id, prompt.category, prompt.prompt] for prompt in prompts]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()


def _thinned(prompts: Iterable[BenchPrompt], per_category: int | None) -> Iterator[BenchPrompt]:
    counts: Counter[str] = Counter()
    for prompt in prompts:
        counts[prompt.category] += 1
        if per_category is None or counts[prompt.category] <= per_category:
            yield prompt


def _recorded(record: Any, where: str, category: str) -> BenchPrompt:
    """A prompt of a JSONL file; the number of its line is its id where it has none."""
    prompt = prompt_of(record, where)
    name = record.get("id", where.rpartition(" ")[2])
    kind = record.get("category", category)
    if not isinstance(name, str | int) or not isinstance(kind, str):
        raise BadPrompt(f'{where} has an "id" or a "category" that is no text: write them as strings.')
    return BenchPrompt(str(name), kind, prompt)


def _spec_bench(path: Path) -> list[BenchPrompt]:
    found = []
    for record, where in read_records(path):
        turns = record.get("turns") if isinstance(record, dict) else None
        if not (isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0].strip()):
            raise BadPrompt(f'{where} has no "turns" (a list of texts): give a file in the layout of Spec-Bench.')
        name, category = record.get("question_id", where.rpartition(" ")[2]), record.get("category", "spec_bench")
        found.append(BenchPrompt(str(name), str(category), [{"role": "user", "content": turns[0]}]))
    return found


def _dataset(name: str, most: int, offline: bool) -> list[BenchPrompt]:
    """The first rows of a data set; text columns count as a user's message."""
    if importlib.util.find_spec("datasets") is None:
        raise BadOption("Data sets take an extra that is not installed: pip install 'outrider[datasets]'.")
    import datasets

    source, split = (name, "train") if Path(name).exists() or ":" not in name else name.rsplit(":", 1)
    local = datasets.DownloadConfig(local_files_only=True) if offline else None
    try:
        rows = datasets.load_dataset(source, split=split, download_config=local)
    except Exception as error:  # the library raises whatever its readers, the hub and the network raise
        raise BadPrompt(
            f"The data set {name!r} cannot be read ({first_line(error)}): check its name and split."
        ) from error
    column = next((column for column in _COLUMNS if column in rows.column_names), None)
    if column is None:
        raise BadPrompt(f"The data set {name!r} has no column of prompts: it needs one of {', '.join(_COLUMNS)}.")
    has_category = "category" in rows.column_names
    found = []
    for place, row in enumerate(islice(rows, most)):
        value = row[column]
        prompt = value if column == "messages" else [{"role": "user", "content": str(value)}]
        if value:
            found.append(BenchPrompt(str(place), str(row["category"]) if has_category else source, prompt))
    return found
