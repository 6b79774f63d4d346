"""Result folders back into results and samples. Knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import BadOption
from .results import SCHEMA, Results, Sample

T = TypeVar("T", bound=BaseModel)

_RESULTS_BYTES = 256 << 20
_LINE_BYTES = 64 << 20
_SAMPLES_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """What a folder holds."""

    folder: Path
    results: Results
    samples: tuple[Sample, ...]


def read(place: Path) -> Run:
    """Read `results.json` and, where it is there, `samples.jsonl`.

    Args:
        place: the folder of a run, or its `results.json`.

    Raises:
        BadOption: no such folder, no such files in it, or files that something else wrote.
    """
    folder = place.parent if place.name == "results.json" else place
    path = folder / "results.json"
    if not path.is_file():
        raise BadOption(f"{folder} holds no results.json: name a folder that outrider bench wrote.")
    if path.stat().st_size > _RESULTS_BYTES:
        raise BadOption(f"{path} has more than {_RESULTS_BYTES >> 20} MiB: it is no result of outrider bench.")
    results = _parsed(Results, path.read_bytes(), str(path))
    if results.schema_version != SCHEMA:
        raise BadOption(
            f"{path} has schema version {results.schema_version} and this Outrider reads {SCHEMA}: measure again, or "
            "use the version that wrote it."
        )
    samples = tuple(_samples(folder / "samples.jsonl"))
    last = len(results.cases)
    used = [*(found.case for found in results.summaries), *(item.case for item in samples)]
    used += [*(found.case for found in results.divergences), *(trace.case for trace in results.traces)]
    if any(not 0 <= case < last for case in used):
        raise BadOption(
            f"{folder} speaks of a case that its results.json does not list: the files do not belong together."
        )
    return Run(folder, results, samples)


def _samples(path: Path) -> Iterator[Sample]:
    if not path.is_file():
        return
    if path.stat().st_size > _SAMPLES_BYTES:
        raise BadOption(f"{path} has more than {_SAMPLES_BYTES >> 30} GiB: compare smaller runs.")
    with path.open("rb") as lines:
        number = 0
        while line := lines.readline(_LINE_BYTES):
            number += 1
            if line.strip():
                yield _parsed(Sample, line, f"{path}, line {number}")


def _parsed(kind: type[T], text: bytes, where: str) -> T:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise BadOption(f"{where} is no result of outrider bench: {at + ': ' if at else ''}{first['msg']}.") from None
