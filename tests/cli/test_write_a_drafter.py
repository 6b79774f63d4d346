"""docs/write-a-drafter.md: its drafter, run from the page."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import cli

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-drafter.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(COMMAND,) = re.findall(r"^outrider .*$", PAGE, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's file, which is the current one."""
    (tmp_path / "bigrams.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("bigrams", None)


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_it_is_short() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 40


def test_the_command(folder: Path, demo: Callable[..., Any], monkeypatch: Any, capsys: Any) -> None:
    """It drafts, some of it is accepted, and the text is that of plain decoding."""
    code, out, err = run(COMMAND + " --max-new-tokens 24 --json", monkeypatch, capsys)
    assert code == 0, err
    document = json.loads(out)
    (output,) = document["outputs"]
    assert document["configuration"]["drafter"] == "bigrams"
    assert output["stats"]["accepted"] > 0
    prompt = shlex.split(COMMAND)[shlex.split(COMMAND).index("--prompt") + 1]
    assert output["token_ids"] == demo("none").generate(prompt, max_new_tokens=24).token_ids


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bigrams:Trigrams", "cannot be imported"),
        ("bigrams:Text", "is no drafter"),
        ("begrams:Bigrams", "no drafter 'begrams'"),
        ("bigrams", "no drafter 'bigrams'"),
    ],
)
def test_misspelt(folder: Path, spec: str, says: str, monkeypatch: Any, capsys: Any) -> None:
    """One sentence, before anything is loaded."""
    code, out, err = run(f"outrider generate --prompt x --drafter {spec}", monkeypatch, capsys)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
