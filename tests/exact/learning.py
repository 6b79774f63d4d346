"""What the tests of training share: a tiny target with a tokenizer, and answers to train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import torch
from loaded import read_model
from test_refusals import WORDS, tokenizer

from outrider.commands.settings import Settings
from outrider.drafters.trained import identify
from outrider.target import TransformersTarget
from outrider.train.answers import Answer, Folder, Source

TEMPLATE = (
    "{% for m in messages %}[user] {{ m.content }} [end]{% endfor %}{% if add_generation_prompt %} [model]{% endif %}"
)


def tiny(folder: Path, family: str = "llama", **options: Any) -> Path:
    """A tiny random target with a tokenizer, saved."""
    families.make(family, **options).save_pretrained(folder)
    words = tokenizer(WORDS)
    words.save_pretrained(folder)
    return folder


def answers(model: Any, path: Path, count: int, length: int, *, template: str | None = None) -> Path:
    """A folder of answers, as short greedy texts of the model; the last prompt of four is held out."""
    target = TransformersTarget(model)
    source = Source(
        target=identify(target, "tiny"),
        template=template,
        seed=0,
        temperatures=(0.0,),
        max_new_tokens=length,
        held_out=0.25,
        prompts="made by the tests",
    )
    folder = Folder(path, source)
    for number, prompt in enumerate(families.prompts(*([6, 9, 4] * count)[:count], seed=11)):
        ids = torch.tensor([prompt])
        for _ in range(length):
            with torch.no_grad():
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        answer = tuple(ids[0, len(prompt) :].tolist())
        about = {"number": number, "temperature": 0.0, "held_out": number % 4 == 3, "category": str(number % 2)}
        folder.add([Answer(prompt=tuple(prompt), answer=answer, **about)])
    return path


def answered(folder: Path, count: int, length: int) -> tuple[Path, Path]:
    """A saved tiny target, and a folder of its answers."""
    target = tiny(folder / "target")
    return target, answers(read_model(target), folder / "data", count, length)


def settings(target: Path, *, fast: bool = False) -> Settings:
    """How a saved target is loaded for training."""
    return Settings(str(target), "none", "match", None, "float32", "cpu", True, False, fast)


def lines(path: Path) -> list[dict[str, Any]]:
    """The answers of a folder as they lie there."""
    return [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
