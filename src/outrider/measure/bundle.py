"""The folder of a run: what was asked, what has been measured so far, and what it amounts to. Knows no models.

    manifest.json       what was run and where; `plan` in it is what makes two runs the same
    samples.jsonl       every answer as it comes, with its rounds in figures
    rounds.jsonl        every answer's rounds whole, with the prompt's ids, for replays; of two alike the last counts
    traces.jsonl        a few answers as coloured text
    divergences.jsonl   where answers left plain decoding's
    results.json        all of `results.Results`; written when the run ends or is interrupted
    summary.csv         a line per case

A run goes on where it was interrupted if the same is asked for again; anything else in the folder is refused. Files are
replaced whole or appended line by line, so that nothing is ever half there but the last line of one, which is dropped.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from ..errors import BadOption
from .results import SCHEMA, Case, Divergence, Record, Results, Sample, Summary, Trace

T = TypeVar("T", bound=Record)

_MANIFEST, _RESULTS = "manifest.json", "results.json"
_LARGEST = 4 << 30  # bytes of a file of lines that is read back
_FLAT = (
    "prompts", "samples", "rounds", "drafted", "accepted", "tokens", "acceptance_rate", "acceptance_length",
    "tokens_per_pass", "tokens_per_second", "throughput", "speedup", "verdict", "draft_seconds", "verify_seconds",
    "verdict_seconds", "other_seconds", "peak_memory", "drafter_memory", "compared", "identical", "perplexity",
    "lossless", "mean_tv", "mean_kl",
)  # fmt: skip
_PERCENTILES = ("time_to_first", "between_tokens", "between_events", "per_token")


class Lines(Generic[T]):
    """Records of one kind, one a line, kept in memory and, where there is a file, appended to it at once.

    Args:
        kind: of the records.
        path: of the file, or None.
        remember: keep them in memory, those that the file has included.

    Attributes:
        records: all that are known, in the order in which they came.
    """

    def __init__(self, kind: type[T], path: Path | None, *, remember: bool = True) -> None:
        self._path, self._remember = path, remember
        self.records: list[T] = []
        if remember and path is not None and path.is_file():
            self._read(kind, path)

    def _read(self, kind: type[T], path: Path) -> None:
        if path.stat().st_size > _LARGEST:
            raise BadOption(f"{path} has more than {_LARGEST >> 30} GiB: start a new run in another folder.")
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    self.records.append(kind.model_validate_json(line))
            except ValidationError as error:
                if number < len(lines):  # every whole line ends in a break, so that the last part is empty or torn
                    raise BadOption(
                        f"{path}, line {number} is no line of outrider bench: start a new run in another folder."
                    ) from error
        if lines[-1].strip():
            self.replace(self.records)

    def add(self, record: T) -> None:
        """Keep one more."""
        if self._remember:
            self.records.append(record)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(record.model_dump_json() + "\n")

    def replace(self, records: Sequence[T]) -> None:
        """Keep these instead."""
        self.records = list(records)
        if self._path is not None:
            write_whole(self._path, "".join(record.model_dump_json() + "\n" for record in self.records))


class WholeRounds(Record):
    """An answer's rounds for replays; `rounds` are as `outrider generate --json --trace` prints them."""

    case: int
    prompt: str
    repeat: int
    prompt_ids: tuple[int, ...]
    rounds: tuple[dict[str, Any], ...]


class Bundle:
    """What is known of a run. Without a folder it is kept in memory alone.

    Args:
        folder: made if it is not there; None keeps nothing on disk.
        manifest: what is asked for; a run that is there has to have the same `plan`.

    Attributes:
        folder: see above.
        manifest: that of the run, with what the sessions before have added.
        resumed: whether there was one.
        samples, traces, divergences, rounds: see the module.

    Raises:
        BadOption: the folder holds another run, or something else.
    """

    def __init__(self, folder: Path | None, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest, self.resumed = folder, dict(manifest), False
        if folder is not None:
            self._open(folder)

        def path(name: str) -> Path | None:
            return None if folder is None else folder / name

        self.samples = Lines(Sample, path("samples.jsonl"))
        self.traces = Lines(Trace, path("traces.jsonl"))
        self.divergences = Lines(Divergence, path("divergences.jsonl"))
        self.rounds = Lines(WholeRounds, path("rounds.jsonl"), remember=False)
        self.save_manifest()

    def _open(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise BadOption(f"{folder} is a file: name a folder for the run.")
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _MANIFEST).is_file():
            if any(folder.iterdir()):
                raise BadOption(f"The folder {folder} holds something that is no run of bench: name a new folder.")
            return
        try:
            known = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            plan, version = known["plan"], known["schema_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadOption(f"{folder / _MANIFEST} is no manifest of a run: name a new folder.") from error
        if version != SCHEMA:
            raise BadOption(f"{folder} was written with schema {version}, this is {SCHEMA}: name a new folder.")
        asked = self.manifest["plan"]
        samples = folder / "samples.jsonl"
        if plan != asked and not (samples.is_file() and samples.stat().st_size):
            return  # it was refused or broken off before its first answer: nothing is lost with it
        if plan != asked:
            different = next(key for key in {**plan, **asked} if plan.get(key) != asked.get(key))
            raise BadOption(
                f"The folder {folder} holds a run that differs in '{different}': name a new folder, or ask for the "
                "same again to go on with it."
            )
        sessions = [*known.get("sessions", []), *self.manifest.get("sessions", [])]
        self.manifest, self.resumed = {**known, "sessions": sessions}, True

    def save_manifest(self) -> None:
        """Write what `manifest` holds by now."""
        if self.folder is not None:
            write_whole(self.folder / _MANIFEST, _json(self.manifest))

    def save(self, results: Results) -> None:
        """Write what the run amounts to."""
        if self.folder is not None:
            self.save_manifest()
            write_whole(self.folder / _RESULTS, results.model_dump_json(indent=1) + "\n")
            write_whole(self.folder / "summary.csv", table(results.cases, results.summaries))


def write_whole(path: Path, text: str) -> None:
    """Write a file beside and put it in its place, so that there is the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def table(cases: Sequence[Case], summaries: Sequence[Summary]) -> str:
    """The summaries as CSV: the case's parts, every single figure, and seconds at the percentiles."""
    text = io.StringIO()
    own = list(Case.model_fields)
    percentiles = [f"{name}_{p}" for name in _PERCENTILES for p in ("p50", "p95", "p99")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*own, *_FLAT, "speedup_low", "speedup_high", *percentiles, "survival"])
    for summary in summaries:
        case, interval = cases[summary.case], summary.speedup_interval
        row = [getattr(case, name) for name in own] + [getattr(summary, name) for name in _FLAT]
        row += [interval.low, interval.high] if interval else [None, None]
        row += [getattr(getattr(summary, name), p) for name in _PERCENTILES for p in ("p50", "p95", "p99")]
        writer.writerow([*row, " ".join(f"{share:.4f}" for share in summary.survival)])
    return text.getvalue()


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
