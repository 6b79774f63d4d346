"""docs/serving.md: its client beside a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pages
import pytest
import tiny

import outrider
from outrider.serve.server import serving


def test_the_client(tmp_path: Path, demo_tokenizer: Any) -> None:
    """OpenAI's own, as the page shows it, but for the port."""
    pytest.importorskip("openai")
    (client,) = [block for block in pages.blocks("docs/serving.md") if "from openai" in block.text]
    folder = tiny.save(tmp_path / "my-model", demo_tokenizer, eos_token_id=2)
    llm = outrider.load(str(folder), drafter="suffix", offline=True)
    with serving(llm, "my-model") as server:
        names: dict[str, Any] = {}
        code = client.text.replace("http://127.0.0.1:8000", server.url)
        assert code != client.text
        exec(compile(code.replace("seed=7", "seed=7, max_tokens=6"), "docs/serving.md", "exec"), names)
        names["client"].close()
    assert names["answer"].usage.completion_tokens == 6
