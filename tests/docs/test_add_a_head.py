"""docs/add-a-head.md: its method, trained from the page and drafting."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pages
import pytest
import tiny

from outrider.drafters import DRAFTERS
from outrider.train.methods import METHODS


@pytest.mark.slow
def test_it_trains_and_drafts(
    outrider: Any, tmp_path: Path, demo_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, two steps, a folder; then it drafts from that, and the text is plain decoding's."""
    (method,) = [block for block in pages.blocks("docs/add-a-head.md") if block.name == "rnn"]
    (tmp_path / "rnn.py").write_text(method.text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(DRAFTERS, "rnn", None)  # type: ignore[arg-type]  # put back afterwards
    monkeypatch.setitem(METHODS, "rnn", None)  # type: ignore[arg-type]
    __import__("rnn")
    try:
        target = tiny.save(tmp_path / "target", demo_tokenizer, eos_token_id=2)
        where = ["--target", str(target), "--offline", "--dtype", "float32"]
        few = ["--max-new-tokens", "12", "--held-out", "0.3", "--limit", "8"]
        data, out = str(tmp_path / "data"), str(tmp_path / "rnn-head")
        assert outrider("data", *where, "--prompts", "builtin", "--out", data, *few)[0] == 0
        short = ["--steps", "2", "--evaluate-every", "2", "--draft-vocab", "64", "--batch-tokens", "400"]
        code, said, err = outrider(
            "train", "rnn", *where, "--data", data, "--out", out, *short, "--longest", "400", "--json"
        )
        assert code == 0, err
        assert [point["step"] for point in json.loads(said)["curve"]] == [2]
        found = []
        for drafter in (f"rnn:{out}", "none"):
            asked = ["--drafter", drafter, "--prompt", "Once upon a time", "--max-new-tokens", "12", "--json"]
            policy = ["--policy", "fixed:3,6"] if drafter != "none" else []
            code, said, err = outrider("generate", *where, *asked, *policy)
            assert code == 0, err
            found.append(json.loads(said)["outputs"][0])
        assert found[0]["stats"]["drafted"] > 0
        assert found[0]["token_ids"] == found[1]["token_ids"]
    finally:
        del sys.modules["rnn"]
