"""What the comparisons share: alternating runs, medians, the machine, JSON last. Every system runs in this process."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import outrider
from outrider.folders import cache_folder
from outrider.loading import as_dtype, demo_folder
from outrider.measure import machine

CODE = """class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.prices = []

    def add(self, name, price, count=1):
        if count < 1:
            raise ValueError("count must be positive")
        self.prices.append((name, price, count))

    def total(self):
        return sum(price * count for name, price, count in self.prices)

    def cheapest(self):
        return min(self.prices, key=lambda entry: entry[1])

    def receipt(self):
        lines = [f"{name}: {price} x {count}" for name, price, count in self.prices]
        return "\\n".join(lines)
"""
PROMPTS = {
    "edit": "Rewrite this file with the class Basket renamed to Cart, and change nothing else:\n\n```python\n"
    + CODE
    + "```",
    "chat": "What should I see in Lisbon in two days, and why?",
    "code": "Write a Python function that merges two sorted lists.",
}


def arguments(description: str, tokens: int, repeats: int = 5) -> argparse.Namespace:
    """The options that every comparison has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", help="a model folder; the demo model by default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=tokens, help="new tokens per run")
    parser.add_argument("--repeats", type=int, default=repeats, help="alternating runs of each system")
    return parser.parse_args()


def model_and_tokenizer(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model as Transformers loads it, and its tokenizer."""
    torch.set_num_threads(machine.cores())
    folder = options.target or str(demo_folder())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=as_dtype(options.dtype))
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def chat_ids(tokenizer: Any, message: str) -> list[int]:
    """Ids of a user's message through the chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def transformers_run(model: Any, ids: Sequence[int], tokens: int, **options: Any) -> list[int]:
    """Greedy ids of Transformers' own `generate`."""
    inputs = torch.tensor([ids])
    out = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens, do_sample=False, **options
    )
    return out[0, len(ids) :].tolist()


def alternate(systems: dict[str, Callable[[], list[int]]], repeats: int) -> dict[str, dict[str, Any]]:
    """Run the systems in turn, once to warm up and then `repeats` times; seconds, medians and ids of each."""
    results: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in systems}
    for turn in range(repeats + 1):
        for name, system in systems.items():
            started = perf_counter()
            ids = system()
            seconds = perf_counter() - started
            results[name]["ids"] = ids
            if turn:
                results[name]["seconds"].append(seconds)
    for result in results.values():
        result["median_seconds"] = statistics.median(result["seconds"])
        result["tokens_per_second"] = len(result["ids"]) / result["median_seconds"]
    return results


def overhead(llm: outrider.Outrider, ids: Sequence[int], tokens: int, repeats: int) -> float:
    """Share of wall time that is spent outside the target's passes: the median of several runs."""
    forward, spent = llm.target.forward, 0.0

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal spent
        started = perf_counter()
        result = forward(*args, **options)
        spent += perf_counter() - started
        return result

    shares = []
    llm.target.forward = timed
    try:
        for turn in range(repeats + 1):
            spent, started = 0.0, perf_counter()
            llm.generate(list(ids), max_new_tokens=tokens)
            if turn:
                shares.append(1 - spent / (perf_counter() - started))
    finally:
        del llm.target.forward
    return statistics.median(shares)


def report(name: str, options: argparse.Namespace, results: dict[str, Any], **figures: Any) -> None:
    """A line per system, then one JSON document; raw runs stay in the cache folder's bench/."""
    document = {"bench": name, "options": vars(options), "results": results, **figures, "machine": machine.describe()}
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1))
    for system, result in results.items():
        print(f"{system:42s} {result['median_seconds']:8.3f} s {result['tokens_per_second']:8.2f} tokens/s")
        result.pop("ids")
    print(json.dumps(document))
