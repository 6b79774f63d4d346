"""Our proposers on vLLM's engine against its own n-grams: acceptance and speed on the same prompts, one at a time.

usage: python bench/vllm_proposers.py --target FOLDER [--dtype bfloat16] [--systems plain,ngram,suffix,goodput,cascade]
                                      [--tokens N] [--repeats N] [--k N] [--eager] [--out FILE]
Run it in the project's own environment; vLLM is taken from OUTRIDER_VLLM_ENV, or where `make vllm-env` puts it. A table
comes first, with the median time of each answer and vLLM's own counters, then one JSON document.

Each repeat takes the systems in turn; in its turn an engine has the machine to itself: it loads, warms up on every
prompt, answers each once, and ends. `goodput` is the suffix proposer with lengths by measured cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from common import PROMPTS, chat_ids
from environments import ENVIRONMENTS
from systems import vllm_settings
from transformers import AutoTokenizer
from workers import Worker

from outrider.folders import cache_folder
from outrider.loading import demo_folder
from outrider.measure import machine

REPETITIVE = {
    "repetitive chat": "Write the multiplication table of 7 from 1 to 12, one line each, as '7 times 1 is 7'.",
    "second edit": PROMPTS["edit"].replace("Cart", "Bag"),
}
SOURCE = Path(__file__).parents[1] / "src"
WORKER = Path(__file__).parent / "peers" / "worker_vllm.py"
WARM_UP_TOKENS = 8


def speculation(system: str, k: int) -> dict[str, Any]:
    """Options of vLLM's `LLM` for a system."""
    ours = {"method": "custom_class", "model": "outrider.vllm.SuffixProposer", "num_speculative_tokens": k}
    ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return {
        "plain": {},
        "ngram": {"speculative_config": ngram},
        "suffix": {"speculative_config": ours},
        "goodput": {"speculative_config": ours, "additional_config": {"outrider": {"policy": "goodput"}}},
        "cascade": {"speculative_config": {**ours, "model": "outrider.vllm.CascadeProposer"}},
    }[system]


def turn(system: str, options: argparse.Namespace, prompts: dict[str, list[int]]) -> dict[str, dict[str, Any]]:
    """One engine's answers: prompt -> what the worker says."""
    context = max(map(len, prompts.values())) + options.tokens + 64
    engine = {**speculation(system, options.k), "disable_log_stats": False, "enforce_eager": options.eager}
    about = {"model": options.target, "dtype": options.dtype, "context": context, "mode": "given", "engine": engine}
    settings = {
        **dict(vllm_settings(sorted(os.sched_getaffinity(0)))),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(SOURCE),
    }
    logs = cache_folder() / "bench" / "vllm-logs"
    logs.mkdir(parents=True, exist_ok=True)
    python = ENVIRONMENTS["vllm"].python
    with Worker(python, WORKER, about, settings, logs / f"{system}.log") as worker:
        for ids in prompts.values():
            worker.ask({"ids": ids, "tokens": WARM_UP_TOKENS, "mode": "given", "stop_ids": []})
        answers = {}
        for name, ids in prompts.items():
            answers[name] = worker.ask({"ids": ids, "tokens": options.tokens, "mode": "given", "stop_ids": []})
            print(f"  {system}, {name}: {answers[name]['seconds']:.2f} s", file=sys.stderr, flush=True)
    return answers


def row(answers: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a system on one prompt, over all repeats."""
    stats, tokens = answers[0]["stats"], len(answers[0]["ids"])
    drafts, accepted = stats.get("num_drafts", 0), stats.get("num_accepted_tokens", 0)
    seconds = statistics.median(answer["seconds"] for answer in answers)
    return {
        "tokens_per_second": tokens / seconds,
        "speed_ratio": statistics.median(p["seconds"] for p in plain) / seconds if plain else None,
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "acceptance_rate": accepted / stats["num_draft_tokens"] if stats.get("num_draft_tokens") else None,
        "tokens_per_pass": tokens / (tokens - accepted),
        "same_ids": answers[0]["ids"] == plain[0]["ids"] if plain else None,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(demo_folder()), help="a model folder; the demo model by default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--systems", default="plain,ngram,suffix,goodput")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--k", type=int, default=8, help="num_speculative_tokens")
    parser.add_argument("--eager", action="store_true", help="without torch.compile: loads sooner, runs slower")
    parser.add_argument("--out", type=Path, default=cache_folder() / "bench" / "vllm_proposers.json")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = {name: chat_ids(tokenizer, text) for name, text in {**PROMPTS, **REPETITIVE}.items()}
    systems = options.systems.split(",")
    answers: dict[str, dict[str, list[Any]]] = {system: {name: [] for name in prompts} for system in systems}
    for _ in range(options.repeats):
        for system in systems:
            for name, answer in turn(system, options, prompts).items():
                answers[system][name].append(answer)
    plain = answers.get("plain", {name: [] for name in prompts})
    table = {system: {name: row(found, plain[name]) for name, found in of.items()} for system, of in answers.items()}
    for name in prompts:
        print(name)
        for system in systems:
            figures = {key: value for key, value in table[system][name].items() if value is not None}
            shown = ", ".join(
                f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            )
            print(f"  {system:8s} {shown}")
    document = {
        "bench": "vllm_proposers",
        "options": {name: str(value) for name, value in vars(options).items()},
        "summary": table,
        "machine": machine.describe(),
        "runs": answers,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1))
    print(f"raw answers: {options.out}")


if __name__ == "__main__":
    main()
