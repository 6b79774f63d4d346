"""Measurements without a model: samples from a simulated machine with known acceptance and costs, and their results.

Rounds are simulated one by one, so that counts, times and survival of a case agree with each other as real ones do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import geometric_mean, mean, median

from outrider.measure.bootstrap import interval, verdict
from outrider.measure.results import (
    PLAIN,
    Case,
    CategoryFigures,
    Divergence,
    PassCost,
    Percentiles,
    Results,
    RoundFigures,
    Sample,
    Summary,
    Trace,
    TracedRound,
)

CATEGORIES = ("chat", "code", "rewriting", "maths")
MANIFEST = {
    "schema_version": 1,
    "argv": ["outrider", "bench", "--target", "demo", "--drafters", "none,suffix,model:small", "--k", "1,2,3,4,5"],
    "started": "2026-11-30T01:02:03+00:00",
    "configuration": {
        "target": "demo", "dtype": "float32", "attention": "outrider", "max_new_tokens": 48, "seed": 0, "warm_up": 2,
    },
    "git": {"revision": "1963f0e", "changed": False},
    "hashes": {"target": "sha256:9f2c", "prompts": "sha256:77aa", "template": "sha256:0c1d"},
    "machine": {
        "cpu": "AMD EPYC 7R13", "cores": 2, "capability": "AVX2", "gpu": None, "threads": 2,
        "load_average": [0.31, 0.42, 0.38], "torch": "2.13.0", "transformers": "5.24.0", "python": "3.11.9",
    },
    "left_out": ["GPU clocks: no GPU"],
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


def sample(world: World, index: int, case: Case, prompt: str, category: str, repeat: int, tokens: int = 48) -> Sample:
    """One answer, simulated round by round."""
    draw = random.Random(f"{case.name} {prompt} {repeat}")
    length = 40 + 30 * (len(prompt) % 5)
    now = world.prefill * length
    rounds: list[RoundFigures] = []
    written = 0
    while written < tokens:
        k = 0 if case.plain == case or draw.random() < world.idle else min(case.k or 3, tokens - written - 1)
        chances = [min(1.0, world.keep.get(category, 0.5) * world.fading**place) for place in range(k)]
        accepted = next((place for place, chance in enumerate(chances) if draw.random() > chance), k)
        noise = draw.uniform(0.97, 1.06)
        nodes = case.batch * (k + 1)
        drafting, verifying, judging = k * world.draft_seconds, world.cost(k + 1, case.batch) * noise, 0.0006
        now += drafting + verifying + judging * case.batch + 0.0009
        written += accepted + 1
        rounds.append(
            RoundFigures(
                drafted=k,
                depth=k,
                accepted=accepted,
                tokens=accepted + 1,
                at=now,
                draft_seconds=drafting,
                verify_seconds=verifying,
                verdict_seconds=judging,
                rows=case.batch,
                nodes=nodes,
                place=index % case.batch,
            )
        )
    return Sample(
        case=index, prompt=prompt, category=category, repeat=repeat, prompt_tokens=length, seconds=now + 0.0004,
        rounds=tuple(rounds), arrivals=tuple((round_.at, round_.tokens) for round_ in rounds),
        ids=tuple(range(100, 100 + tokens)), text="word " * tokens, finish_reason="length", seed=0,
        identical=None if case.plain == case else True,
    )  # fmt: skip


def samples_of(
    world: World, index: int, case: Case, prompts: int = 12, repeats: int = 1, tokens: int = 48
) -> list[Sample]:
    """The answers of one case: prompts of every category in turn."""
    categories = [category for category in CATEGORIES if category in world.keep] or ["text"]
    return [
        sample(world, index, case, f"p{number:02d}", categories[number % len(categories)], repeat, tokens)
        for number in range(prompts)
        for repeat in range(repeats)
    ]


def _survival(samples: Sequence[Sample]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    kept = [round_.accepted for item in samples for round_ in item.rounds if round_.drafted]
    reached = [sum(accepted >= k for accepted in kept) for k in range(max(kept, default=0) + 1)]
    return tuple(n / len(kept) for n in reached[1:]), tuple(b / a for a, b in pairwise(reached) if a)


def _ratios(samples: Sequence[Sample], plain: Sequence[Sample]) -> list[float]:
    before = {item.prompt: item.seconds for item in plain}
    return [before[item.prompt] / item.seconds for item in samples if item.repeat == 0 and item.prompt in before]


def _decoding(item: Sample) -> float:
    first = item.rounds[0]
    return item.seconds - (first.at - first.draft_seconds - first.verify_seconds - first.verdict_seconds)


def _category(samples: Sequence[Sample], plain: Sequence[Sample]) -> CategoryFigures:
    rounds = [round_ for item in samples for round_ in item.rounds]
    with_draft = [round_ for round_ in rounds if round_.drafted]
    ratios = _ratios(samples, plain)
    return CategoryFigures(
        prompts=len({item.prompt for item in samples}),
        acceptance_rate=sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds) if with_draft else None,
        acceptance_length=mean(r.tokens for r in with_draft) if with_draft else None,
        tokens_per_second=median(len(item.ids) / _decoding(item) for item in samples),
        speedup=geometric_mean(ratios) if ratios else None,
        speedup_interval=interval(ratios) if ratios else None,
    )


def _percentiles(values: Sequence[float]) -> Percentiles:
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99)]
    return Percentiles(p50=at[0], p95=at[1], p99=at[2])


def summary_of(index: int, case: Case, samples: Sequence[Sample], plain: Sequence[Sample]) -> Summary:
    """What the samples of a case amount to."""
    rounds = [round_ for item in samples for round_ in item.rounds]
    speculating = case.plain != case
    whole = _category(samples, plain if speculating else ())
    survival, conditional = _survival(samples)
    gaps = [b[0] - a[0] for item in samples for a, b in pairwise(item.arrivals)]
    each = [gap if n == 0 else 0.0 for item in samples for a, b in pairwise(item.arrivals)
            for n, gap in enumerate([b[0] - a[0]] * b[1])]  # fmt: skip
    per_round = {
        name: mean(getattr(round_, name) for round_ in rounds)
        for name in ("draft_seconds", "verify_seconds", "verdict_seconds")
    }
    decoding = sum(_decoding(item) for item in samples) / len(rounds)
    return Summary(
        case=index, prompts=whole.prompts, samples=len(samples), rounds=len(rounds),
        drafted=sum(r.drafted for r in rounds), accepted=sum(r.accepted for r in rounds),
        tokens=sum(r.tokens for r in rounds), acceptance_rate=whole.acceptance_rate,
        acceptance_length=whole.acceptance_length, survival=survival, conditional=conditional,
        tokens_per_pass=sum(r.tokens for r in rounds) / len(rounds),
        time_to_first=_percentiles([item.arrivals[0][0] for item in samples]),
        between_tokens=_percentiles(each), between_events=_percentiles(gaps),
        per_token=_percentiles([item.seconds / len(item.ids) for item in samples]),
        tokens_per_second=whole.tokens_per_second,
        throughput=sum(r.tokens for r in rounds) / sum(item.seconds for item in samples) * case.batch,
        speedup=whole.speedup, speedup_interval=whole.speedup_interval,
        verdict=verdict(whole.speedup_interval) if speculating and plain else None,
        **per_round, other_seconds=decoding - sum(per_round.values()),
        peak_memory=900 << 20, drafter_memory=270 << 20 if case.drafter.startswith("model") else 0,
        compared=len(samples) if speculating else 0, identical=len(samples) if speculating else 0,
        perplexity=6.25, lossless=not case.verifier.startswith("typical"),
        mean_tv=0.031 if case.verifier.startswith("typical") else None,
        mean_kl=0.27 if case.verifier.startswith("typical") else None,
        categories={
            category: _category([s for s in samples if s.category == category],
                                [s for s in plain if s.category == category] if speculating else ())
            for category in sorted({item.category for item in samples})
        },
    )  # fmt: skip


def results_of(cases: Sequence[tuple[Case, World]], **options: int) -> tuple[Results, list[Sample]]:
    """Results of these cases, each in its world; `options` as of `samples_of`."""
    samples = [item for n, (case, world) in enumerate(cases) for item in samples_of(world, n, case, **options)]
    summaries = []
    for n, (case, _) in enumerate(cases):
        plain = next((m for m, (other, _) in enumerate(cases) if other == case.plain), None)
        own = [item for item in samples if item.case == n]
        summaries.append(summary_of(n, case, own, [item for item in samples if item.case == plain]))
    return Results(manifest=MANIFEST, cases=tuple(case for case, _ in cases), summaries=tuple(summaries)), samples


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
        update={"costs": costs_of(SUFFIX), "traces": (TRACE,), "divergences": DIVERGENCES}
    ), samples
