"""Answers prompts under several configurations, fairly, and says what each answer cost. Knows no files and no terminal.

Fairly means: warm before the first clock starts; the configurations take turns, prompt by prompt and in an order that
rotates, so that a drift of the machine meets all alike; every prompt is read anew (the target keeps no prefixes); and
what a drafter learned from finished answers is dropped before each batch, for a repeat would else draft the very answer
that it has seen. With `keep_history` it is dropped before each repeat only, so that a drafter learns from the prompts
before, as it would in a server.

Times come from the loop's own rounds and from one clock around them: all tokens of a pass have the same arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

Load = Callable[[str | None], Outrider]
"""Loads the target with a quantization, or None; it must keep no prefixes (`prefix_memory=0`)."""
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
    load: Load,
    cases: Sequence[Case],
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    *,
    done: frozenset[Key] = frozenset(),
    told: Told | None = None,
) -> Iterator[Sample]:
    """Measure everything that is not done yet.

    Targets are loaded one after the other, as the cases' quantizations first occur, and let go before the next.

    Args:
        load: see `Load`.
        cases: those with the same batch and quantization take turns.
        prompts: in this order they are put into batches.
        plan: how.
        done: samples that are known; a batch with one that is not is served again as a whole.
        told: is shown every sample with the output itself, which holds the rounds.

    Raises:
        BadOption, BadPrompt: as `load` and `Outrider.using` do; a prompt that does not fit.
    """
    for quantize in dict.fromkeys(case.quantize for case in cases):
        own = {index: case for index, case in enumerate(cases) if case.quantize == quantize}
        left = [
            turn
            for batch in dict.fromkeys(case.batch for case in own.values())
            for turn in _turns({index: case for index, case in own.items() if case.batch == batch}, prompts, plan)
            if not all((turn.case, prompt.id, turn.repeat) in done for prompt in turn.prompts)
        ]
        if left:
            llm = load(quantize)
            llms = prepared(llm, {turn.case: cases[turn.case] for turn in left})
            warm_up(llms, cases, prompts, plan)
            yield from _measured(llms, cases, left, plan, told)
            del llm, llms


@dataclass(frozen=True, slots=True)
class _Turn:
    """A batch of prompts to be served once under one case."""

    case: int
    repeat: int
    group: int
    prompts: tuple[BenchPrompt, ...]


def _turns(own: Mapping[int, Case], prompts: Sequence[BenchPrompt], plan: Plan) -> Iterator[_Turn]:
    """All turns of cases with the same batch, in order: another case begins with each batch of prompts."""
    indices = list(own)
    batch = next(iter(own.values())).batch
    turn = 0
    for repeat in range(plan.repeats):
        for group, first in enumerate(range(0, len(prompts), batch)):
            part = tuple(prompts[first : first + batch])
            start = turn % len(indices)
            for index in (*indices[start:], *indices[:start]):
                yield _Turn(index, repeat, group, part)
            turn += 1


def prepared(llm: Outrider, cases: Mapping[int, Case]) -> dict[int, Outrider]:
    """The target with each case's parts around it.

    Raises:
        BadOption: parts that do not go together; a drafter that needs more than a prompt.
    """
    llms = {}
    for index, case in cases.items():
        llms[index] = llm.using(case.drafter, case.verifier, f"fixed:{case.k}" if case.k else case.policy or DEFAULT)
        llms[index].drafter.check_prediction(())
    return llms


def warm_up(llms: Mapping[int, Outrider], cases: Sequence[Case], prompts: Sequence[BenchPrompt], plan: Plan) -> None:
    """A few tokens under every case, which do not count."""
    for index, llm in llms.items():
        part = [prompt.fitted(llm.tokenizer) for prompt in prompts[: cases[index].batch]]
        sampling = Sampling(temperature=cases[index].temperature, seed=plan.seed)
        for _ in llm.batch(part, sampling=sampling, max_new_tokens=min(WARM_UP, plan.max_new_tokens)):
            pass
        llm.drafter.forget()


def _measured(
    llms: Mapping[int, Outrider], cases: Sequence[Case], turns: Sequence[_Turn], plan: Plan, told: Told | None
) -> Iterator[Sample]:
    repeats: dict[int, int] = {}
    for turn in turns:
        llm, case = llms[turn.case], cases[turn.case]
        if not plan.keep_history or repeats.get(turn.case) != turn.repeat:
            llm.drafter.forget()
        repeats[turn.case] = turn.repeat
        sampling = Sampling(temperature=case.temperature, seed=plan.seed + turn.repeat)
        for sample, output in _served(llm, turn, plan.max_new_tokens, sampling):
            if told is not None:
                told(sample, output)
            yield sample


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
        turn = _Turn(case_index, repeat, group, tuple(prompts[first : first + batch]))
        samples += [sample for sample, _ in _served(llm, turn, max_new_tokens, sampling)]
    return samples


def _served(llm: Outrider, turn: _Turn, max_new_tokens: int, sampling: Sampling) -> list[tuple[Sample, Output]]:
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
            prompt_tokens=len(output.prompt_ids),
            seconds=rounds[-1].at,
            rounds=rounds,
            arrivals=tuple((round_.at, round_.tokens) for round_ in rounds),
            ids=tuple(output.token_ids),
            text=output.text,
            finish_reason=output.finish_reason,
            seed=output.seed,
            group=turn.group if len(turn.prompts) > 1 else None,
            started=began,
            peak_memory=peak,
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
