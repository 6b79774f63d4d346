"""Every drafter that needs no training on Spec-Bench, against plain decoding, category by category.

Each repeat answers the prompts in their order with a fresh set of drafters, all systems in turn on each prompt. The
target's prefill is done before and reused, so that figures are of decoding; what a drafter does with the prompt counts.

usage: python bench/drafters.py --spec-bench FILE [--target FOLDER] [--drafters "suffix lookup"] [--policy P]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import PROMPTS, chat_ids

import outrider
from outrider.api import Output
from outrider.folders import cache_folder
from outrider.measure import machine
from outrider.stats import Stats

PER_CATEGORY = 4
TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
CHAT = "chat"  # Spec-Bench's sixth task: MT-Bench, whose eight subjects are categories of their own in the file
REWRITING = "rewriting"  # not in Spec-Bench: the file of bench/lookup.py, and edits of it
EDITS = ["the class Basket renamed to Cart", "the method add renamed to put", "all double quotes made single ones"]
PREFILLS = 1 << 31  # bytes of keys that are kept, so that no prompt is read twice


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec-bench", type=Path, required=True)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize")
    parser.add_argument("--draft-quantize")
    parser.add_argument("--drafters", default="suffix lookup recycle lookahead", help="separated by spaces")
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--categories", default="", help="only these")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--per-category", type=int, default=PER_CATEGORY)
    parser.add_argument("--name", default="drafters", help="of the file in the cache folder's bench/")
    return parser.parse_args()


def prompts(path: Path, per_category: int) -> list[tuple[str, str]]:
    """(category, message): first questions of Spec-Bench's six tasks, evenly spread, and edits of a file."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        category = record["category"] if record["category"] in TASKS else CHAT
        found.setdefault(category, []).append(record["turns"][0])
    chosen = [
        (category, messages[place * len(messages) // per_category])
        for category, messages in found.items()
        for place in range(per_category)
    ]
    edit = PROMPTS["edit"]
    return chosen + [(REWRITING, edit.replace(EDITS[0], other)) for other in EDITS[:per_category]]


def run(llm: outrider.Outrider, ids: Sequence[int], tokens: int) -> tuple[float, Output]:
    """Seconds and answer."""
    started = perf_counter()
    output = llm.generate(list(ids), max_new_tokens=tokens)
    return perf_counter() - started, output


def measure(llm: outrider.Outrider, options: argparse.Namespace, asked: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """One record per system, prompt and repeat."""
    names = ["none", *options.drafters.split()]
    records = []
    for repeat in range(options.repeats):
        systems = {name: llm.using(drafter=name, policy=options.policy if name != "none" else None) for name in names}
        for place, (category, message) in enumerate(asked):
            ids = chat_ids(llm.tokenizer, message)
            for reader in (llm, *(system for system in systems.values() if system.drafter.taps)):
                reader.generate(ids, max_new_tokens=2)  # the prefill, with states for who taps them, and a warm-up
            plain: list[int] | None = None
            turn = place + repeat
            order = names[turn % len(names) :] + names[: turn % len(names)]
            outputs = {name: run(systems[name], ids, options.tokens) for name in order}
            plain = outputs["none"][1].token_ids
            for name, (seconds, output) in outputs.items():
                records.append(
                    {
                        "system": name,
                        "category": category,
                        "prompt": place,
                        "repeat": repeat,
                        "seconds": seconds,
                        "identical": output.token_ids == plain,
                        "rounds": output.rounds,
                    }
                )
            print(f"repeat {repeat + 1}, {place + 1} of {len(asked)} prompts", flush=True)
    return records


def figures(records: list[dict[str, Any]], name: str, category: str | None) -> dict[str, Any]:
    """A system on a category, or on all: geometric mean over prompts of the medians' ratio; figures of all rounds."""
    mine = [r for r in records if r["system"] == name and category in (None, r["category"])]
    ratios = []
    for prompt in sorted({r["prompt"] for r in mine}):
        mine_here = statistics.median(r["seconds"] for r in mine if r["prompt"] == prompt)
        plain = statistics.median(r["seconds"] for r in records if r["system"] == "none" and r["prompt"] == prompt)
        ratios.append(plain / mine_here)
    stats = Stats.of([round_ for r in mine for round_ in r["rounds"]])
    return {
        "speedup": math.exp(statistics.fmean(map(math.log, ratios))),
        "slowest": min(ratios),
        "tokens_per_second": stats.tokens / sum(r["seconds"] for r in mine),
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "tokens_per_pass": stats.tokens_per_pass,
        "identical": all(r["identical"] for r in mine),
    }


def show(table: dict[str, dict[str, dict[str, Any]]], categories: list[str]) -> None:
    """A line per category, a column per system."""
    print(f"{'':16s}" + "".join(f"{name[:26]:>28s}" for name in table))
    for category in categories:
        cells = []
        for row in table.values():
            found = row[category]
            length = f" AL {found['acceptance_length']:.2f}" if found["acceptance_length"] else ""
            cells.append(f"{found['speedup']:.2f}x {found['tokens_per_second']:.1f}/s{length}")
        print(f"{category:16s}" + "".join(f"{cell:>28s}" for cell in cells))
    print("identical to plain decoding:", {name: row["all"]["identical"] for name, row in table.items()})
    print("slowest prompt:", {name: round(row["all"]["slowest"], 2) for name, row in table.items()})


def main() -> None:
    """Measure and report."""
    options = arguments()
    torch.set_num_threads(machine.cores())
    llm = outrider.load(
        options.target,
        options.drafters.split()[-1] if options.draft_quantize else "none",
        dtype=options.dtype,
        quantize=options.quantize,
        draft_quantize=options.draft_quantize,
        prefix_memory=PREFILLS,
        offline=True,
    )
    asked = prompts(options.spec_bench, options.per_category)
    wanted = options.categories.split(",") if options.categories else []
    asked = [(category, message) for category, message in asked if not wanted or category in wanted]
    records = measure(llm, options, asked)
    names = list(dict.fromkeys(r["system"] for r in records))
    categories = list(dict.fromkeys(category for category, _ in asked))
    table = {
        name: {category or "all": figures(records, name, category) for category in [*categories, None]}
        for name in names
    }
    show(table, [*categories, "all"])
    document = {
        "bench": "drafters",
        "options": {k: str(v) for k, v in vars(options).items()},
        "results": table,
        "configuration": llm.configuration,
        "machine": machine.describe(),
    }
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{options.name}.json").write_text(json.dumps(document, indent=1))
    print(f"{options.name}.json in {folder}")


if __name__ == "__main__":
    main()
