"""A bench in parts, on several machines: each part is some prompts under every case on one of them, so that every
speed ratio still compares runs of one process. Answers and acceptance are those of one process; times are each
machine's.

Knows nothing of what spreads the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ..api import Outrider
from . import machine
from .bench import Load, LoadModel, Wanted, finished, latest, measure
from .bundle import Bundle, Lines, WholeRounds
from .results import Divergence, Results, Sample, Trace

Result = TypeVar("Result")


class Station:
    """What a worker holds: the target as it was last loaded.

    Args:
        load: see `bench.Load`.
        load_model: see `bench.LoadModel`.
    """

    def __init__(self, load: Load, load_model: LoadModel) -> None:
        self._load, self._load_model = load, load_model
        self._held: tuple[str | None, Outrider] | None = None
        self._model: Any = None

    def load(self, quantize: str | None) -> Outrider:
        """The target with that quantization; one at a time."""
        if self._held is None or self._held[0] != quantize:
            self._held = None
            self._held = (quantize, self._load(quantize))
        return self._held[1]

    def load_model(self) -> Any:
        """The target as Transformers has it; kept once it was asked for."""
        if self._model is None:
            self._model = self._load_model()
        return self._model


class Stations(Protocol):
    """The workers; see `cluster.Cluster`."""

    workers: int

    def each(self, call: Callable[[Station], Result]) -> list[Result]:
        """What every worker says."""
        ...

    def spread(self, parts: Sequence[Part], call: Callable[[Station, Part], Measured]) -> Iterator[Measured]:
        """The parts' results as they come."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the prompts, which begin at `first` among all of them."""

    wanted: Wanted
    first: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a part has come to; see `bundle.Bundle`."""

    samples: list[Sample]
    rounds: list[WholeRounds]
    traces: list[Trace]
    divergences: list[Divergence]
    manifest: dict[str, Any]


def measure_in_parts(wanted: Wanted, stations: Stations, bundle: Bundle, advance: Callable[[], None]) -> Results:
    """Measure what the bundle does not know yet, part by part; see `bench.measure`.

    A part counts as known once all of its answers are; of what was measured twice the last counts.
    """
    known = latest(bundle.samples.records)
    bundle.samples.records = list(known.values())
    bundle.manifest["interrupted"] = False
    parts = _parts(wanted, stations.workers)
    left = [part for part in parts if not _keys(part.wanted) <= known.keys()]
    for part in parts:
        for _ in range(0 if part in left else part.wanted.steps):
            advance()
    try:
        bundle.manifest["machines"] = stations.each(_describe)
        for found in stations.spread(left, _measured):
            _take(found, wanted, bundle)
            for _ in range(len(found.samples) * (2 if wanted.perplexity else 1)):
                advance()
    except KeyboardInterrupt:
        bundle.manifest["interrupted"] = True
    order = {prompt.id: place for place, prompt in enumerate(wanted.prompts)}
    every = latest(bundle.samples.records).values()
    bundle.samples.replace(sorted(every, key=lambda one: (one.repeat, order[one.prompt], one.case)))
    return finished(wanted, bundle)


def _parts(wanted: Wanted, workers: int) -> list[Part]:
    """A part for every worker, or two where there is enough to do; batches stay whole."""
    batch = math.lcm(*(case.batch for case in wanted.cases))
    groups = -(-len(wanted.prompts) // batch)
    size = batch * max(1, -(-groups // (2 * workers)))
    return [
        Part(replace(wanted, prompts=wanted.prompts[first : first + size], costs=wanted.costs and not first), first)
        for first in range(0, len(wanted.prompts), size)
    ]


def _keys(wanted: Wanted) -> set[tuple[int, str, int]]:
    """The samples of a part."""
    return {
        (case, prompt.id, repeat)
        for case in range(len(wanted.cases))
        for prompt in wanted.prompts
        for repeat in range(wanted.plan.repeats)
    }


def _describe(station: Station) -> dict[str, Any]:
    return machine.describe()


def _measured(station: Station, part: Part) -> Measured:
    """Runs on the worker."""
    bundle = Bundle(None, {"targets": {}})
    bundle.rounds = Lines(WholeRounds, None)  # kept, to be sent
    measure(part.wanted, station.load, bundle, load_model=station.load_model)
    samples = []
    for sample in bundle.samples.records:
        before = part.first // part.wanted.cases[sample.case].batch  # groups of earlier parts
        group = None if sample.group is None else sample.group + before
        samples.append(sample.model_copy(update={"group": group}))
    return Measured(samples, bundle.rounds.records, bundle.traces.records, bundle.divergences.records, bundle.manifest)


def _take(found: Measured, wanted: Wanted, bundle: Bundle) -> None:
    """Keep what a part has come to."""
    for rounds in found.rounds:
        bundle.rounds.add(rounds)
    for trace in found.traces:
        if trace.prompt == wanted.prompts[0].id:
            bundle.traces.add(trace)
    told = {(one.case, one.prompt, one.repeat) for one in bundle.divergences.records}
    for divergence in found.divergences:
        if (divergence.case, divergence.prompt, divergence.repeat) not in told:
            bundle.divergences.add(divergence)
    bundle.manifest["targets"] |= found.manifest["targets"]
    for name in ("drafter_memory", "costs", "notes"):
        if found.manifest.get(name):
            bundle.manifest.setdefault(name, found.manifest[name])
    for sample in found.samples:
        bundle.samples.add(sample)  # last: a part is known by its samples
    bundle.save_manifest()
