"""`outrider bench`: what to measure, refused early; then measured, kept in a folder, and shown."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..api import Outrider
from ..cluster import Cluster, check_cluster
from ..errors import BadOption
from ..loading import DEMO, Loader, as_dtype, snapshot
from ..measure import cases as expanding
from ..measure import machine, presets, prompts, report, timeline
from ..measure import manifest as describing
from ..measure.bench import Wanted, measure, measure_endpoint
from ..measure.bundle import Bundle
from ..measure.endpoint import Endpoint
from ..measure.results import OWN, Case, Results
from ..measure.runner import Plan
from ..measure.spreading import Station, measure_in_parts
from .bench_table import show
from .settings import Settings, model_holder
from .showing import progress_bar

_OF_OUR_OWN = (  # options that a server decides by itself
    "target", "drafters", "k", "quantize", "verifiers", "policies", "perplexity", "costs", "keep_history", "preset",
    "baseline", "ray",
)  # fmt: skip
_UNCLEARED = (
    "What a server remembers of earlier prompts and answers cannot be cleared: repeats and later cases may gain by it."
)
_USUAL = Settings(DEMO, "none", "match", None, None, None, False, False)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as they were given; None, False or nothing where they were not."""

    target: str | None = None
    drafters: tuple[str, ...] = ()
    prompts: str = prompts.BUILTIN
    max_new_tokens: int = 100
    k: str | None = None
    batch: str = "1"
    temperature: str = "0"
    quantize: str | None = None
    verifiers: str | None = None
    policies: str | None = None
    repeats: int = 3
    per_category: int | None = None
    limit: int | None = None
    seed: int = 0
    perplexity: bool = False
    costs: bool = False
    keep_history: bool = False
    preset: str | None = None
    baseline: str | None = None
    draft_model: str | None = None
    endpoint: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    out: Path | None = None
    report: Path | None = None
    timeline: bool = False
    ray: str | None = None


def run(asked: Asked, settings: Settings, *, show_table: bool) -> dict[str, Any]:
    """Measure and write; the document is `results.json`.

    Args:
        asked: the options.
        settings: how targets are loaded; its target is the one that was asked for, or the demo model.
        show_table: for a person.
    """
    _check(asked, settings)
    folder = asked.out or asked.report
    if asked.endpoint is not None:
        results, bundle = _against_endpoint(asked, asked.endpoint, folder)
    else:
        results, bundle = _here(asked, settings, folder)
    written = [] if folder is None else [folder]
    if asked.report is not None:
        written += report.write(results, asked.report, bundle.samples.records)[:1]
    if asked.timeline and folder is not None:
        written.append(timeline.write(results.cases, bundle.samples.records, folder / "timeline.json"))
    if show_table:
        show(results)
    errors = Console(stderr=True, highlight=False)
    if bundle.manifest["interrupted"]:
        again = " The same command goes on with it." if folder else ""
        errors.print(f"Interrupted: what is done is kept.{again}")
    if asked.report is not None:
        for sentence in report.left_out():
            errors.print(sentence)
    for path in written:
        errors.print(f"{path}", style="dim")
    return results.model_dump(mode="json")


def _check(asked: Asked, settings: Settings) -> None:
    """Refuse options that would change nothing."""
    if asked.timeline and asked.out is None and asked.report is None:
        raise BadOption("--timeline writes into the folder of the run: name one with --out.")
    if asked.draft_model is not None and asked.preset is None:
        raise BadOption("--draft-model is for --preset: name a draft model among the drafters, as model:SPEC.")
    if asked.ray is not None and asked.keep_history:
        raise BadOption("With --keep-history prompts are answered in one order, on one machine: leave --ray out.")
    if asked.endpoint is None:
        if asked.ray is not None:
            check_cluster(asked.ray)
        if asked.model is not None or asked.api_key_env is not None:
            raise BadOption("--model and --api-key-env are for --endpoint: leave them out, or name a server.")
        return
    ignored = [name for name in _OF_OUR_OWN if getattr(asked, name)]
    ignored += [
        field.name for field in fields(Settings) if getattr(settings, field.name) != getattr(_USUAL, field.name)
    ]
    if ignored:
        raise BadOption(
            f"--{ignored[0].replace('_', '-')} would change nothing: the server behind --endpoint decides that, leave "
            "it out."
        )


