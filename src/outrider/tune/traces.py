"""What a recorded trace says of shorter drafts, for any drafter: what they come to, and how fast that would be.

The trace is gone through again by `measure.recorded`. Survival alone would be too low: rounds of shorter drafts begin
elsewhere (docs/speed.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ..errors import BadOption
from ..measure.recorded import Answer, Drafted, Recording
from ..measure.results import PassCost
from ..measure.shapes import Shape
from ..measure.simulation import Speed, flat, reached, seconds
from ..types import Round


@dataclass(frozen=True, slots=True)
class Shorter:
    """What drafts that are no deeper than `k` come to.

    Attributes:
        k: tokens one after another.
        acceptance_length: tokens per round that has a draft, bonus included.
        tokens_per_pass: rounds without a draft included.
        survival: s_1 to s_k over the rounds that have a draft.
        speed: what that comes to.
    """

    k: int
    acceptance_length: float
    tokens_per_pass: float
    survival: tuple[float, ...]
    speed: Speed


def shorter(
    answers: Sequence[Sequence[Round]], costs: Sequence[PassCost], lengths: Sequence[int] = ()
) -> tuple[Shorter, ...]:
    """What drafts of other depths would have come to; trees keep their number of nodes.

    Args:
        answers: the rounds of each, recorded with a policy that asked for the same every time.
        costs: of passes in a batch of one; none at all means that passes cost the same and drafts nothing.
        lengths: the depths; all up to that of the deepest draft if there are none.

    Raises:
        BadOption: nothing was drafted, a length is larger than what was drafted, or a pass is wider than measured.
    """
    drafted = [tuple(map(Drafted.of, rounds)) for rounds in answers]
    deepest = max(max(one.levels) for one in chain(*drafted))
    most = max(len(one.parents) - 1 for one in chain(*drafted))
    if not deepest:
        raise BadOption("Nothing was drafted in this trace, so it says nothing of drafts: record one with a drafter.")
    beyond = [length for length in lengths if length > deepest]
    if beyond:
        raise BadOption(
            f"The trace has drafts of at most {deepest} tokens, so it says nothing of k = {beyond[0]}: record longer "
            "ones, or take smaller k."
        )
    told = zip(answers, drafted, strict=True)
    cut = (Answer(own, rounds[-1].finish == "length") for rounds, own in told if rounds)
    recording = Recording(Shape(deepest, most), tuple(cut))
    every = list(chain(*answers))
    per_token = sum(one.draft_seconds for one in every) / sum(one.drafted for one in every)
    context = statistics.fmean(one.start for one in every)
    return tuple(
        _at(recording, Shape(k, most if most > deepest else k), costs, context, per_token)
        for k in lengths or range(1, deepest + 1)
    )


def _at(recording: Recording, shape: Shape, costs: Sequence[PassCost], context: float, per_token: float) -> Shorter:
    behaviour = recording.behaviour(shape)
    length, survival = (
        behaviour.acceptance_length,
        tuple(share / (1 - behaviour.drafted[0]) for share in behaviour.survival),
    )
    if not costs:
        return Shorter(shape.depth, length, behaviour.tokens, survival, flat(behaviour.tokens))
    shares = [(share, count) for count, share in enumerate(behaviour.drafted) if share > 0]
    verify = sum(share * seconds(costs, count + 1, context) for share, count in shares)
    draft = per_token * sum(share * count for share, count in shares)
    speed = reached(behaviour.tokens, seconds(costs, 1, context), verify, draft)
    return Shorter(shape.depth, length, behaviour.tokens, survival, speed)
