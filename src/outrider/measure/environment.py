"""What this installation can do: devices, kernels, and which extra is missing for which feature. Loads no model.

Extras are those of the installed package's own metadata, so that what is missing is told by the requirements that pip
would be given.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from packaging.requirements import Requirement

from .. import native
from ..folders import cache_folder
from ..loading import native_dtype
from . import machine

FEATURES = {  # extra -> what it is for
    "demo": "the model 'demo'",
    "gguf": "GGUF files, and weights on several devices (device_map)",
    "serve": "outrider serve",
    "grammar": "JSON schemas in outrider serve",
    "train": "outrider train",
    "audio": "recordings, for targets that hear",
    "report": "HTML reports and plots",
    "datasets": "prompts of data sets",
    "ray": "several machines (data --ray, bench --ray)",
    "endpoint": "measuring servers (bench --endpoint)",
}
_BANDWIDTH_REPEATS = 5
_VARIABLES = ("CXX", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that an extra brings.

    Attributes:
        extra: its name.
        purpose: what it is for, in a few words.
        missing: requirements that are not met, as pip writes them.
    """

    extra: str
    purpose: str
    missing: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The command that brings it; empty if nothing is missing."""
        return f"pip install 'outrider[{self.extra}]'" if self.missing else ""


def features() -> list[Feature]:
    """What each extra of the installed version is for, and what of it is missing. Empty where nothing is installed,
    as when the sources are run from their folder."""
    try:
        known = importlib.metadata.metadata("outrider").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Feature(extra, purpose, tuple(dict.fromkeys(_missing("outrider", extra))))
        for extra, purpose in FEATURES.items()
        if extra in known
    ]


def _missing(package: str, extra: str) -> Iterator[str]:
    """Requirements of an extra that are not met, those of extras which it names included."""
    for text in importlib.metadata.requires(package) or ():
        wanted = Requirement(text)
        if wanted.marker is None or not wanted.marker.evaluate({"extra": extra}) or wanted.marker.evaluate():
            continue  # not of this extra, or of the package in any case
        if wanted.name == package:
            for other in wanted.extras:
                yield from _missing(package, other)
        elif not _met(wanted):
            yield f"{wanted.name}{wanted.specifier}"


def _met(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def devices() -> list[dict[str, Any]]:
    """Each device with its memory and the measured bytes per second of a copy there, and the dtype that weights have
    by default."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return [
        {
            "device": name,
            "memory": _memory(name),
            "bandwidth": machine.bandwidth(torch.device(name), _BANDWIDTH_REPEATS),
            "weights": str(native_dtype(name)).removeprefix("torch."),
        }
        for name in names
    ]


def _memory(device: str) -> int | None:
    """Bytes that there are; None where the system does not tell."""
    if device != "cpu":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if not hasattr(os, "sysconf"):
        return None
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def kernels() -> dict[str, Any]:
    """Whether the kernels of the lean decoder are there (they are built if need be), and what keeps them away."""
    return {"available": native.available(), "compiler": native.compiler(), "reason": native.why_not() or None}


def cache() -> dict[str, Any]:
    """Where converted models and kernels are kept, and how many bytes are free there."""
    folder = cache_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return {"folder": str(folder), "writable": os.access(there, os.W_OK), "free": shutil.disk_usage(there).free}


def advice(found: dict[str, Any]) -> list[str]:
    """What would make Outrider faster or more exact here, in sentences.

    Args:
        found: a document of `survey`.
    """
    about, notes = found["machine"], []
    if not found["kernels"]["available"]:
        notes.append(
            f"Outrider's CPU kernels are not there because {found['kernels']['reason']}: install g++ or clang, or name "
            "one with CXX. Without them models run on Transformers' modules, slower, and near ties may flip."
        )
    if not found["cache"]["writable"]:
        notes.append(
            f"The cache folder {found['cache']['folder']} cannot be written: name another one with OUTRIDER_CACHE."
        )
    load = about["load_average"]
    if load is not None and load[0] > about["cores"] / 2 and os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        notes.append(
            f"Other processes are at work here (load {load[0]:.1f} on {about['cores']} cores): set "
            "OMP_WAIT_POLICY=PASSIVE, or threads that wait for each other take their time."
        )
    if about["governor"] not in (None, "performance"):
        notes.append(f"The processor's governor is {about['governor']!r}: figures vary less with 'performance'.")
    return notes


def _matters(variable: str) -> bool:
    """Whether an environment variable changes what Outrider does here."""
    return variable.startswith("OUTRIDER_") or variable in _VARIABLES


def survey() -> dict[str, Any]:
    """All of it, for reports."""
    found = {
        "machine": machine.describe() | {"instruction_sets": machine.instruction_sets()},
        "devices": devices(),
        "kernels": kernels(),
        "cache": cache(),
        "features": [asdict(feature) | {"remedy": feature.remedy} for feature in features()],
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _matters(name)},
    }
    return found | {"advice": advice(found)}
