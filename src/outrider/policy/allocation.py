"""The batch optimum: which draft tokens of which rows to ask for, so that tokens per second are most.

Renewal-reward: rounds repeat, so what counts is the tokens of a round against its seconds, both on average, and one
more token is worth asking for if it brings more per second than the round does without it. The tokens of all rows
compete for one pass. Pure; knows rows by their slots only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..speed import goodput
from .acceptance import Slot
from .costs import Curve

START = 4  # tokens of a pass's drafts before anything is known
_REACH = 1.5  # how far beyond the largest pass so far the next one may go
_LEAST = 0.02  # what a round with drafts has to gain against a plain one, as costs are never known exactly
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_LEVEL = 0.01  # share of a pass under which the drafter's time counts as the same at all depths


def allocate(rows: Sequence[Sequence[Slot]], verify: Curve, draft: Curve | None) -> tuple[list[int], float]:
    """How many of each row's slots to ask for, and how many times as fast as plain decoding that promises to be.

    Args:
        rows: per row, its slots in the order in which its drafter takes them; none for a row that may not draft.
        verify: seconds of a pass by nodes.
        draft: seconds of drafting by the deepest draft; None where nothing is known yet, and counts as nothing.
    """
    plain = goodput(len(rows), verify.at(len(rows)))
    there = sum(slots[0].offered for slots in rows if slots) / len(rows)
    best: list[tuple[int, int]] = []
    most = (1 + _LEAST * there) * plain
    order = _order(rows)
    for cap in _caps(rows, draft, verify):
        within = [(row, place) for row, place in order if rows[row][place].depth <= cap][: reach(verify, len(rows))]
        for taken, rate in enumerate(_rates(rows, within, verify, draft), 1):
            if rate > most:
                best, most = within[:taken], rate
    counts = [0] * len(rows)
    for row, _ in best:
        counts[row] += 1
    return counts, most / plain if best else 1.0


def reach(verify: Curve, rows: int) -> int:
    """How many draft tokens the next pass may have altogether: costs are learned step by step."""
    return max(int(_REACH * verify.furthest) - rows, rows, START)


def _caps(rows: Sequence[Sequence[Slot]], draft: Curve | None, verify: Curve) -> list[int]:
    """Depths to try for the deepest draft. Rows share the drafter's time, so a token that is worth less but needs no
    further step of it may have to come first."""
    deepest = max((slots[-1].depth for slots in rows if slots), default=0)
    level = draft is None or draft.at(deepest) - draft.at(1) < _LEVEL * verify.at(len(rows))
    if len(rows) == 1 or level:
        return [deepest]
    return [cap for cap in _LADDER if cap < deepest] + [deepest]


def _order(rows: Sequence[Sequence[Slot]]) -> list[tuple[int, int]]:
    """Row and place of all slots: the likeliest to be kept once they are drafted first, a row's own in their order."""
    worths = []
    for row, slots in enumerate(rows):
        worth = 1.0
        for place, slot in enumerate(slots):
            worth = min(worth, slot.gain / slot.offered)
            worths.append((-worth, row, place))
    return [(row, place) for _, row, place in sorted(worths)]


def _rates(
    rows: Sequence[Sequence[Slot]], order: Sequence[tuple[int, int]], verify: Curve, draft: Curve | None
) -> Iterator[float]:
    """Tokens per second with the first slot of the order, with the first two, and so on."""
    passes = verify.upto(2 * len(rows) + len(order))
    drafts = draft.upto(max((slots[-1].depth for slots in rows if slots), default=0)) if draft else None
    tokens = nodes = float(len(rows))
    seconds, drafting, deepest = passes[len(rows)], drafts[0] if drafts else 0.0, 0
    expected = [0.0] * len(rows)  # tokens of each row's draft, on average
    for row, place in order:
        gain, offered, depth = rows[row][place]
        # A row's own draft either has come so far or costs nothing; of the others only the average is known.
        before = round(nodes - expected[row]) + place
        seconds += offered * (passes[before + 1] - passes[before])
        if drafts and depth > deepest:
            drafting += offered * (drafts[depth] - drafts[deepest])
            deepest = depth
        tokens, nodes = tokens + gain, nodes + offered
        expected[row] += offered
        yield goodput(tokens, seconds, drafting)
