"""What the README shows, run as it stands there on the real demo model."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest

PAGE = "README.md"


def test_there_is_something_to_run() -> None:
    runnable = [block for block in pages.blocks(PAGE) if not block.mark]
    assert [block.language for block in runnable] == ["python", "bash"]
    assert len(runnable[1].commands) == 4


@pytest.mark.parametrize("code", [block.text for block in pages.blocks(PAGE) if block.language == "python"])
def test_python(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, PAGE, "exec"), {})
    assert len(capsys.readouterr().out) > 20


@pytest.mark.parametrize(
    "command", [command for block in pages.blocks(PAGE) if not block.mark for command in block.commands]
)
def test_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.jsonl").write_text('{"prompt": "Once upon a time"}\n')
    pages.Reader(monkeypatch, capsys).run(command)
