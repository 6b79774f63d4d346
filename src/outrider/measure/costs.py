"""What a pass of the target costs, by tokens, batch and context, and what a drafter's token costs.

A pass over a few tokens reads the same weights as a pass over one. Up to which width that makes it as cheap, the knee,
decides what speculation can gain. Knows nothing of acceptance.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from ..api import Outrider
from ..errors import BadOption
from ..kv import KVCache, Seat, gather
from ..noise import SeededNoise
from ..sampling import Sampling
from ..target import prefill
from ..types import Budget, Tree
from . import machine

SCHEMA = 1
FREE = 1.25  # a pass that costs at most this much of a single token's is called free
DRAFT = 5  # tokens drafted at a time
_PLOTS = (".png", ".svg", ".pdf")
_TEXT = (5, 9, 17, 33, 65, 129, 257, 21, 42, 84)  # ids repeated as a prompt, so that retrieval finds something


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: all combinations of these.

    Attributes:
        widths: tokens per row and pass.
        batches: rows.
        contexts: tokens that lie in the cache before.
        repeats: alternating runs, of which the median counts.
    """

    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    batches: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (256,)
    repeats: int = 7

    @property
    def steps(self) -> int:
        """How often `measure` will report progress."""
        return len(self.batches) * len(self.contexts) * (self.repeats + 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """One kind of pass.

    Attributes:
        width, batch, context: see `Plan`.
        seconds: the median.
        samples: every measured pass, in seconds.
    """

    width: int
    batch: int
    context: int
    seconds: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured.

    Attributes:
        passes: one per combination.
        pass_bytes: bytes of weights that every pass reads.
        bandwidth: bytes per second of a large copy on the same machine.
        draft_seconds: of the drafter, per drafted token; None if it drafted nothing.
        drafted: tokens of one draft.
        configuration: what was measured; see `Outrider.configuration`.
    """

    passes: tuple[Cost, ...]
    pass_bytes: int
    bandwidth: float
    draft_seconds: float | None
    drafted: int
    configuration: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> dict[tuple[int, int], list[Cost]]:
        """(batch, context) -> its passes by width."""
        found: dict[tuple[int, int], list[Cost]] = {}
        for cost in sorted(self.passes, key=lambda cost: cost.width):
            found.setdefault((cost.batch, cost.context), []).append(cost)
        return found

    def ratio(self, cost: Cost) -> float:
        """A pass's time against that of the narrowest pass with the same batch and context."""
        return cost.seconds / self.lines[cost.batch, cost.context][0].seconds

    def knee(self, batch: int, context: int) -> int:
        """The widest pass that is still free."""
        return max(cost.width for cost in self.lines[batch, context] if self.ratio(cost) <= FREE)

    @property
    def bandwidth_share(self) -> float:
        """The share of the machine's bandwidth at which the cheapest pass reads its weights."""
        return self.pass_bytes / min(cost.seconds for cost in self.passes) / self.bandwidth

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `schema` counts up when a name changes its meaning."""
        passes = [{**asdict(cost), "ratio": self.ratio(cost)} for cost in self.passes]
        return {
            "schema": SCHEMA,
            "configuration": self.configuration,
            "passes": passes,
            "knees": [{"batch": b, "context": c, "width": self.knee(b, c), "free": FREE} for b, c in self.lines],
            "pass_bytes": self.pass_bytes,
            "bandwidth_bytes_per_second": self.bandwidth,
            "bandwidth_share": self.bandwidth_share,
            "draft_seconds_per_token": self.draft_seconds,
            "drafted": self.drafted,
            "machine": machine.describe(),
        }


def measure(llm: Outrider, plan: Plan, advance: Callable[[], None] = lambda: None) -> Costs:
    """Run the plan; `advance` is called `plan.steps` times on the way."""
    passes = [
        cost
        for batch in plan.batches
        for context in plan.contexts
        for cost in _passes(llm, plan, batch, context, advance)
    ]
    seconds, drafted = _draft(llm, plan)
    reached = machine.bandwidth(llm.target.device)
    return Costs(tuple(passes), llm.target.pass_bytes, reached, seconds, drafted, llm.configuration)


def _passes(llm: Outrider, plan: Plan, batch: int, context: int, advance: Callable[[], None]) -> Iterator[Cost]:
    cache = _cache(llm, batch, context, max(plan.widths))
    samples: dict[int, list[float]] = {width: [] for width in plan.widths}
    for turn in range(plan.repeats + 1):
        for width in plan.widths:
            trees = [Tree.chain([_TEXT[place % len(_TEXT)] for place in range(width)])] * batch
            started = perf_counter()
            llm.target.forward(trees, cache)
            machine.wait(llm.target.device)
            if turn:  # the first turn warms up
                samples[width].append(perf_counter() - started)
        advance()
    for width, seconds in samples.items():
        yield Cost(width, batch, context, statistics.median(seconds), tuple(seconds))


def _cache(llm: Outrider, batch: int, context: int, width: int) -> KVCache:
    """A cache with this much context in every row. What lies there does not matter to the time, so it is empty."""
    cache = llm.target.new_cache(batch, context + width)
    llm.target.forward([Tree.chain([0])] * batch, cache)  # allocates the layers
    cache.lengths = [context] * batch
    return cache


def _draft(llm: Outrider, plan: Plan) -> tuple[float | None, int]:
    """Seconds per drafted token, and how many were drafted at a time."""
    context = min(max(plan.contexts), llm.target.context - DRAFT - 1)
    ((samples, drafted),) = time_drafts(llm, [Budget(DRAFT)], 1, context, plan.repeats)
    return (statistics.median(samples) / drafted if drafted else None), drafted


def time_drafts(
    llm: Outrider,
    budgets: Sequence[Budget],
    batch: int,
    context: int,
    repeats: int,
    sampling: Sampling | None = None,
) -> list[tuple[list[float], int]]:
    """Seconds that the drafter takes to draft for a whole batch, time and again, on a text that repeats itself.

    Args:
        llm: its drafter is timed.
        budgets: of every row; they take turns.
        batch: rows.
        context: tokens of each, the pending one included.
        repeats: drafts that count; one more warms up.
        sampling: greedy if not given.

    Returns:
        For each budget the seconds of every draft, and the tokens of one row's.
    """
    prompt = [_TEXT[place % len(_TEXT)] for place in range(context)]
    cache = llm.target.new_cache(1, context)
    hidden = prefill(llm.target, prompt[:-1], cache, taps=llm.drafter.taps)
    seats = [Seat(cache) for _ in range(batch)]
    gather(seats)  # copies the row
    states = [llm.drafter.begin(prompt, hidden) for _ in seats]
    for state, seat in zip(states, seats, strict=True):
        llm.drafter.seated(state, seat)
    samples: list[list[float]] = [[] for _ in budgets]
    drafted = [0] * len(budgets)
    for turn, (place, budget) in product(range(repeats + 1), enumerate(budgets)):
        noises = [SeededNoise.for_draft(row, 0, llm.verifier.coupled) for row in range(batch)]
        started = perf_counter()
        drafts = llm.drafter.propose(states, [budget] * batch, [sampling or Sampling()] * batch, noises)
        machine.wait(llm.target.device)
        seconds, drafted[place] = perf_counter() - started, len(drafts[0].tree) - 1
        if turn:
            samples[place].append(seconds)
    for state in states:
        llm.drafter.end(state)
    return list(zip(samples, drafted, strict=True))


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """Numbers of 1 or more from a list like "1,2,8" or "1-5,8".

    Raises:
        BadOption: naming the option.
    """
    found: set[int] = set()
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isdecimal() and int(end) > 0 for end in ends) or int(ends[0]) > int(ends[1]):
            found.clear()
            break
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    if not found:
        raise BadOption(f"--{name} is {text!r}: write numbers of 1 or more with commas between, like 1,2,8 or 1-5.")
    return tuple(sorted(found))


def check_plot(path: Path) -> None:
    """Refuse, before any work, a plot that could not be drawn or written.

    Raises:
        BadOption: with the remedy.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadOption("Plots take an extra that is not installed: pip install 'outrider[report]'.")
    if path.suffix.lower() not in _PLOTS:
        raise BadOption(f"{path} is no kind of image known here: end it in one of {', '.join(_PLOTS)}.")
    if not path.parent.is_dir():
        raise BadOption(f"There is no folder {path.parent}: make it first.")


def draw_costs(costs: Costs, path: Path) -> None:
    """Draw pass time against width, a line per batch and context, into an image file that `check_plot` has passed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for (batch, context), line in costs.lines.items():
        label = f"batch {batch}, context {context}: free up to {costs.knee(batch, context)}"
        axes.plot([c.width for c in line], [c.seconds * 1e3 for c in line], marker="o", label=label)
    widths = sorted({cost.width for cost in costs.passes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("tokens per row in one pass")
    axes.set_ylabel("milliseconds per pass (median)")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{costs.configuration['target']}, {costs.configuration['dtype']}, {costs.configuration['build']}")
    axes.legend()
    figure.savefig(path, dpi=150)
