"""Lets plain decoding and each drafter answer the prompts once, in turns, and keeps what tuning needs of it.

The text of prompts and answers is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..api import Output, Outrider
from ..errors import BadOption
from ..measure.prompts import BenchPrompt
from ..measure.recorded import Answer, Drafted, Recording
from ..measure.results import Case, Sample
from ..measure.runner import Plan, run, turns, warm_up
from ..measure.shapes import Shape
from .prices import Timing


@dataclass(frozen=True, slots=True)
class Run:
    """What one case did.

    Attributes:
        recording: its drafts.
        timings: its rounds, but the first of each answer, of which the time is not known.
        contexts: (tokens of the prompt, tokens with the answer), an answer each.
    """

    recording: Recording
    timings: tuple[Timing, ...]
    contexts: tuple[tuple[int, int], ...]


def record(
    llms: Mapping[int, Outrider],
    cases: Mapping[int, Case],
    shapes: Mapping[int, Shape],
    prompts: Sequence[BenchPrompt],
    max_new_tokens: int,
    advance: Callable[[], None] = lambda: None,
) -> tuple[dict[int, Run], bool]:
    """Run each case once over the prompts, one request at a time.

    Args:
        llms: see `runner.prepared`.
        cases: by the same indices, with a batch of 1.
        shapes: what each of them asks its drafter for; of plain decoding one token, which is not drafted.
        prompts: to answer.
        max_new_tokens: of every answer.
        advance: called after every answer.

    Returns:
        A run per case, and whether Ctrl-C ended it early: then of those prompts that all cases have answered.

    Raises:
        BadOption: all answers ended in their first round.
        KeyboardInterrupt: before every case had answered a prompt.
    """
    plan = Plan(max_new_tokens, repeats=1)
    found: dict[int, dict[str, tuple[Sample, Answer]]] = {index: {} for index in cases}

    def told(sample: Sample, output: Output) -> None:
        answer = Answer(tuple(Drafted.of(round_) for round_ in output.rounds), output.finish_reason == "length")
        found[sample.case][sample.prompt] = (sample, answer)

    interrupted = False
    try:
        warm_up(llms, cases, prompts, plan)
        for _ in run(llms, cases, turns(cases, prompts, plan), plan, told=told):
            advance()
    except KeyboardInterrupt:
        interrupted = True
    whole = [prompt.id for prompt in prompts if all(prompt.id in answered for answered in found.values())]
    if not whole:
        raise KeyboardInterrupt
    runs = {index: _run([answered[prompt] for prompt in whole], shapes[index]) for index, answered in found.items()}
    if not all(run_.timings for run_ in runs.values()):
        raise BadOption("The answers end in their first round, which tells no times: raise --max-new-tokens.")
    return runs, interrupted


def _run(answers: Sequence[tuple[Sample, Answer]], asked: Shape) -> Run:
    return Run(
        Recording(asked, tuple(answer for _, answer in answers)),
        tuple(timing for sample, _ in answers for timing in _timings(sample)),
        tuple((sample.prompt_tokens, sample.prompt_tokens + len(sample.ids)) for sample, _ in answers),
    )


def _timings(sample: Sample) -> list[Timing]:
    found, context = [], sample.prompt_tokens - 1
    for before, round_ in pairwise(sample.rounds):
        context += before.tokens
        other = max(0.0, round_.at - before.at - round_.draft_seconds - round_.verify_seconds)
        found.append(Timing(round_.nodes, context, round_.draft_seconds, round_.verify_seconds, other))
    return found
