"""Answers prompts under several configurations, fairly, and says what each answer cost. Knows no files and no terminal.

Fairly means: warm before the first clock starts; the configurations take turns, prompt by prompt and in an order that
rotates, so that a drift of the machine meets all alike; every prompt is read anew (the target keeps no prefixes); and
what a drafter learned from finished answers is dropped before each batch, for a repeat would else draft the very answer
that it has seen. With `keep_history` it is dropped before each repeat only, so that a drafter learns from the prompts
before, as it would in a server. What a policy learned of costs (`goodput`) stays in either case: it is of the machine,
not of the text.

Times come from the loop's own rounds and from one clock around them: all tokens of a pass have the same arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter, time

from ..api import Output, Outrider
from ..policy import DEFAULT
from ..sampling import Sampling
from ..stats import Tally, finite
from ..tree import depths
from ..types import Round
from . import held
from .prompts import BenchPrompt
from .results import Case, RoundFigures, Sample

WARM_UP = 8  # tokens per case, which allocate buffers, choose kernels and compile

Key = tuple[int, str, int]
"""Case, prompt and repeat of a sample."""
Told = Callable[[Sample, Output], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to measure.

    Attributes:
        max_new_tokens: of every answer.
        repeats: of every prompt under every case.
        seed: of the first repeat; the others have the numbers after it.
        keep_history: see the module.
    """

    max_new_tokens: int = 100
    repeats: int = 3
    seed: int = 0
    keep_history: bool = False


