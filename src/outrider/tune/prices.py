"""What a round costs, from what was measured apart and what was seen in the loop. Pure.

The shape of the curves comes from measurements made for it: passes by width, batch and context (`measure.costs`),
drafts by shape and batch. Their level comes from the loop itself, where the models share the caches and other work goes
on in between: each drafter's recorded rounds say how much longer passes and drafts took there than the curves have it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ..measure.costs import Costs
from ..measure.recorded import Behaviour
from ..measure.shapes import Shape

_NEVER = 1e-9  # a chance that changes no figure


@dataclass(frozen=True)
class Passes:
    """Seconds of a pass of any size: straight lines between the widths and the contexts that were measured."""

    costs: Costs

    def seconds(self, nodes: float, batch: int, context: float) -> float:
        """A pass over `nodes` tokens of `batch` rows, which was measured, with `context` tokens behind each."""
        lines = self._lines[batch]
        at = [float(np.interp(nodes / batch, widths, seconds)) for _, widths, seconds in lines]
        return float(np.interp(context, [known for known, _, _ in lines], at))

    @cached_property
    def _lines(self) -> dict[int, list[tuple[int, list[int], list[float]]]]:
        """Batch -> (context, widths, seconds), contexts rising."""
        found = sorted(self.costs.lines.items())
        return {
            batch: [(context, [c.width for c in line], [c.seconds for c in line]) for (_, context), line in group]
            for batch, group in groupby(found, key=lambda item: item[0][0])
        }


class Timing(NamedTuple):
    """A recorded round of one request alone, in seconds.

    Attributes:
        nodes: of its pass.
        context: tokens in the cache before it.
        draft, verify: of the draft and of the pass.
        other: of everything else up to the next round: laws, verdicts, detokenising.
    """

    nodes: int
    context: int
    draft: float
    verify: float
    other: float


class Level(NamedTuple):
    """How a drafter's rounds went in the loop.

    Attributes:
        verify: seconds of its passes, against the curve's; the median, as other work only ever slows a pass down.
        draft: mean seconds of drafting, with as much as was asked for.
        other: mean seconds of everything else.
    """

    verify: float
    draft: float
    other: float

    @classmethod
    def of(cls, timings: Sequence[Timing], passes: Passes) -> Level:
        """From recorded rounds; at least one."""
        return cls(
            statistics.median(t.verify / passes.seconds(t.nodes, 1, t.context) for t in timings),
            statistics.fmean(timing.draft for timing in timings),
            statistics.fmean(timing.other for timing in timings),
        )


class Seconds(NamedTuple):
    """Of one round."""

    verify: float
    draft: float
    other: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.verify + self.draft + self.other


@dataclass(frozen=True)
class Prices:
    """What rounds cost.

    Attributes:
        passes: the curve of passes.
        drafts: (drafter, shape, batch) -> seconds of one draft, measured apart; nothing for plain decoding.
        context: tokens behind a row, on average.
    """

    passes: Passes
    drafts: Mapping[tuple[str, Shape, int], float]
    context: float

    def plain(self, level: Level, batch: int) -> Seconds:
        """A round of plain decoding."""
        verify = level.verify * self.passes.seconds(batch, batch, self.context)
        return Seconds(verify, batch * level.draft, batch * level.other)

    def speculative(
        self, level: Level, drafter: str, asked: Shape, shape: Shape, behaviour: Behaviour, batch: int
    ) -> Seconds:
        """A round with drafts.

        Args:
            level: of the recording.
            drafter: whose it is.
            asked: what it was recorded with.
            shape: what is asked for now.
            behaviour: of drafts of that shape.
            batch: rows; each drafts for itself, so the pass is over the sum of their drafts.
        """
        verify = sum(
            chance * self.passes.seconds(batch + drafted, batch, self.context)
            for drafted, chance in enumerate(_sum_of(behaviour.drafted, batch))
            if chance > _NEVER
        )
        draft = level.draft * self.drafts[drafter, shape, batch] / self.drafts[drafter, asked, 1]
        return Seconds(level.verify * verify, draft, batch * level.other)


def _sum_of(shares: Sequence[float], rows: int) -> Sequence[float]:
    """The law of the sum of so many independent draws from a law over 0, 1, 2, ..."""
    found = np.ones(1)
    for _ in range(rows):
        found = np.convolve(found, shares)
    law: list[float] = found.tolist()
    return law
