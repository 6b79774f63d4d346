"""What README and documentation show, run as it stands there."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
import tiny
from pages import DOCS, PAGES, REPOSITORY, Reader

from outrider import cli, loading
from outrider.drafters import DRAFTERS
from outrider.measure import machine
from outrider.train.methods import METHODS
from outrider.verify import VERIFIERS

CHATS = (
    "Name three rivers.", "Count to four.", "What is a cup?", "Say yes.", "Who sings?", "Why is the sky blue?",
    "Name a colour.", "What is rain?",
)  # fmt: skip
WITH_BLOCKS = [page for page in PAGES if page != "README.md" and pages.blocks(page)]  # README: test_readme.py
NEVER_RUN = {"text", "toml", "json"}  # shown to be read; the latter two have to be well-formed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """The folder in which the pages' reader sits: two tiny models with a real tokenizer, and files of texts."""
    folder = tmp_path_factory.mktemp("reader")
    tiny.save(folder / "my-model", demo_tokenizer, eos_token_id=2)
    tiny.save(folder / "small", demo_tokenizer, eos_token_id=2, num_hidden_layers=1)
    lines = [json.dumps({"prompt": f"{chat} {chat}"}) for chat in CHATS]
    (folder / "mine.jsonl").write_text("\n".join(lines))
    chats = [json.dumps({"messages": [{"role": "user", "content": chat}]}) for chat in CHATS]
    (folder / "questions.jsonl").write_text("\n".join(chats))
    (folder / "draft.txt").write_text("This is what I expect.")
    (folder / "handbook.txt").write_text("Chapter 1: how to begin. Chapter 2: how to end.")
    return folder


@pytest.fixture
def reader(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    """A reader with a fresh copy of that folder; what pages add to the house is gone afterwards."""
    folder = tmp_path / "reader"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path, str(REPOSITORY / "tests" / "exact")])
    tables = (DRAFTERS, VERIFIERS, METHODS)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    yield Reader(monkeypatch, capsys)
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)  # type: ignore[arg-type]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_a_page(page: str, reader: Reader, world: Path, demo_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tiny models, the one called "demo" among them; their tokenizer is read once, and no memory is copied."""
    monkeypatch.setattr(machine, "bandwidth", lambda device, repeats=1: 1e10)
    monkeypatch.setattr(loading, "demo_folder", lambda: world / "my-model")
    monkeypatch.setattr(loading.Loader, "_read_tokenizer", lambda self, name, folder: demo_tokenizer)
    reader.follow(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_a_page_on_the_demo_model(page: str, reader: Reader) -> None:
    """On the real one, what is marked slow included."""
    reader.slow = True
    reader.follow(page)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_says_why_and_is_well_formed(page: str) -> None:
    """Commands that are not run have options that there are; other languages are marked or can be read."""
    for block in pages.blocks(page):
        assert block.language, f"{page}: a block without a language\n{block.text}"
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language not in ("python", "bash", *NEVER_RUN):
            assert block.mark == "not run", f"{page}: say why this is not run\n{block.text}"
        if block.mark == "not run":
            assert len(block.why) > 15
        for command in block.commands:
            if command.startswith("outrider "):
                check_options(page, command)
            else:
                assert block.mark == "not run", f"{page}: the tests run only `outrider`: {command}"
    for command in pages.inline_commands(page):
        check_options(page, command)


def check_options(page: str, command: str) -> None:
    """That there is this command and that it has these options."""
    words, _ = pages.words_of(command, less=False)
    if words[1].startswith("-"):
        return
    assert words[1] in pages.COMMANDS, f"{page}: there is no {command}"
    known = {name for option in pages.COMMANDS[words[1]].params for name in (*option.opts, *option.secondary_opts)}
    used = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
    assert used <= known | {"--help"}, f"{page}: {command}"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_outside_of_a_block(page: str) -> None:
    """Indented lines are formulas; commands stand in fences, where they are run."""
    starts = ("    outrider ", "    python ", "    pip ", "    make ")
    assert not [line for line in pages.prose(page).splitlines() if line.startswith(starts)]


def test_every_command_has_its_line() -> None:
    """docs/commands.md, and nothing that there is not."""
    text = (DOCS / "commands.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `outrider ")]
    listed = [name.removeprefix("outrider ") for row in rows for name in re.findall("`([^`]+)`", row)]
    assert sorted(listed) == sorted(pages.COMMANDS)


def test_every_drafter_has_its_page() -> None:
    """With when, memory, training and restrictions."""
    found = {path.stem: path.read_text() for path in (DOCS / "methods").glob("*.md") if path.stem != "index"}
    named = {name for text in found.values() for name in text.splitlines()[0].removeprefix("# ").split(" and ")}
    assert named == DRAFTERS.keys() - {"none"}
    for name, text in found.items():
        for heading in ("## When", "## Memory", "## Training", "## Restrictions"):
            assert f"\n{heading}\n" in text, f"{name} lacks {heading}"


def test_the_version() -> None:
    """One version, in the package, the project file and the citation."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == cli.__version__
    assert f"version: {cli.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()
    assert cli.__version__ in (REPOSITORY / "CHANGELOG.md").read_text()