def run(
    llms: Mapping[int, Outrider],
    cases: Mapping[int, Case],
    turns: Sequence[Turn],
    plan: Plan,
    *,
    told: Told | None = None,
    unused: Mapping[int, int] | None = None,
    others: Mapping[int, Other] | None = None,
) -> Iterator[Sample]:
    """Take these turns, in their order.

    Args:
        llms: see `prepared`; warm.
        cases: by their indices.
        turns: see `turns`.
        plan: how.
        told: is shown every sample with the output itself, which holds the rounds.
        unused: case -> bytes that the process holds for other cases only, which do not count as its memory.
        others: who serves the cases of other systems, which `llms` does not have.

    Raises:
        BadPrompt: one that does not fit.
    """
    repeats: dict[int, int] = {}
    for turn in turns:
        held_elsewhere = (unused or {}).get(turn.case, 0)
        if others is not None and turn.case in others:
            yield from others[turn.case](turn, held_elsewhere)
            continue
        llm = llms[turn.case]
        if not plan.keep_history or repeats.get(turn.case) != turn.repeat:
            llm.drafter.forget()
        repeats[turn.case] = turn.repeat
        sampling = Sampling(temperature=cases[turn.case].temperature, seed=plan.seed + turn.repeat)
        for sample, output in _served(llm, turn, plan.max_new_tokens, sampling, held_elsewhere):
            if told is not None:
                told(sample, output)
            yield sample


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch of prompts to be served once under one case.

    Attributes:
        case: its index.
        repeat: 0, 1, ...
        group: which of the batches this is.
        prompts: of the batch.
    """

    case: int
    repeat: int
    group: int
    prompts: tuple[BenchPrompt, ...]


Other = Callable[[Turn, int], list[Sample]]
"""Serves a batch in another system, given the bytes that the process holds for other cases only."""


def turns(
    cases: Mapping[int, Case], prompts: Sequence[BenchPrompt], plan: Plan, done: frozenset[Key] = frozenset()
) -> list[Turn]:
    """What is to be done, in order: batch size by batch size, and with each batch of prompts another case begins.

    Args:
        cases: of one target, by their indices.
        prompts: in this order they are put into batches.
        plan: how often.
        done: samples that are known; a batch with one that is not is served again as a whole.
    """
    found = []
    for batch in dict.fromkeys(case.batch for case in cases.values()):
        indices = [index for index, case in cases.items() if case.batch == batch]
        groups = [tuple(prompts[first : first + batch]) for first in range(0, len(prompts), batch)]
        for place, (repeat, group) in enumerate(product(range(plan.repeats), range(len(groups)))):
            start = place % len(indices)
            for index in (*indices[start:], *indices[:start]):
                if not all((index, prompt.id, repeat) in done for prompt in groups[group]):
                    found.append(Turn(index, repeat, group, groups[group]))
    return found


def prepared(llm: Outrider, cases: Mapping[int, Case]) -> dict[int, Outrider]:
    """The target with each case's parts around it.

    Args:
        llm: the target as the cases want it quantized; it must keep no prefixes (`prefix_memory=0`).
        cases: by their indices.

    Raises:
        BadOption: parts that do not go together; a drafter that needs more than a prompt.
    """
    llms = {}
    for index, case in cases.items():
        llms[index] = llm.using(case.drafter, case.verifier, f"fixed:{case.k}" if case.k else case.policy or DEFAULT)
        llms[index].drafter.check_prediction(())
    return llms


def warm_up(
    llms: Mapping[int, Outrider], cases: Mapping[int, Case], prompts: Sequence[BenchPrompt], plan: Plan
) -> None:
    """A few tokens under every case, which do not count."""
    for index, llm in llms.items():
        part = [prompt.fitted(llm.tokenizer) for prompt in prompts[: cases[index].batch]]
        sampling = Sampling(temperature=cases[index].temperature, seed=plan.seed)
        for _ in llm.batch(part, sampling=sampling, max_new_tokens=min(WARM_UP, plan.max_new_tokens)):
            pass
        llm.drafter.forget()


def run_case(
    llm: Outrider,
    case_index: int,
    prompts: Sequence[BenchPrompt],
    max_new_tokens: int,
    seed: int = 0,
    repeat: int = 0,
    *,
    batch: int = 1,
    temperature: float = 0.0,
) -> list[Sample]:
    """Answer prompts once under one configuration, which `llm` is; `run` is the fair comparison of several.

    Args:
        llm: target, drafter, verifier and policy in force; loaded with `prefix_memory=0`, and warm.
        case_index, repeat: for the samples.
        prompts: served `batch` at a time, in this order.
        max_new_tokens, seed, temperature: of every answer.
    """
    sampling, samples = Sampling(temperature=temperature, seed=seed), []
    for group, first in enumerate(range(0, len(prompts), batch)):
        llm.drafter.forget()
        turn = Turn(case_index, repeat, group, tuple(prompts[first : first + batch]))
        samples += [sample for sample, _ in _served(llm, turn, max_new_tokens, sampling)]
    return samples


def _served(
    llm: Outrider, turn: Turn, max_new_tokens: int, sampling: Sampling, unused: int = 0
) -> list[tuple[Sample, Output]]:
    """Serve a batch under the clock; the samples are made when it has stopped."""
    prompts = [prompt.fitted(llm.tokenizer) for prompt in turn.prompts]
    batch = llm.batch(prompts, sampling=sampling, max_new_tokens=max_new_tokens)
    arrivals: list[tuple[Round, float]] = []
    tells, now = held.reset_peak(llm.target.device), 0.0
    began, started = time(), perf_counter()
    for round_ in batch:
        if round_.place == 0:
            now = perf_counter() - started
        arrivals.append((round_, now))
    peak = held.peak(llm.target.device) if tells else None
    found = []
    for index, (prompt, output) in enumerate(zip(turn.prompts, batch.outputs, strict=True)):
        rounds = tuple(figures(round_, at) for round_, at in arrivals if round_.request == index)
        sample = Sample(
            case=turn.case,
            prompt=prompt.id,
            category=prompt.category,
            repeat=turn.repeat,
            prompt_tokens=output.prompt_tokens,
            seconds=rounds[-1].at,
            rounds=rounds,
            arrivals=tuple((round_.at, round_.tokens) for round_ in rounds),
            ids=tuple(output.token_ids),
            text=output.text,
            finish_reason=output.finish_reason,
            seed=output.seed,
            group=turn.group if len(turn.prompts) > 1 else None,
            started=began,
            peak_memory=None if peak is None else peak - unused,
        )
        found.append((sample, output))
    return found


def figures(round_: Round, at: float) -> RoundFigures:
    """A round in figures, its tokens having come `at` seconds after the start."""
    tally = Tally.of(round_)
    return RoundFigures(
        drafted=tally.drafted,
        depth=int(depths(round_.tree.parents).max()),
        accepted=tally.accepted,
        tokens=tally.tokens,
        at=at,
        draft_seconds=tally.draft_seconds,
        verify_seconds=tally.verify_seconds,
        verdict_seconds=round_.verdict_seconds,
        rows=round_.rows,
        nodes=round_.nodes,
        place=round_.place,
        tv=tally.tv,
        kl=finite(tally.kl),
    )
