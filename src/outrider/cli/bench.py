"""`outrider bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Compile,
    Config,
    Device,
    DeviceMap,
    DraftDevice,
    DraftQuantize,
    Dtype,
    Fast,
    Json,
    Offline,
    Ray,
    TrustRemoteCode,
    print_json,
)

EXAMPLES = """
[bold]Examples[/bold]

    outrider bench --target demo --drafters suffix,lookup --per-category 1 --max-new-tokens 64

    outrider bench --target ./my-model --drafters suffix,model:./small --k 1-5 --batch 1,4 --report out/

    outrider bench --target ./my-model --drafters model:./small --temperature 0,0.7,1 --quantize none,int8 --out runs/a

    outrider bench --target demo --drafters suffix --baseline transformers,transformers-lookup --limit 4

    outrider bench --preset architectures --target ./model --draft-model ./small --drafters medusa:./heads --report out/

    outrider bench --target ./my-model --drafters suffix --ray auto --out runs/b

    outrider bench --endpoint http://localhost:8000 --prompts spec_bench:question.jsonl --batch 1,8 --json
"""


def bench(
    target: Annotated[str | None, typer.Option(help="Hub id, folder, .gguf file, or 'demo' (the default).")] = None,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            help="Drafters with commas between, suffix by default; plain decoding (none) is always measured. What "
            "follows cascade: is its own, so several cascades take the option several times."
        ),
    ] = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="builtin, spec_bench:FILE (first turns), a file (a prompt a line, or JSONL with 'prompt' or "
            "'messages', 'id' and 'category'), or datasets:ID[:SPLIT]."
        ),
    ] = "builtin",
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write at most.", min=1)] = 100,
    k: Annotated[str | None, typer.Option(help="Draft lengths, like 1,2,4 or 1-5; each is the policy fixed:k.")] = None,
    batch: Annotated[str, typer.Option(help="Prompts served together, like 1,4.")] = "1",
    temperature: Annotated[str, typer.Option(help="Of the sampling, like 0,0.7.")] = "0",
    quantize: Annotated[str | None, typer.Option(help="Of the target: none, int8, or none,int8.")] = None,
    verifiers: Annotated[str | None, typer.Option(help="Rules with commas between; match by default.")] = None,
    policies: Annotated[
        str | None, typer.Option(help="Policies with commas between, beside --k; goodput if neither is given.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Of every prompt under every case.", min=1)] = 3,
    per_category: Annotated[int | None, typer.Option(help="At most so many prompts of each kind.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many prompts.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the first repeat; the others count on from it.")] = 0,
    perplexity: Annotated[
        bool, typer.Option("--perplexity", help="How likely the target finds each answer: one more pass for each.")
    ] = False,
    costs: Annotated[
        bool, typer.Option("--costs", help="Measure what passes cost by their width, too: the report predicts from it.")
    ] = False,
    keep_history: Annotated[
        bool,
        typer.Option(
            "--keep-history",
            help="Let drafters learn from the prompts before, as in a server; else each prompt meets a fresh one.",
        ),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(help="architectures: a draft model, Medusa and EAGLE, 100 prompts, k = 1 to 5, perplexity."),
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="The independent draft model of a preset.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Transformers' own generate in the same run: transformers (plain), transformers-lookup (its prompt "
            "lookup), or both with a comma between. Takes one more copy of the weights."
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Measure a server that speaks OpenAI's API, e.g. http://localhost:8000.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at the endpoint; its first by default.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the endpoint's key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep the run in this folder, and go on with it if it was interrupted.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html and report.md here; the run is kept here too without --out.")
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Write timeline.json for Perfetto or chrome://tracing, too.")
    ] = False,
    dtype: Dtype = None,
    device: Device = None,
    offline: Offline = False,
    trust_remote_code: TrustRemoteCode = False,
    fast: Fast = None,
    device_map: DeviceMap = None,
    draft_device: DraftDevice = None,
    draft_quantize: DraftQuantize = None,
    compile_: Compile = False,
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens per pass.")] = 512,
    ray: Ray = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Drafters, draft lengths, rules, batches and temperatures against plain decoding, on the same prompts."""
    from ..commands.bench import Asked, run
    from ..commands.settings import Settings

    asked = Asked(
        target=target,
        drafters=tuple(drafters or ()),
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        k=k,
        batch=batch,
        temperature=temperature,
        quantize=quantize,
        verifiers=verifiers,
        policies=policies,
        repeats=repeats,
        per_category=per_category,
        limit=limit,
        seed=seed,
        perplexity=perplexity,
        costs=costs,
        keep_history=keep_history,
        preset=preset,
        baseline=baseline,
        draft_model=draft_model,
        endpoint=endpoint,
        model=model,
        api_key_env=api_key_env,
        out=out,
        report=report,
        timeline=timeline,
        ray=ray,
    )
    settings = Settings(
        target or "demo", "none", "match", None, dtype, device, offline, trust_remote_code, fast,
        device_map=device_map, compile=compile_, prefill_chunk=prefill_chunk, draft_device=draft_device,
        draft_quantize=draft_quantize,
    )  # fmt: skip
    document = run(asked, settings, show_table=not json_)
    print_json(document, json_)
    if document["manifest"]["interrupted"]:
        raise typer.Exit(130)
