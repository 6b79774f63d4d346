"""A target whose layers lie on disk and are read anew in every pass (Accelerate)."""

from __future__ import annotations

from pathlib import Path

import pytest
from loaded import Make

import outrider
from outrider.errors import BadOption

MAP = {
    "model.embed_tokens": "cpu",
    "model.layers": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def test_the_same_ids_from_disk(demo_folder: Path, demo_modules: Make) -> None:
    prompt = "One, two, three, one, two, three, one, two,"
    llm = outrider.load(str(demo_folder), "lookup", dtype="float32", device_map=MAP)
    assert llm.target.model.hf_device_map["model.layers"] == "disk"  # type: ignore[attr-defined]
    output = llm.generate(prompt, max_new_tokens=8)
    expected = demo_modules("none").generate(prompt, max_new_tokens=8)
    assert output.token_ids == expected.token_ids
    assert len(output.rounds) < len(expected.rounds)


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"fast": True}, {"quantize": "int8"}])
def test_what_does_not_go_together_is_refused(demo_folder: Path, other: dict[str, object]) -> None:
    with pytest.raises(BadOption, match="leave"):
        outrider.load(str(demo_folder), device_map="auto", **other)  # type: ignore[arg-type]
