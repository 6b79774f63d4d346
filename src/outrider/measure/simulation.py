"""What recorded answers say of drafters and draft lengths, and how fast that would be. Runs no model.

Two ways. Answers are replayed (`replay.py`): exact for drafters that draft from text, whatever the length or tree. A
trace of rounds is cut down: for any drafter, but only to shorter drafts, and from survival, which is an estimate, for
shorter drafts would begin at other places.

Speed is passes and drafts over time: seconds of passes from a measured curve, or, without one, every pass the same and
drafting nothing, which is the most that there can be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import speed
from .. import tree as trees
from ..errors import BadOption
from ..stats import Stats
from ..types import Round, Tree
from .predicting import pass_seconds
from .results import PassCost

_LARGEST = 64 << 20  # bytes of a cost document


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast rounds would be.

    Attributes:
        speedup: against plain decoding, from the first token on.
        tokens_per_second: of one request; None without a curve.
        verify_seconds, draft_seconds: per round, the mean; None without a curve.
    """

    speedup: float
    tokens_per_second: float | None = None
    verify_seconds: float | None = None
    draft_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Shorter:
    """What a trace says of drafts that are no deeper than `k`.

    Attributes:
        k: tokens one after another.
        acceptance_length: tokens per round that has a draft, bonus included.
        tokens_per_pass: rounds without a draft included.
        speed: what that comes to.
    """

    k: int
    acceptance_length: float
    tokens_per_pass: float
    speed: Speed


def read_costs(path: Path, batch: int = 1) -> tuple[PassCost, ...]:
    """The curve of passes in a document of `outrider costs --json`, for one batch size.

    Raises:
        BadOption: it cannot be read, or has no such batch or no pass over one token.
    """
    if not path.is_file():
        raise BadOption(f"There is no file {path}: measure one with outrider costs --json > {path.name}.")
    if path.stat().st_size > _LARGEST:
        raise BadOption(f"{path} is larger than {_LARGEST >> 20} MiB: it is no document of outrider costs.")
    try:
        passes = json.loads(path.read_text(encoding="utf-8"))["passes"]
        found = tuple(PassCost(**{name: cost[name] for name in PassCost.model_fields}) for cost in passes)
    except (ValueError, KeyError, TypeError) as error:
        raise BadOption(f"{path} is no document of outrider costs: write one with outrider costs --json.") from error
    alike = tuple(cost for cost in found if cost.batch == batch)
    if not any(cost.width == 1 for cost in alike):
        raise BadOption(f"{path} has no pass over one token in a batch of {batch}: measure it with --widths 1,2,4,8.")
    return alike


def predict(rounds: Sequence[Round], costs: Sequence[PassCost]) -> Speed:
    """How fast these rounds would be, each a request's own.

    Args:
        rounds: replayed; their time for drafting counts as it is, for the drafter did run.
        costs: of passes in a batch of one; none at all means that passes cost the same and drafts nothing.

    Raises:
        BadOption: a pass was wider than those that were measured.
    """
    tokens = sum(len(round_.tokens) for round_ in rounds)
    if not costs:
        return Speed(speed.speedup(tokens / len(rounds), 1.0, 1.0))
    verify = sum(_seconds(costs, len(round_.tree), round_.start) for round_ in rounds) / len(rounds)
    plain = sum(_seconds(costs, 1, round_.start) * len(round_.tokens) for round_ in rounds) / tokens
    draft = sum(round_.draft_seconds for round_ in rounds) / len(rounds)
    return _speed(tokens / len(rounds), plain, verify, draft)


def rounds_of(records: Sequence[Mapping[str, Any]]) -> list[Round]:
    """Rounds from a recorded trace. The pending token is not recorded; 0 stands for it.

    Raises:
        BadOption: they are no rounds.
    """
    try:
        return [
            Round(
                request=record["request"],
                number=record["round"],
                start=record["start"],
                tree=Tree(torch.tensor([0, *record["draft_tokens"]]), torch.tensor([-1, *record["draft_parents"]])),
                path=tuple(record["path"]),
                tokens=tuple(record["tokens"]),
                finish=record["finish"],
                draft_seconds=record["draft_seconds"],
                verify_seconds=record["verify_seconds"],
            )
            for record in records
        ]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise BadOption(
            "The trace has a round that is none: record it with outrider generate --trace --json."
        ) from error


def shorter(rounds: Sequence[Round], costs: Sequence[PassCost], lengths: Sequence[int] = ()) -> tuple[Shorter, ...]:
    """What drafts cut at each depth would have come to, from the survival of the whole ones.

    Args:
        rounds: recorded.
        costs: see `predict`.
        lengths: the depths; all up to that of the deepest draft if there are none.

    Raises:
        BadOption: nothing was drafted, a length is larger than what was drafted, or a pass is wider than measured.
    """
    stats = Stats.of(rounds)
    levels = [trees.depths(round_.tree.parents).tolist() for round_ in rounds]
    deepest = max(max(found) for found in levels)
    if not stats.drafted:
        raise BadOption("Nothing was drafted in this trace, so it says nothing of drafts: record one with a drafter.")
    beyond = [length for length in lengths if length > deepest]
    if beyond:
        raise BadOption(
            f"The trace has drafts of at most {deepest} tokens, so it says nothing of k = {beyond[0]}: record longer "
            "ones, or take smaller k."
        )
    survival = (*stats.survival, *[0.0] * (deepest - len(stats.survival)))
    busy = sum(round_.drafted > 0 for round_ in rounds) / len(rounds)
    per_token = stats.draft_seconds / stats.drafted
    found = []
    for k in lengths or range(1, deepest + 1):
        length = speed.acceptance_length(survival[:k])
        tokens = busy * length + 1 - busy
        nodes = [sum(level <= k for level in own) for own in levels]
        if costs:
            starts = [round_.start for round_ in rounds]
            verify = sum(map(_seconds, [costs] * len(nodes), nodes, starts)) / len(rounds)
            plain = sum(_seconds(costs, 1, start) for start in starts) / len(rounds)
            reached = _speed(tokens, plain, verify, per_token * (sum(nodes) / len(rounds) - 1))
        else:
            reached = Speed(speed.speedup(tokens, 1.0, 1.0))
        found.append(Shorter(k, length, tokens, reached))
    return tuple(found)


def _speed(tokens: float, plain: float, verify: float, draft: float) -> Speed:
    faster = speed.speedup(tokens, plain, verify, draft)
    return Speed(faster, speed.goodput(tokens, verify, draft), verify, draft)


def _seconds(costs: Sequence[PassCost], width: int, context: int) -> float:
    found = pass_seconds(costs, width, costs[0].batch, context)
    if found is None:
        widest = max(cost.width for cost in costs)
        raise BadOption(
            f"A pass over {width} tokens is wider than the costs go, which is {widest}: measure wider ones with "
            "outrider costs --widths, or draft less."
        )
    return found
