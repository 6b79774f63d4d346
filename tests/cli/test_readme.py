"""What the README shows, run as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from outrider import cli

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS: list[str] = re.findall(r"^outrider .*$", README, re.MULTILINE)


def test_there_is_something_to_run() -> None:
    assert len(PYTHON) == 1
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("code", PYTHON)
def test_python(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.jsonl").write_text('{"prompt": "Once upon a time"}\n')
    # The README leaves lengths at their defaults where that reads better; here 16 tokens will do.
    words = shlex.split(command)
    if words[1] == "generate" and "--max-new-tokens" not in words:
        words += ["--max-new-tokens", "16"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert capsys.readouterr().out
