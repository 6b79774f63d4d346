"""Tuning from end to end: record, time, predict, run the best, choose. Knows no terminal and no files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product

from .. import verify
from ..api import Outrider
from ..drafters import DRAFTERS, drafter_class
from ..drafters.options import split_specs
from ..errors import BadOption
from ..measure import costs as measuring
from ..measure.cases import expand
from ..measure.prompts import BenchPrompt
from ..measure.results import PLAIN, Case
from ..measure.runner import Plan, prepared
from ..measure.shapes import Shape
from ..sampling import Sampling
from ..types import Budget
from .prices import Level, Passes, Prices
from .recording import Run, record
from .search import Goal, Prediction, Recorded, Setting, best, contenders, predict
from .validation import Measured, answers, validate

TREES = (Shape(4, 8), Shape(4, 16))  # for drafters that make trees, where nothing is said
_REPEATS = 5  # alternating measurements of a pass and of a draft, of which the median counts
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # widths of passes that are measured

Bar = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Label and number of steps -> what is called after each of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at.

    Attributes:
        drafters: specs, without plain decoding, which is always looked at.
        lengths: of chains.
        trees: shapes; None takes `TREES` where a drafter makes trees.
        batches: requests served together.
        max_new_tokens: of every answer.
        verifier: spec of the rule.
        temperature: of the sampling.
        goal: what "best" means.
        validate: how many of the best to run; 0 believes the predictions.
        repeats: how often to run them.
    """

    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    trees: tuple[Shape, ...] | None
    batches: tuple[int, ...]
    max_new_tokens: int = 64
    verifier: str = verify.DEFAULT
    temperature: float = 0.0
    goal: Goal = "latency"
    validate: int = 3
    repeats: int = 1

    @classmethod
    def of(cls, drafters: str, **options: object) -> Wanted:
        """From a list of drafters as the command line has it.

        Raises:
            BadOption: a drafter that there is not, or none beside plain decoding; parts that do not go together; trees
                that nothing would make; a drafter whose drafts cannot be predicted from other ones.
        """
        specs = (spec.strip() for spec in split_specs(drafters, DRAFTERS))
        found = cls(tuple(dict.fromkeys(spec for spec in specs if spec not in ("", PLAIN))), **options)  # type: ignore[arg-type]
        if not found.drafters:
            raise BadOption("--drafters names no drafter to tune: plain decoding is there anyway, name another one.")
        for spec in found.drafters:
            if drafter_class(spec).always_branches:
                raise BadOption(
                    f"The drafter {spec!r} always makes trees, of another kind for every length, so one run does not "
                    "tell about the others: compare its lengths with outrider bench."
                )
        expand(
            list(found.drafters),
            k=str(max(found.lengths)),
            temperature=str(found.temperature),
            verifiers=found.verifier,
        )
        branching = [spec for spec in found.drafters if drafter_class(spec).makes_trees]
        if found.trees is not None and (not branching or verify.make_verifier(found.verifier).chains_only):
            raise BadOption("--trees would change nothing: no drafter named here makes trees that the verifier serves.")
        return found

    def case(self, drafter: str, shape: Shape | None, batch: int = 1) -> Case:
        """A setting as the runner knows it."""
        return Setting(drafter, shape, batch).case(self.verifier, self.temperature)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that was run.

    Attributes:
        setting: what.
        predicted: what was promised; None under a policy that decides by itself.
        measured: what came of it.
    """

    setting: Setting
    predicted: Prediction | None
    measured: Measured


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found.

    Attributes:
        wanted: what was looked at.
        configuration: of the target.
        costs: of passes.
        prices: of rounds.
        plain: how plain decoding went.
        recorded: how each drafter went, with chains and with trees.
        predictions: of every setting, plain decoding first.
        contenders: what was run, plain decoding of every batch first.
        prompts: how many were recorded.
        interrupted: by Ctrl-C, on the way.
    """

    wanted: Wanted
    configuration: dict[str, str]
    costs: measuring.Costs
    prices: Prices
    plain: Level
    recorded: tuple[Recorded, ...]
    predictions: tuple[Prediction, ...]
    contenders: tuple[Contender, ...]
    prompts: int
    interrupted: bool

    @property
    def chosen(self) -> Contender | Prediction:
        """The best by what was measured; by what was predicted where nothing was run."""
        if self.contenders:
            return max(self.contenders, key=lambda one: one.measured.value(self.wanted.goal))
        return best(self.predictions, self.wanted.goal)

    @property
    def promised(self) -> Prediction:
        """The best that was predicted."""
        return best(self.predictions, self.wanted.goal)


def tune(load: Callable[[], Outrider], wanted: Wanted, prompts: Sequence[BenchPrompt], bar: Bar) -> Tuning:
    """Find out.

    Args:
        load: gives the target, with `prefix_memory=0` and any drafter.
        wanted: what to look at.
        prompts: to measure on; as many as the largest batch, or more.
        bar: shows how far it has come.

    Raises:
        BadOption: what cannot work, before the work that it would spoil.
    """
    if wanted.validate and max(wanted.batches) > len(prompts):
        raise BadOption(
            f"A batch of {max(wanted.batches)} takes as many prompts and there are {len(prompts)}: give more prompts, "
            "a smaller --batch, or --validate 0."
        )
    llm = load()
    shapes, cases, llms = _recorded_cases(llm, wanted)
    with bar("recording", len(cases) * len(prompts)) as advance:
        runs, interrupted = record(llms, cases, shapes, prompts, wanted.max_new_tokens, advance)
    looked_at = [Shape.chain(k) for k in wanted.lengths] + list(_trees(wanted))
    prices = _prices(llm, wanted, llms, cases, shapes, runs, looked_at, bar)
    levels = {index: Level.of(run.timings, prices.passes) for index, run in runs.items()}
    recorded = tuple(
        Recorded(cases[index].drafter, run.recording, levels[index]) for index, run in runs.items() if index
    )
    found = tuple(predict(levels[0], recorded, prices, looked_at, wanted.batches))
    contended: tuple[Contender, ...] = ()
    if wanted.validate and not interrupted:
        contended, interrupted = _contest(llm, wanted, prompts, found, bar)
    return Tuning(
        wanted, _in_force(llm), prices.passes.costs, prices, levels[0], recorded, found, contended,
        len(runs[0].recording.answers), interrupted,
    )  # fmt: skip


