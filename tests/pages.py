"""Pages of the documentation: their blocks of code and commands, and what it takes to run them as they stand there.

A block is run by the tests, top to bottom with those before it on its page, unless the comment above it says otherwise:
`<!-- not run: why -->`, or `<!-- slow: why -->`, which leaves it to `make slow`.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from outrider import cli

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PAGES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "README.md", *DOCS.rglob("*.md")))
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]

_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (not run|slow): (.+?) -->\s*\Z", re.DOTALL)
_NAMED = re.compile(r"in a file `(\w+)\.py`")
# Where a page leaves lengths and counts at their defaults, which reads better, the tests say less of everything.
_LESS: dict[str, dict[str, tuple[str, ...]]] = {
    "generate": {"--max-new-tokens": ("8",)},
    "demo": {"--max-new-tokens": ("8",)},
    "bench": {"--max-new-tokens": ("6",), "--repeats": ("1",), "--per-category": ("1",), "--limit": ("2",)},
    "prove": {"--quick": (), "--max-new-tokens": ("12",)},
    "tune": {"--max-new-tokens": ("8",), "--limit": ("8",), "--validate": ("1",)},
    "data": {"--max-new-tokens": ("12",), "--held-out": ("0.3",), "--limit": ("8",)},
    "train": {
        "--steps": ("2",), "--evaluate-every": ("2",), "--batch-tokens": ("200",), "--measured-prompts": ("2",),
        "--draft-vocab": ("64",),
    },
    "costs": {"--widths": ("1,2,4,8",), "--repeats": ("1",), "--contexts": ("32",)},
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: behind the opening fence.
        text: what it holds.
        mark: "not run", "slow", or empty.
        why: what the mark says.
        name: of the module that it is, where the text before says "in a file `name.py`".
    """

    language: str
    text: str
    mark: str = ""
    why: str = ""
    name: str = ""

    @property
    def commands(self) -> list[str]:
        """Its command lines, continued ones joined, without remarks."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "bash" else []
        return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text, found, last = (REPOSITORY / page).read_text(), [], 0
    for match in _BLOCK.finditer(text):
        before = text[last : match.start()]
        mark, named = _MARK.search(before), _NAMED.findall(before)
        said = (mark[1], " ".join(mark[2].split())) if mark else ("", "")
        found.append(Block(match[1], match[2], *said, named[-1] if named and match[1] == "python" else ""))
        last = match.end()
    return found


def prose(page: str) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", (REPOSITORY / page).read_text())


def words_of(command: str, *, less: bool) -> tuple[list[str], str | None]:
    """A command as a shell would hand it on, and the file that its output goes to.

    Args:
        command: begins with `outrider`.
        less: whether to add what makes it short.
    """
    words = shlex.split(command)
    file = words[words.index(">") + 1] if ">" in words else None
    words = words[: words.index(">")] if file else words
    for option, value in _LESS.get(words[1], {}).items() if less else ():
        settled = option == "--draft-vocab" and "--start-from" in words  # it is the earlier drafter's
        if option not in words and not settled:
            words += [option, *value]
    return words, file


@dataclass
class Reader:
    """Somebody who follows a page, in the current folder.

    Attributes:
        monkeypatch, capsys: pytest's.
        slow: whether blocks that are marked so are run too.
        less: whether commands are made short.
    """

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    slow: bool = False
    less: bool = True

    def follow(self, page: str) -> int:
        """Run what there is to run; gives how many blocks that was."""
        names: dict[str, Any] = {"__name__": page}
        wanted = [block for block in blocks(page) if not block.mark or (self.slow and block.mark == "slow")]
        runnable = [block for block in wanted if block.language in ("python", "bash")]
        for block in runnable:
            if block.name:
                Path(f"{block.name}.py").write_text(block.text)
                importlib.invalidate_caches()
                importlib.import_module(block.name)
            elif block.language == "python":
                exec(compile(block.text, page, "exec"), names)
            for command in block.commands:
                self.run(command)
        return len(runnable)

    def run(self, command: str) -> None:
        """One command line; it has to end well and say something."""
        words, file = words_of(command, less=self.less)
        self.monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self.capsys.readouterr()
        assert not ended.value.code, f"{command}\n{out}\n{err}"
        assert out or "--out" in words, command
        if file:
            Path(file).write_text(out)


def inline_commands(page: str) -> Iterator[str]:
    """Commands with options that the text names in passing."""
    for found in re.findall(r"`(outrider [a-z]+ [^`]*--[^`]*)`", prose(page).replace("\n", " ")):
        if "..." not in found and "[" not in found:
            yield found
