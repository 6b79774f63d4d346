"""The wheel: what is in it, and that it works in clean environments, without extras and with each of them.

Takes minutes and a package index: an environment with the library alone, and one for each extra on top of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny

REPOSITORY = Path(__file__).parents[2]
EXTRAS = [
    extra
    for extra in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if extra != "dev"  # all of them, and what people who change Outrider need
]
# What has to run where an extra is there: Python's arguments.
WORKS: dict[str, Sequence[str]] = {
    "demo": ("-m", "outrider", "demo", "--max-new-tokens", "8", "--json"),
    "gguf": ("-c", "import gguf, accelerate"),
    "serve": ("-c", "import outrider.serve.app, outrider.serve.service"),
    "grammar": ("-c", "import outrider.grammar, llguidance"),
    "audio": ("-c", "import outrider.audio, av"),
    "train": ("-c", "import outrider.train.loop"),
    "report": ("-c", "import jinja2, matplotlib"),
    "datasets": ("-c", "import datasets"),
    "endpoint": ("-c", "import outrider.measure.endpoint, httpx2"),
    "ray": ("-c", "import outrider.cluster, ray"),
    "docs": ("-m", "mkdocs", "--version"),
}
pytestmark = pytest.mark.slow


def run(words: Sequence[object], *, code: int = 0, timeout: float = 1800) -> str:
    """A process without this checkout in its way; its standard output, or of a failure both."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        [str(word) for word in words],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that nothing else can slip in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = run(["git", "-C", REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z"])
    for name in filter(None, tracked.split("\0")):
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source])
    (built,) = out.glob("*.whl")
    return built


def install(folder: Path, wheel: Path, extra: str = "") -> Path:
    """Install the wheel into an environment; gives its Python."""
    python = folder / "bin" / "python"
    what = f"outrider[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run([python, "-m", "pip", "install", "--quiet", "--constraint", REPOSITORY / "constraints.txt", what])
    return python


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the library and nothing else."""
    folder = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(folder, with_pip=True)
    return install(folder, wheel)


@pytest.fixture
def beside(alone: Path, wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """`beside(extra)`: the Python of a fresh environment that sees the library's packages, with an extra's own. The
    command itself is in the other one only, so it is `python -m outrider` here."""

    def make(extra: str) -> Path:
        folder = tmp_path / "venv"
        venv.create(folder, with_pip=True)
        where = run([alone, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "alone.pth").write_text(where)
        return install(folder, wheel, extra)

    return make


def missing(python: Path) -> dict[str, list[str]]:
    """What `outrider doctor` says is missing, by extra."""
    found = json.loads(run([python, "-m", "outrider", "doctor", "--json"]))
    return {feature["extra"]: feature["missing"] for feature in found["features"]}


def test_what_is_in_it(wheel: Path) -> None:
    """The type marker, the licence, and every file that is no module but is read at run time."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = REPOSITORY / "src" / "outrider"
    wanted = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {f"outrider/{path.relative_to(package).as_posix()}" for path in wanted} <= names
    assert "outrider/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_alone(alone: Path, tmp_path: Path, demo_tokenizer: Any) -> None:
    """It says its version, helps, writes an answer, and tells what is missing, with the remedy."""
    command = alone.with_name("outrider")
    assert run([command, "--version"]).startswith("outrider ")
    assert "generate" in run([command, "--help"])
    folder = tiny.save(tmp_path / "model", demo_tokenizer)
    words = ["generate", "--target", folder, "--prompt", "Once upon a time", "--max-new-tokens", "8", "--offline"]
    assert len(json.loads(run([command, *words, "--json"]))["outputs"][0]["token_ids"]) == 8
    assert missing(alone)["serve"] and missing(alone)["demo"]
    for words, remedy in (
        (["demo"], "pip install 'outrider[demo]'"),
        (["serve", "--target", folder], "pip install 'outrider[serve]'"),
        (["costs", "--target", folder, "--plot", tmp_path / "a.png"], "pip install 'outrider[report]'"),
    ):
        assert remedy in run([command, *words], code=2)


@pytest.mark.parametrize("extra", EXTRAS)
def test_with_an_extra(extra: str, beside: Callable[[str], Path]) -> None:
    """What it is for works, and `outrider doctor` misses nothing of it."""
    python = beside(extra)
    assert missing(python).get(extra, []) == []
    run([python, *WORKS[extra]])
