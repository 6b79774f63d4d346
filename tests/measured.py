"""Measurements without a model: samples from a simulated machine with known acceptance and costs, and their results.

Rounds are simulated one by one, so that counts, times and survival of a case agree with each other as real ones do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.measure.figures import compared, summarise
from outrider.measure.results import (
    PLAIN,
    Case,
    Divergence,
    PassCost,
    Results,
    RoundFigures,
    Sample,
    Trace,
    TracedRound,
)

CATEGORIES = ("chat", "code", "rewriting", "maths")
MACHINE = {
    "cpu": "AMD EPYC 7R13", "cores": 2, "capability": "AVX2", "gpu": None, "threads": 2, "outrider": "0.1.0",
    "torch": "2.13.0", "transformers": "5.24.0",
}  # fmt: skip
MANIFEST = {
    "schema_version": 1,
    "argv": ["outrider", "bench", "--target", "demo", "--drafters", "none,suffix,model:small", "--k", "1,2,3,4,5"],
    "plan": {
        "target": "demo", "dtype": "float32", "hashes": {"target": "sha256:9f2c"}, "prompts": "sha256:77aa",
        "cases": [{"drafter": "none"}, {"drafter": "suffix"}], "max_new_tokens": 48, "repeats": 1, "seed": 0,
        "keep_history": False, "machine": MACHINE,
    },
    "prompts": {"chat": 3, "code": 3, "rewriting": 3, "maths": 3},
    "warm_up_tokens": 8,
    "left_out": ["GPU clocks: no GPU"],
    "machine": {**MACHINE, "load_average": [0.31, 0.42, 0.38], "python": "3.11.9"},
    "sessions": [
        {"started": "2026-11-30T01:02:03+0000", "load_average": [0.31, 0.42, 0.38], "revision": "1963f0e"},
        {"started": "2026-11-30T02:02:03+0000", "load_average": [0.11, 0.22, 0.33], "revision": "1963f0e"},
    ],
    "interrupted": False,
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """What the simulated machine and drafter are like.

    Attributes:
        keep: category -> chance that a drafted token is kept once those before it were; falls by `fading` per token.
        pass_seconds, per_node: of a pass, and what each node of it adds.
        draft_seconds: per drafted token.
        idle: share of rounds in which the drafter has nothing to say.
    """

    keep: dict[str, float]
    fading: float = 0.95
    pass_seconds: float = 0.025
    per_node: float = 0.0012
    draft_seconds: float = 0.002
    idle: float = 0.0
    prefill: float = 0.0005  # per token of the prompt

    def cost(self, width: int, batch: int = 1) -> float:
        """Seconds of a pass."""
        return self.pass_seconds + self.per_node * max(0, width * batch - 1)


SUFFIX = World({"chat": 0.25, "code": 0.75, "rewriting": 0.92, "maths": 0.45}, draft_seconds=0.0001, idle=0.3)
SMALL = World({"chat": 0.7, "code": 0.8, "rewriting": 0.75, "maths": 0.6}, draft_seconds=0.004)


@dataclass
class Row:
    """One answer of a batch while it is written."""

    prompt: str
    category: str
    rounds: list[RoundFigures]
    written: int = 0

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return 40 + 30 * (int(self.prompt[1:]) % 5)


def answers(
    world: World, index: int, case: Case, rows: list[Row], repeat: int, group: int, tokens: int
) -> list[Sample]:
    """A batch, pass by pass; a row that is done leaves."""
    draw = random.Random(f"{case.name} {group} {repeat}")
    now = world.prefill * sum(row.length for row in rows)
    while active := [row for row in rows if row.written < tokens]:
        idle = [case.drafter == PLAIN or draw.random() < world.idle for _ in active]
        asked = [
            0 if silent else min(case.k or 3, tokens - row.written - 1)
            for silent, row in zip(idle, active, strict=True)
        ]
        nodes = sum(asked) + len(active)
        drafting = sum(asked) * world.draft_seconds
        verifying = (world.pass_seconds + world.per_node * (nodes - 1)) * draw.uniform(0.97, 1.06)
        now += drafting + verifying + 0.0006 * len(active) + 0.0009
        for place, (k, row) in enumerate(zip(asked, active, strict=True)):
            chances = [world.keep.get(row.category, 0.5) * world.fading**depth for depth in range(k)]
            accepted = next((depth for depth, chance in enumerate(chances) if draw.random() > chance), k)
            row.written += accepted + 1
            figures = RoundFigures(
                drafted=k, depth=k, accepted=accepted, tokens=accepted + 1, at=now, draft_seconds=drafting,
                verify_seconds=verifying, verdict_seconds=0.0006, rows=len(active), nodes=nodes, place=place,
            )  # fmt: skip
            row.rounds.append(figures)
    return [
        Sample(
            case=index, prompt=row.prompt, category=row.category, repeat=repeat, prompt_tokens=row.length,
            seconds=row.rounds[-1].at, rounds=tuple(row.rounds), arrivals=tuple((r.at, r.tokens) for r in row.rounds),
            ids=tuple(range(100, 100 + tokens)), text="word " * tokens, finish_reason="length", seed=repeat,
            group=group if case.batch > 1 else None, peak_memory=900 << 20, perplexity=6.25,
        )
        for row in rows
    ]  # fmt: skip


def samples_of(
    world: World, index: int, case: Case, prompts: int = 12, repeats: int = 1, tokens: int = 48
) -> list[Sample]:
    """The answers of one case: prompts of every category in turn."""
    kinds = [category for category in CATEGORIES if category in world.keep]
    found = []
    for repeat in range(repeats):
        for group, first in enumerate(range(0, prompts, case.batch)):
            numbers = range(first, min(first + case.batch, prompts))
            rows = [Row(f"p{number:02d}", kinds[number % len(kinds)], []) for number in numbers]
            found += answers(world, index, case, rows, repeat, group, tokens)
    return found


def results_of(cases: Sequence[tuple[Case, World]], **options: int) -> tuple[Results, list[Sample]]:
    """Results of these cases, each in its world; `options` as of `samples_of`."""
    made = [item for n, (case, world) in enumerate(cases) for item in samples_of(world, n, case, **options)]
    kinds = tuple(case for case, _ in cases)
    samples = compared(kinds, made)
    memory = {n: 270 << 20 for n, case in enumerate(kinds) if case.drafter.startswith("model")}
    return Results(manifest=MANIFEST, cases=kinds, summaries=summarise(kinds, samples, memory)), samples


def costs_of(world: World, batches: Sequence[int] = (1, 4)) -> tuple[PassCost, ...]:
    """What `outrider costs` would find there."""
    return tuple(
        PassCost(width=width, batch=batch, context=256, seconds=world.cost(width, batch))
        for batch in batches
        for width in (1, 2, 4, 8, 16)
    )


TRACE = Trace(
    case=5,
    prompt="p02",
    rounds=(
        TracedRound(pieces=(("The", "corrected"),), rejected=" quick red"),
        TracedRound(pieces=((" three primary", "drafted"), (" colours", "corrected")), rejected=" colors are"),
        TracedRound(pieces=((" are red, yellow", "drafted"), (" and", "bonus")), rejected=""),
        TracedRound(pieces=((" blue", "drafted"), (".\n\nThey", "corrected")), rejected=" and green"),
    ),
)
DIVERGENCES = (
    Divergence(case=5, prompt="p02", repeat=0, place=17, plain=311, other=288, plain_logit=18.25, other_logit=18.2499,
               gap=0.0001, verdict="tie"),
    Divergence(case=6, prompt="p03", repeat=0, place=4, plain=11, other=12, plain_logit=9.5, other_logit=6.25,
               gap=2.5, verdict="fault"),
)  # fmt: skip


def everything(prompts: int = 12) -> tuple[Results, list[Sample]]:
    """A run of two drafters, k from 1 to 5, batches 1 and 4, a relaxed rule, costs, traces and divergences."""
    cases = [(Case(drafter=PLAIN), SUFFIX)]
    for batch in (1, 4):
        cases += [(Case(drafter=PLAIN, batch=batch), SUFFIX)] * (batch != 1)
        for drafter, world in (("suffix", SUFFIX), ("model:small", SMALL)):
            ks = (1, 2, 3, 4, 5) if batch == 1 else (2, 4)
            cases += [(Case(drafter=drafter, k=k, batch=batch, policy=f"fixed:{k}"), world) for k in ks]
    cases += [(Case(drafter="model:small", verifier="typical", k=3, policy="fixed:3"), SMALL)]
    cases += [(Case(drafter="suffix"), SUFFIX)]
    results, samples = results_of(cases, prompts=prompts)
    return results.model_copy(
        update={
            "costs": costs_of(SUFFIX),
            "traces": (TRACE, TRACE.model_copy(update={"case": 6})),
            "divergences": DIVERGENCES,
        }
    ), samples


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>]]>|`*_\x00\x1b[31m\n# heading ‮ {{ 7 * 7 }}"


def hostile() -> Results:
    """Names, categories, answers and the manifest all try to break out."""
    case = Case(drafter=f"model:{HOSTILE}", k=2)
    results, _ = results_of([(Case(drafter=PLAIN), SUFFIX), (case, SMALL), (Case(drafter="x", k=1), SMALL)])
    summary = results.summaries[1]
    kinds = {f"{name}{HOSTILE}": found for name, found in summary.categories.items()}
    return results.model_copy(
        update={
            "manifest": {**MANIFEST, HOSTILE: HOSTILE, "argv": ["outrider", HOSTILE], "left_out": [HOSTILE]},
            "summaries": (results.summaries[0], summary.model_copy(update={"categories": kinds}), results.summaries[2]),
            "divergences": (
                Divergence(case=1, prompt=HOSTILE, repeat=0, place=0, plain=1, other=2, plain_logit=math.inf,
                           other_logit=-math.inf, gap=math.nan, verdict="fault"),
            ),
            "traces": (
                Trace(case=1, prompt=HOSTILE, rounds=(TracedRound(pieces=((HOSTILE, "drafted"), ("\ud800", "bonus")),
                                                                  rejected=HOSTILE),)),
            ),
        }
    )  # fmt: skip
