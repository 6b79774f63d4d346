"""Where a round's time goes: the target's passes, the drafter, and everything else, from the rounds and from a profile.

usage: python bench/overhead.py [--target FOLDER] [--dtype DTYPE] [--tokens N] [--repeats N] [--drafter SPEC]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
from time import perf_counter
from typing import Any

import torch
from common import PROMPTS, chat_ids, overhead

import outrider
from outrider.measure import machine


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", type=int, default=12, help="lines of the profile")
    return parser.parse_args()


def rounds_share(llm: outrider.Outrider, ids: list[int], tokens: int, repeats: int) -> dict[str, float]:
    """Milliseconds per round of drafting, pass, verdict and the rest: medians over runs."""
    parts: dict[str, list[float]] = {"draft": [], "pass": [], "verdict": [], "rest": []}
    for _ in range(repeats):
        started = perf_counter()
        llm.drafter.forget()
        output = llm.generate(ids, max_new_tokens=tokens)
        whole, count = perf_counter() - started, len(output.rounds)
        found = {
            "draft": sum(r.draft_seconds for r in output.rounds),
            "pass": sum(r.verify_seconds for r in output.rounds),
            "verdict": sum(r.verdict_seconds for r in output.rounds),
        }
        found["rest"] = whole - sum(found.values())
        for name, seconds in found.items():
            parts[name].append(seconds / count * 1e3)
    return {name: round(statistics.median(values), 3) for name, values in parts.items()}


def main() -> None:
    """Measure and report."""
    options = arguments()
    torch.set_num_threads(machine.cores())
    llm = outrider.load(
        options.target,
        options.drafter,
        policy=options.policy,
        dtype=options.dtype,
        quantize=options.quantize,
        prefix_memory=1 << 31,
        offline=True,
    )
    found: dict[str, Any] = {}
    for name in ("edit", "chat"):
        ids = chat_ids(llm.tokenizer, PROMPTS[name])
        llm.generate(ids, max_new_tokens=8)
        found[name] = {
            "share_outside_passes": overhead(llm, ids, options.tokens, options.repeats),
            "milliseconds_per_round": rounds_share(llm, ids, options.tokens, options.repeats),
        }
        print(
            f"{name}: {found[name]['share_outside_passes']:.1%} outside the target's passes, "
            f"ms per round {found[name]['milliseconds_per_round']}"
        )
    profile = cProfile.Profile()
    profile.runcall(llm.generate, chat_ids(llm.tokenizer, PROMPTS["edit"]), max_new_tokens=options.tokens)
    pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    print(json.dumps({"bench": "overhead", **found, "configuration": llm.configuration, "machine": machine.describe()}))


if __name__ == "__main__":
    main()