def _against_endpoint(asked: Asked, url: str, folder: Path | None) -> tuple[Results, Bundle]:
    cases = expanding.of_endpoint(asked.batch, asked.temperature)
    chosen = prompts.read(asked.prompts, limit=asked.limit, per_category=asked.per_category)
    plan = Plan(asked.max_new_tokens, asked.repeats, asked.seed)
    endpoint = Endpoint(url, asked.model, asked.api_key_env)
    try:
        options = {"endpoint": endpoint.url, "model": endpoint.model}
        manifest = describing.build(options, cases, chosen, plan, argv=sys.argv, left_out=(_UNCLEARED,))
        bundle = Bundle(folder, manifest)
        wanted = Wanted(cases, chosen, plan)
        with progress_bar("measuring", wanted.steps) as advance:
            return measure_endpoint(wanted, endpoint, bundle, advance), bundle
    finally:
        endpoint.close()


def _here(asked: Asked, settings: Settings, folder: Path | None) -> tuple[Results, Bundle]:
    asked, left_out = _with_preset(asked)
    if not asked.drafters:
        asked = replace(asked, drafters=("suffix",))
    cases = expanding.expand(
        asked.drafters,
        k=asked.k,
        batch=asked.batch,
        temperature=asked.temperature,
        quantize=asked.quantize or "none",
        verifiers=asked.verifiers or "match",
        policies=asked.policies,
    )
    if asked.baseline is not None:
        cases = (*cases, *expanding.baselines(asked.baseline, cases))
    if asked.keep_history and not any(expanding.learns(case) for case in cases):
        raise BadOption("--keep-history is for drafters that learn from answers, such as suffix: leave it out.")
    chosen = prompts.read(asked.prompts, limit=asked.limit, per_category=asked.per_category, offline=settings.offline)
    if asked.preset is not None and asked.limit is not None and (few := presets.few_prompts(len(chosen), asked.limit)):
        left_out = (*left_out, few)
    plan = Plan(asked.max_new_tokens, asked.repeats, asked.seed, asked.keep_history)
    torch.set_num_threads(machine.cores())  # as the loading will do; the manifest is written before
    options = _options(settings, cases)
    bundle = Bundle(folder, describing.build(options, cases, chosen, plan, argv=sys.argv, left_out=left_out))

    holder = model_holder(settings, [case.drafter for case in cases if case.system == OWN])

    def load(quantize: str | None) -> Outrider:
        return replace(settings, drafter=holder, quantize=quantize, prefix_memory=0).load()

    def load_model() -> Any:
        return _loader(settings, None).transformers_model(settings.target)

    wanted = Wanted(cases, chosen, plan, asked.perplexity, asked.costs)
    with progress_bar("measuring", wanted.steps) as advance:
        if asked.ray is None:
            return measure(wanted, load, bundle, advance, load_model), bundle
        with Cluster(asked.ray, lambda: Station(load, load_model)) as cluster:
            return measure_in_parts(wanted, cluster, bundle, advance), bundle


def _with_preset(asked: Asked) -> tuple[Asked, tuple[str, ...]]:
    """The options with those of a preset in the places that were left open, and what the preset leaves out."""
    if asked.preset is None:
        return asked, ()
    if asked.preset not in presets.NAMES:
        raise BadOption(f"There is no preset {asked.preset!r}: choose one of {', '.join(presets.NAMES)}.")
    preset = presets.architectures(asked.draft_model, list(asked.drafters))
    filled = replace(
        asked,
        drafters=tuple(preset.drafters),
        k=asked.k or preset.k,
        limit=asked.limit or preset.limit,
        perplexity=True,
    )
    return filled, preset.left_out


def _options(settings: Settings, cases: tuple[Case, ...]) -> dict[str, Any]:
    """How targets are loaded, for the manifest; what cannot be loaded is refused here, before any work.

    Models are told by what is in their files, so that a run is not gone on with after one of them has changed.
    """
    for quantize in dict.fromkeys(case.quantize for case in cases):
        loader = _loader(settings, quantize)
    folder = loader.find(settings.target) or snapshot(settings.target)
    specs = dict.fromkeys(case.drafter for case in cases if case.system == OWN)
    return {
        "target": settings.target,
        "target_fingerprint": describing.fingerprint(folder) if folder else None,
        "drafter_fingerprints": {key: value for spec in specs for key, value in describing.fingerprints(spec).items()},
        "asked_dtype": settings.dtype,
        "asked_device": settings.device,
        "fast": settings.fast,
        "device_map": settings.device_map,
        "compile": settings.compile,
        "prefill_chunk": settings.prefill_chunk,
        "draft_device": settings.draft_device,
        "draft_quantize": settings.draft_quantize,
    }


def _loader(settings: Settings, quantize: str | None) -> Loader:
    """What loads a target.

    Raises:
        BadOption: options that cannot work.
    """
    return Loader(
        as_dtype(settings.dtype),
        settings.device,
        settings.offline,
        settings.trust_remote_code,
        "auto" if settings.fast is None else settings.fast,
        quantize,
        settings.device_map,
        settings.compile,
    )
