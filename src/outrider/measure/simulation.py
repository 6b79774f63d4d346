"""How fast rounds would be on a machine whose passes have been measured, or on one where every pass costs the same.

Knows rounds and costs, not how either came about. Without a curve every pass is one and drafting nothing, which is the
most that there can be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import speed
from ..errors import BadOption
from ..types import Round
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
        return flat(tokens / len(rounds))
    verify = sum(seconds(costs, len(round_.tree), round_.start) for round_ in rounds) / len(rounds)
    plain = sum(seconds(costs, 1, round_.start) * len(round_.tokens) for round_ in rounds) / tokens
    draft = sum(round_.draft_seconds for round_ in rounds) / len(rounds)
    return reached(tokens / len(rounds), plain, verify, draft)


def flat(tokens: float) -> Speed:
    """Where every pass costs the same and drafting nothing."""
    return Speed(speed.speedup(tokens, 1.0, 1.0))


def reached(tokens: float, plain: float, verify: float, draft: float) -> Speed:
    """By the speed model: tokens of a round, and seconds of a plain pass, of a round's pass and of its draft."""
    faster = speed.speedup(tokens, plain, verify, draft)
    return Speed(faster, speed.goodput(tokens, verify, draft), verify, draft)


def seconds(costs: Sequence[PassCost], width: int, context: float) -> float:
    """Of a pass over so many tokens, with the measured context that comes nearest.

    Raises:
        BadOption: it is wider than those that were measured.
    """
    nearest = min({cost.context for cost in costs}, key=lambda measured: abs(measured - context))
    found = pass_seconds([cost for cost in costs if cost.context == nearest], width, costs[0].batch)
    if found is None:
        widest = max(cost.width for cost in costs)
        raise BadOption(
            f"A pass over {width} tokens is wider than the costs go, which is {widest}: measure wider ones with "
            "outrider costs --widths, or draft less."
        )
    return found
