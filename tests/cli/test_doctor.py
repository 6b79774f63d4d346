"""`outrider doctor`: what is there, what is missing for which feature, and what would help."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from outrider.measure import environment, machine
from outrider.native import build

REPOSITORY = Path(__file__).parents[2]
FOUND = {
    "machine": {"load_average": (0.1, 0, 0), "cores": 2, "governor": None},
    "kernels": {"available": True, "reason": None},
    "cache": {"writable": True, "folder": "/there"},
}


def test_the_document(outrider: Any) -> None:
    """Processor, memory, a copy's speed, kernels, cache and extras."""
    code, out, _ = outrider("doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["machine"]["cores"] >= 1 and found["machine"]["torch"]
    (cpu, *_) = found["devices"]
    assert cpu["device"] == "cpu" and cpu["memory"] > 1 << 30 and 1e8 < cpu["bandwidth"] < 1e12
    assert found["kernels"]["available"] == (found["kernels"]["reason"] is None)
    assert found["cache"]["free"] > 0
    assert {one["extra"] for one in found["features"]} <= environment.FEATURES.keys()


def test_people_see_it_too(outrider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = environment.Feature("serve", "outrider serve", ("fastapi>=0.135",))
    monkeypatch.setattr(environment, "features", lambda: [feature])
    monkeypatch.setattr(machine, "bandwidth", lambda device, repeats: 28e9)
    code, out, _ = outrider("doctor")
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    for said in ("28.0 GB/s", "CPU kernels", "fastapi>=0.135", "outrider serve", "pip install"):
        assert said in words


def test_every_extra_says_what_it_is_for() -> None:
    """Those for people who change Outrider apart."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert declared.keys() - {"dev", "docs"} == environment.FEATURES.keys()


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and by version, through extras that name extras; what is met or always needed is not told."""
    requires = [
        "torch>=2.6",
        'gguf>=1; extra == "gguf"',
        'old>=2; extra == "gguf"',
        'outrider[gguf]; extra == "demo"',
        'torch>=2.6; extra == "demo"',
        'elsewhere>=1; extra == "demo" and python_version < "3"',
    ]
    versions = {"torch": "2.13.0+cpu", "old": "1.9"}
    about = importlib.metadata.metadata("outrider")
    monkeypatch.setattr(about.__class__, "get_all", lambda self, name: ["demo", "gguf", "dev"])
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: requires)

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    demo, gguf = environment.features()
    assert (demo.extra, demo.missing) == ("demo", ("gguf>=1", "old>=2"))
    assert (gguf.extra, gguf.remedy) == ("gguf", "pip install 'outrider[gguf]'")
    versions |= {"gguf": "1.0", "old": "2.0"}
    assert [(one.missing, one.remedy) for one in environment.features()] == [((), "")] * 2


def test_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that are run from their folder have no extras to speak of."""

    def nothing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "metadata", nothing)
    assert environment.features() == []


@pytest.mark.parametrize(
    ("room", "change", "says"),
    [
        ("kernels", {"available": False, "reason": "there is no C++ compiler"}, "no C++ compiler: install g"),
        ("cache", {"writable": False}, "OUTRIDER_CACHE"),
        ("machine", {"load_average": (1.5, 0, 0)}, "OMP_WAIT_POLICY=PASSIVE"),
        ("machine", {"governor": "powersave"}, "'powersave'"),
    ],
)
def test_advice(room: str, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert environment.advice(FOUND) == []
    (sentence,) = environment.advice(FOUND | {room: FOUND[room] | change})
    assert says in sentence


@pytest.mark.parametrize(("compiler", "says"), [("false", "cannot build"), (None, "no C++ compiler")])
def test_why_there_are_no_kernels(
    compiler: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that fails, and none: the library is not there, and it is said why."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compiler", lambda: compiler)
    library, reason = build._library.__wrapped__()
    assert library is None and says in reason


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/cpuinfo")
def test_instruction_sets() -> None:
    """Those that the processor has, and no others."""
    found = machine.instruction_sets()
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert found is not None and set(found) <= set(flags[0].split())


def test_only_what_matters_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "devices", list)
    monkeypatch.setattr(os, "environ", {"OUTRIDER_PORT": "1", "SECRET": "x", "OMP_NUM_THREADS": "2"})
    assert environment.survey()["environment"] == {"OMP_NUM_THREADS": "2", "OUTRIDER_PORT": "1"}
