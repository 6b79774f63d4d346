"""`outrider simulate`: replay a log or cut down a trace, show what would have come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..drafters import DRAFTERS
from ..drafters.options import split_specs
from ..errors import BadOption
from ..loading import Loader
from ..measure.costs import parse_numbers
from ..measure.logs import Log, read_log, read_rounds
from ..measure.replay import drafter_for, policy_for, replay
from ..measure.results import PassCost
from ..measure.simulation import Speed, predict, read_costs
from ..stats import Stats
from ..tune.traces import Shorter, shorter
from .showing import progress_bar, versions

SCHEMA = 1
FLAT = (
    "No costs were given: every pass counts as one and drafting as nothing, so the speed is the most there can be. "
    "Measure costs with outrider costs --json, and give them with --costs."
)
CURVE = "Passes cost what the curve says, of one request alone; drafting what it took here."
FROM_TRACE = "Passes cost what the curve says, of one request alone; drafting what it took per token in the trace."
FROM_ROUNDS = (
    "The recorded rounds were gone through again. What nobody drafted there is taken from the rounds around it, so "
    "these are estimates; record with the policy fixed:K. A replay (--log) is exact."
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to simulate: `log` or `trace`, and how."""

    log: Path | None
    trace: Path | None
    drafters: str | None
    k: str | None
    nodes: str | None
    batch: int | None
    costs: Path | None
    tokenizer: str | None
    offline: bool

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            BadOption: with the remedy.
        """
        if (self.log is None) == (self.trace is None):
            raise BadOption("Give one of --log (answers to be replayed) and --trace (recorded rounds).")
        if self.trace is not None:
            given = {"--drafters": self.drafters, "--nodes": self.nodes, "--batch": self.batch}
            given["--tokenizer"] = self.tokenizer
            vain = [name for name, value in given.items() if value is not None]
            if vain:
                raise BadOption(f"{vain[0]} changes nothing for a trace, whose drafts are recorded: leave it out.")
        if self.costs is not None and (self.batch or 1) > 1:
            raise BadOption("Costs are applied to one request alone: leave out --costs, or --batch.")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One drafter with one policy.

    Attributes:
        drafter: as it was asked for.
        spec: the same spelled out.
        policy: of drafts.
        stats: of the rounds.
        speed: what they come to.
    """

    drafter: str
    spec: str
    policy: str
    stats: Stats
    speed: Speed

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        about = {"drafter": self.drafter, "spec": self.spec, "policy": self.policy}
        return {**about, "stats": self.stats.as_dict(), "speed": asdict(self.speed)}


def run(wanted: Wanted, *, show: bool) -> dict[str, Any]:
    """Simulate, show it as a table; the document is what `--json` prints. Ctrl-C keeps what is done."""
    wanted.check()
    costs = () if wanted.costs is None else read_costs(wanted.costs)
    if wanted.trace is not None:
        return _traced(wanted, wanted.trace, costs, show)
    assert wanted.log is not None
    tokenizer = None if wanted.tokenizer is None else Loader(offline=wanted.offline).tokenizer(wanted.tokenizer)
    specs = split_specs(wanted.drafters or "suffix,lookup", DRAFTERS)
    policies = _policies(wanted.k or "1,2,4,8", wanted.nodes)
    for spec in specs:
        policy_for(policies[-1], drafter_for(spec, 1, tokenizer))  # before the log is read
    log = read_log(wanted.log, tokenizer)
    together = wanted.batch or (1 if costs else log.together)
    cases, interrupted = _replayed(log, specs, policies, costs, together, tokenizer)
    notes = [CURVE if costs else FLAT]
    if interrupted:
        notes.append("Interrupted: what is done is kept.")
    if show:
        _show(cases, log, notes)
    return {
        "schema": SCHEMA,
        "log": str(wanted.log),
        "answers": len(log.answers),
        "tokens": sum(len(answer.output) for answer in log.answers),
        "batch": together,
        "cases": [case.as_dict() for case in cases],
        "notes": notes,
        "versions": versions(),
    }


def _policies(k: str, nodes: str | None) -> list[str]:
    """Chains of each length; or trees of each depth and each size above it."""
    depths = parse_numbers(k, "k")
    if nodes is None:
        return [f"fixed:{depth}" for depth in depths]
    sizes = parse_numbers(nodes, "nodes")
    found = [f"fixed:{depth},{size}" for depth in depths for size in sizes if size > depth]
    if not found:
        raise BadOption(f"--nodes {nodes} has no tree: give more nodes than --k {k}, or leave --nodes out for chains.")
    return found


