"""The policy `goodput` in a simulated server: requests that join one by one, known acceptance, costs as measured.

usage: python bench/traffic.py [--policy goodput] [--groups 6] [--size 8] [--rounds 64] [--seeds 6]

No model runs. Prints tokens per second against plain decoding, by kind of traffic and group of requests, reckoned by
expected tokens and undisturbed seconds (tests/unit/simulation.py); the first group learns what passes cost. Then: a
request of 30 rounds whose drafts are nearly all right, alone and after four whose drafts were not, against the best
fixed length.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean

from outrider.policy import Maker, make_policy
from outrider.types import Round

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))
from simulation import World, always, chain, live, rising

# Milliseconds of a pass of SmolLM2 in bfloat16 on two AVX2 cores by nodes (docs/performance.md, Servers).
NODES = (1, 2, 4, 6, 8, 9, 10, 12, 16, 20, 24, 32, 48, 64, 128, 512)
COSTS = (12, 13, 16, 20, 26, 28.4, 31, 34, 42, 53, 60, 84, 120, 160, 320, 1280)
# kind -> chance that a token is kept, chance that there is a draft, its tokens at most
TRAFFIC = {
    "chat": (0.25, 0.15, 4),
    "code": (0.1, 0.12, 4),
    "copying": (0.85, 0.7, 8),
    "a bad draft model": (0.2, 1.0, 8),
    "a fair draft model": (0.5, 1.0, 8),
    "a good draft model": (0.8, 1.0, 8),
}
STEPS = (0.03, 0.08, 0.12, 0.36)  # what a further node costs against a plain pass


def seconds(nodes: int) -> float:
    """Of a pass, between the measured ones in proportion."""
    above = next(place for place, known in enumerate(NODES) if known >= nodes)
    if NODES[above] == nodes:
        return COSTS[above] / 1e3
    share = (nodes - NODES[above - 1]) / (NODES[above] - NODES[above - 1])
    return (COSTS[above - 1] + share * (COSTS[above] - COSTS[above - 1])) / 1e3


def offers(chance: float, most: int) -> Callable[[Random], int]:
    """A drafter that has something to offer now and then."""
    return lambda luck: most if luck.random() < chance else 0


def serve(world: World, make: Maker, groups: int, size: int, rounds: int) -> list[float]:
    """Groups of requests, one after another; within each they join one a round. Speed against plain, by group."""
    found, number = [], 0
    for _ in range(groups):
        policies, left, waiting = [], [], size
        spent = plain = 0.0
        while policies or waiting:
            if waiting:
                policies, left, waiting = [*policies, make()], [*left, rounds], waiting - 1
            rows = len(policies)
            asked = [policy.budget().depth for policy in policies]
            drafted = [min(depth, world.longest(world.chance)) if depth else 0 for depth in asked]
            nodes = rows + sum(drafted)
            clock = world.clock(world.verify(nodes), number)
            spent += world.verify(nodes)
            for row, (policy, depth) in enumerate(zip(policies, drafted, strict=True)):
                path = tuple(range(world.accepted(number, row, depth) + 1))
                left[row] -= len(path)
                plain += world.expected(number, row, depth) * world.verify(rows) / rows
                finish = "length" if left[row] <= 0 else None
                about = (row, number, 1, chain(depth), path, (0,) * len(path), finish, 0.0, clock, 0.0)
                policy.observe(Round(*about, rows=rows, nodes=nodes, place=row, began=float(number)))
            going = [row for row in range(rows) if left[row] > 0]
            policies, left = [policies[row] for row in going], [left[row] for row in going]
            number += 1
        found.append(plain / spent)
    return found


def surprise(policy: str, step: float, seed: int, before: int) -> float:
    """A good request after so many bad ones, against the best fixed length."""
    make = make_policy(policy)
    for number in range(before):
        bad = World(always(0.12), rising(step), longest=offers(0.4, 10), seed=100 * seed + number)
        live(bad, [make()], 64)
    good = World(always(0.93), rising(step), seed=seed)
    return live(good, [make()], 30).goodput() / good.best()


def main() -> None:
    """Print the tables, and the document for machines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="goodput")
    for name, usual in (("groups", 6), ("size", 8), ("rounds", 64), ("seeds", 6)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    traffic = {}
    for kind, (rate, chance, most) in TRAFFIC.items():
        runs = [
            serve(
                World(always(rate), seconds, longest=offers(chance, most), noise=0.1, seed=seed),
                make_policy(options.policy),
                options.groups,
                options.size,
                options.rounds,
            )
            for seed in range(options.seeds)
        ]
        traffic[kind] = [round(fmean(group), 3) for group in zip(*runs, strict=True)]
        print(f"{kind:20s} {'  '.join(f'{value:.3f}' for value in traffic[kind])}")
    surprises = {}
    for step in STEPS:
        means = [fmean(surprise(options.policy, step, seed, before) for seed in range(12)) for before in (0, 4)]
        surprises[f"{step:.0%}"] = means
        print(f"a node costs {step:4.0%}: alone {means[0]:.3f}, after four bad ones {means[1]:.3f}")
    print(json.dumps({"bench": "traffic", "options": vars(options), "traffic": traffic, "surprises": surprises}))


if __name__ == "__main__":
    main()
