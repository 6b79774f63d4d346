"""The documentation as a site: it builds strictly, its claims about messages hold, and public names are documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pages
import pytest

import outrider as library

SOURCES = pages.REPOSITORY / "src" / "outrider"
REFERENCE = "".join(path.read_text() for path in sorted((pages.DOCS / "reference").glob("*.md")))


def test_it_builds(tmp_path: Path) -> None:
    """No dead link, no anchor that is not there, no page outside the navigation, no name that cannot be found."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=pages.REPOSITORY, capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "doc-heading" in (tmp_path / "site" / "reference" / "library" / "index.html").read_text()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_from_outside_of_the_site(name: str) -> None:
    """Links and file names in the pages that the site's own check does not see."""
    text = (pages.REPOSITORY / name).read_text()
    named = re.findall(r"\]\((?!https?:)([^)#]+)", text) + re.findall(r"`((?:docs|tests|bench)/[\w./-]+)`", text)
    assert [path for path in named if not (pages.REPOSITORY / path).exists()] == []


def test_completion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/commands.md: a shell asks what comes after `outrider do`."""
    monkeypatch.setenv("_OUTRIDER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "outrider do")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr(sys, "argv", ["outrider"])
    with pytest.raises(SystemExit):
        pages.cli.main()
    assert capsys.readouterr().out.split() == ["doctor"]


def messages() -> Iterator[str]:
    """Every string that the code could put into a message, with holes for what is filled in."""
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                yield "".join(map(str, parts))


def test_troubleshooting_quotes_real_messages() -> None:
    """Every term of its lists is a piece of a message that the code has."""
    text, known = (pages.DOCS / "troubleshooting.md").read_text(), list(messages())
    terms = [
        term for line in re.findall(r"^(`.*)\n:   ", text, re.MULTILINE) for term in re.findall(r"`([^`]+)`", line)
    ]
    assert len(terms) > 50
    assert [term for term in terms if not any(term in message for message in known)] == []


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module defines under names without an underscore, and the members of its classes likewise."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    yield f"{module.__name__}.{name}.{member}", getattr(thing, member)


def test_every_public_name_has_a_docstring() -> None:
    """In all rooms: modules, classes, functions, methods and properties."""
    lacking = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__")
        if name == "outrider.__main__":
            continue
        module = importlib.import_module(name)
        found = [(name, module), *public(module)]
        lacking += [where for where, thing in found if not (thing.__doc__ or "").strip() or generated(thing)]
    assert lacking == []


def generated(thing: Any) -> bool:
    """Whether a docstring is what `dataclass` or `NamedTuple` put there: the signature alone."""
    return inspect.isclass(thing) and str(thing.__doc__).startswith((f"{thing.__name__}(", "Alias for"))


def test_parameters_of_the_library_are_documented() -> None:
    """Each parameter and attribute of what `import outrider` offers stands in its docstring, by name."""
    lacking = []
    for name in library.__all__:
        thing = getattr(library, name)
        taken = (
            getattr(thing, "__dataclass_fields__", {})
            if inspect.isclass(thing)
            else inspect.signature(thing).parameters
        )
        kinds = thing.__mro__ if inspect.isclass(thing) else (thing,)
        text = " ".join(kind.__doc__ or "" for kind in kinds if kind is not object)
        lacking += [f"{name}: {one}" for one in taken if not re.search(rf"\b{one}\b", text)]
    assert lacking == []


def test_the_reference_has_every_public_name() -> None:
    assert [name for name in library.__all__ if f"::: outrider.{name}\n" not in REFERENCE] == []