def _in_force(llm: Outrider) -> dict[str, str]:
    """What is the same for all that is looked at."""
    names = ("target", "dtype", "device", "build", "quantize", "exactness")
    return {name: llm.configuration[name] for name in names}


def _trees(wanted: Wanted) -> tuple[Shape, ...]:
    if verify.make_verifier(wanted.verifier).chains_only:
        return ()
    return TREES if wanted.trees is None else wanted.trees


def _recorded_cases(llm: Outrider, wanted: Wanted) -> tuple[dict[int, Shape], dict[int, Case], dict[int, Outrider]]:
    """What is recorded: plain decoding, each drafter with the longest chain and, if it can, with the largest tree."""
    long = Shape.chain(max(wanted.lengths))
    shapes, cases = {0: Shape.chain(1)}, {0: wanted.case(PLAIN, None)}
    for spec in wanted.drafters:
        shapes[len(cases)], cases[len(cases)] = long, wanted.case(spec, long)
    llms = prepared(llm, cases)
    trees = _trees(wanted)
    branching = [cases[index].drafter for index, own in llms.items() if trees and own.drafter.makes_trees]
    if trees:
        large = Shape(max(tree.depth for tree in trees), max(tree.nodes for tree in trees))
        more = {len(cases) + place: wanted.case(spec, large) for place, spec in enumerate(branching)}
        shapes |= dict.fromkeys(more, large)
        cases |= more
        llms |= prepared(llm, more)
    return shapes, cases, llms


def _prices(
    llm: Outrider,
    wanted: Wanted,
    llms: Mapping[int, Outrider],
    cases: Mapping[int, Case],
    shapes: Mapping[int, Shape],
    runs: Mapping[int, Run],
    looked_at: Sequence[Shape],
    bar: Bar,
) -> Prices:
    """Time passes and drafts at the contexts and batches that matter."""
    contexts = [ends for run in runs.values() for ends in run.contexts]
    batches = tuple(sorted({1, *wanted.batches}))
    widest = 1 + max(shape.nodes for shape in shapes.values())
    widths = (*(step for step in _STEPS if step < widest), widest)
    farthest = llm.target.context - widest
    span = {min(max(1, start), farthest) for start in (min(s for s, _ in contexts), max(e for _, e in contexts))}
    plan = measuring.Plan(widths, batches, tuple(sorted(span)), _REPEATS)
    with bar("timing passes", plan.steps) as advance:
        costs = measuring.measure(llm, plan, advance)
    middle = statistics.fmean((start + end) / 2 for start, end in contexts)
    drafts: dict[tuple[str, Shape, int], float] = {}
    speculating = [index for index in shapes if index]
    with bar("timing drafts", len(speculating) * len(batches)) as advance:
        for index, batch in product(speculating, batches):
            known = [shape for shape in {shapes[index], *looked_at} if shape.fits(shapes[index])]
            budgets = [Budget(shape.depth, shape.nodes) for shape in known]
            context = max(1, min(round(middle), farthest))
            heat = Sampling(temperature=wanted.temperature)
            timed = measuring.time_drafts(llms[index], budgets, batch, context, _REPEATS, heat)
            for shape, (seconds, _) in zip(known, timed, strict=True):
                drafts[cases[index].drafter, shape, batch] = statistics.median(seconds)
            advance()
    return Prices(Passes(costs), drafts, middle)


def _contest(
    llm: Outrider, wanted: Wanted, prompts: Sequence[BenchPrompt], predictions: Sequence[Prediction], bar: Bar
) -> tuple[tuple[Contender, ...], bool]:
    """Run the best, plain decoding beside them, and the best drafter under a policy that decides by itself."""
    chosen = contenders(predictions, wanted.goal, wanted.validate)
    alone = {one.setting.batch: one for one in predictions if one.setting.drafter == PLAIN}
    promised = best(predictions, wanted.goal).setting.batch
    everything: dict[Setting, Prediction | None] = {
        alone[batch].setting: alone[batch]
        for batch in dict.fromkeys([*(one.setting.batch for one in chosen), promised])
    }
    everything |= {one.setting: one for one in chosen}
    everything[replace(chosen[0].setting, shape=None)] = None
    cases = {index: setting.case(wanted.verifier, wanted.temperature) for index, setting in enumerate(everything)}
    plan = Plan(wanted.max_new_tokens, wanted.repeats)
    with bar("running the best", answers(cases.values(), len(prompts), wanted.repeats)) as advance:
        found, interrupted = validate(llm, cases, prompts, plan, advance)
    contended = [
        Contender(setting, predicted, found[index])
        for index, (setting, predicted) in enumerate(everything.items())
        if index in found
    ]
    return tuple(contended), interrupted