def _replayed(
    log: Log, specs: Sequence[str], policies: Sequence[str], costs: Sequence[PassCost], together: int, tokenizer: Any
) -> tuple[list[Simulated], bool]:
    """Every drafter with every policy, each afresh; and whether that was broken off."""
    vocabulary = max(log.vocabulary, 0 if tokenizer is None else len(tokenizer))
    cases: list[Simulated] = []
    steps = len(log.answers) * len(specs) * len(policies)
    with progress_bar("replaying", steps) as advance:
        try:
            for spec in specs:
                for policy in policies:
                    drafter = drafter_for(spec, vocabulary, tokenizer)
                    maker = policy_for(policy, drafter)
                    rounds = replay(log.answers, drafter, maker, vocabulary, together=together, advance=advance)
                    cases.append(Simulated(spec, drafter.spec, policy, Stats.of(rounds), predict(rounds, costs)))
        except KeyboardInterrupt:
            return cases, True
    return cases, False


def _traced(wanted: Wanted, path: Path, costs: Sequence[PassCost], show: bool) -> dict[str, Any]:
    """What the recorded rounds say of shorter drafts."""
    lengths = () if wanted.k is None else parse_numbers(wanted.k, "k")
    answers = read_rounds(path)
    recorded = Stats.of(round_ for rounds in answers for round_ in rounds)
    found = shorter(answers, costs, lengths)
    notes = [FROM_ROUNDS, FROM_TRACE if costs else FLAT]
    if show:
        _show_trace(found, recorded, notes)
    return {
        "schema": SCHEMA,
        "trace": str(path),
        "recorded": recorded.as_dict(),
        "cases": [asdict(case) for case in found],
        "notes": notes,
        "versions": versions(),
    }


def _show(cases: Sequence[Simulated], log: Log, notes: Sequence[str]) -> None:
    console = Console(highlight=False)
    tokens = sum(len(answer.output) for answer in log.answers)
    grid = Table(title=f"{len(log.answers)} answers, {tokens} tokens, replayed", title_justify="left")
    columns = ("drafter", "policy", "acceptance length", "accepted", "tokens per pass", "speed", "tokens/s")
    for name in columns:
        grid.add_column(name, justify="left" if name in columns[:2] else "right", overflow="fold")
    for case in cases:
        stats = case.stats
        grid.add_row(
            case.drafter,
            case.policy,
            _figure(stats.acceptance_length),
            "" if stats.acceptance_rate is None else f"{stats.acceptance_rate:.0%}",
            _figure(stats.tokens_per_pass),
            _figure(case.speed.speedup),
            "" if case.speed.tokens_per_second is None else f"{case.speed.tokens_per_second:.1f}",
        )
    console.print(grid)
    if cases:
        best = max(cases, key=lambda case: case.speed.speedup)
        console.print(_fastest(f"{best.drafter} with {best.policy}", best.speed))
    for note in notes:
        console.print(note, style="dim")


def _show_trace(found: Sequence[Shorter], recorded: Stats, notes: Sequence[str]) -> None:
    console = Console(highlight=False)
    title = f"{recorded.rounds} rounds, acceptance length {_figure(recorded.acceptance_length)} as recorded"
    grid = Table(title=title, title_justify="left")
    for name in ("k", "acceptance length", "tokens per pass", "speed", "tokens/s"):
        grid.add_column(name, justify="right")
    for case in found:
        rate = case.speed.tokens_per_second
        grid.add_row(
            str(case.k),
            _figure(case.acceptance_length),
            _figure(case.tokens_per_pass),
            _figure(case.speed.speedup),
            "" if rate is None else f"{rate:.1f}",
        )
    console.print(grid)
    best = max(found, key=lambda case: case.speed.speedup)
    console.print(_fastest(f"k = {best.k}", best.speed))
    for note in notes:
        console.print(note, style="dim")


def _fastest(what: str, reached: Speed) -> str:
    if reached.speedup <= 1:
        return f"Nothing here would be faster than plain decoding; the nearest is {what}."
    return f"The fastest: {what}, {reached.speedup:.2f} times plain decoding."


def _figure(value: float | None) -> str:
    return "nothing drafted" if value is None else f"{value:.2f}"
