"""Draft models are read once while they are in use, and go where they are told to."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import families
import pytest
from test_refusals import WORDS, saved, tokenizer

import outrider
from outrider.drafters.model import ModelDrafter
from outrider.loading import Loader


def test_rounded_alone(tmp_path: Path) -> None:
    """The draft model in int8 beside a target in float32: the target's own text, and another build of the drafter."""
    name = saved(tmp_path / "small", families.make("llama"), WORDS)
    options: dict[str, Any] = {"tokenizer": tokenizer(WORDS), "policy": "fixed:5"}
    llm = outrider.load(families.make("llama"), f"model:{name}", draft_quantize="int8", **options)
    assert isinstance(llm.drafter, ModelDrafter)
    assert llm.drafter._model.pass_bytes < llm.target.pass_bytes
    (prompt,) = families.prompts(9)
    output = llm.generate(prompt, max_new_tokens=20)
    assert output.token_ids == llm.using("none").generate(prompt, max_new_tokens=20).token_ids
    assert output.stats.accepted > 0


def test_one_copy_while_it_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings share it; once no drafter holds it, it goes."""
    name = saved(tmp_path / "small", families.make("llama"), WORDS)
    loads: list[tuple[str, str | None]] = []
    load = Loader.load
    monkeypatch.setattr(Loader, "load", lambda self, which: loads.append((which, self.device)) or load(self, which))
    llm = outrider.load(families.make("llama"), f"model:{name}", tokenizer=tokenizer(WORDS), draft_device="cpu")
    other = llm.using(verifier="token")
    assert loads == [(name, "cpu")]
    (prompt,) = families.prompts(9)
    assert llm.generate(prompt, max_new_tokens=8).token_ids == other.generate(prompt, max_new_tokens=8).token_ids
    assert isinstance(llm.drafter, ModelDrafter)
    model = weakref.ref(llm.drafter._model)
    plain = llm.using(drafter="none")
    del llm, other
    gc.collect()
    assert model() is None
    plain.using(drafter=f"model:{name}")
    assert len(loads) == 2
