"""What passes and drafts cost, learned from rounds: seconds by size, robust to slow outliers, never falling with size.

A machine that does other work too gives timings that are ten times too long now and then, and sometimes twice as long
for minutes. So a size counts by the faster ones of its last few passes, a single slow pass proves nothing, and when all
sizes become slower together the whole table is rescaled. Knows nothing of acceptance.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from statistics import median

_WINDOW = 15  # passes of one size that count
_ENOUGH = 2  # passes that prove what a size costs
_DOUBT = 32  # passes after which a single pass of a size is forgotten
_STALE = 512  # passes after which a size that was not seen again is forgotten
_FIXED = 48.0  # nodes that a pass is assumed to cost before its first
_CLOSE = 1.25  # a gain that hangs on what a plain pass costs
_DRIFT = 1.25  # what the machine as a whole may change by before the table follows


def _bucket(size: int) -> int:
    """Sizes told apart: 0 to 8 each, then four to an octave."""
    if size <= 8:
        return size
    octave = (size - 1).bit_length()
    return 4 * octave + ((size - 1) >> (octave - 3) & 3)


class _Sizes:
    """The last passes of about one size."""

    def __init__(self) -> None:
        self.passes: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self.seen = 0

    @property
    def point(self) -> tuple[int, float, int]:
        """Smallest size, seconds, passes. Disturbances only ever make a pass slower, so a third of them are faster."""
        sizes, seconds = zip(*self.passes, strict=True)
        return min(sizes), sorted(seconds)[(len(seconds) - 1) // 3], len(sizes)


class Curve:
    """Seconds as a function of size.

    Args:
        fixed: while only one size is known, seconds are assumed to grow like `fixed + size`.
    """

    def __init__(self, fixed: float) -> None:
        self._fixed = fixed
        self._sizes: dict[int, _Sizes] = {}
        self._passes = 0
        self._fitted: tuple[list[int], list[float]] | None = None
        self._table: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, size: int, seconds: float) -> None:
        """Take note of one pass."""
        found = self._sizes.setdefault(_bucket(size), _Sizes())
        found.passes.append((size, seconds))
        self._passes += 1
        found.seen = self._passes
        self._fitted = None

    def scale(self, factor: float) -> None:
        """The machine has become slower by this factor."""
        for found in self._sizes.values():
            found.passes = deque(((size, seconds * factor) for size, seconds in found.passes), _WINDOW)
        self._fitted = None

    def settled(self, size: int) -> bool:
        """Whether about this size was seen often enough to be compared with."""
        found = self._sizes.get(_bucket(size))
        return found is not None and len(found.passes) > _ENOUGH

    @property
    def furthest(self) -> int:
        """The largest size that is known."""
        self.upto(0)
        assert self._fitted is not None
        return self._fitted[0][-1]

    def at(self, size: int) -> float:
        """Seconds of a pass of this size. At least one pass has been added."""
        return self.upto(size)[size]

    def upto(self, size: int) -> list[float]:
        """Seconds of passes of the sizes 0 to `size`, and perhaps of more."""
        if self._fitted is None:
            self._fitted = self._fit()
            self._table = []
        for following in range(len(self._table), size + 1):
            self._table.append(self._read(*self._fitted, following))
        return self._table

    def _fit(self) -> tuple[list[int], list[float]]:
        """Sizes and seconds, made monotone by pooling neighbours that contradict each other.

        What was seen once is believed half-way, where it is slower than the other sizes let expect.
        """
        lowest = min(self._sizes)
        for bucket in [b for b, found in self._sizes.items() if b != lowest and self._passes - found.seen > _STALE]:
            del self._sizes[bucket]
        known = [found for _, found in sorted(self._sizes.items())]
        sure = [f for f in known if len(f.passes) >= _ENOUGH or self._passes - f.seen < _DOUBT]
        points = [found.point for found in sure or known]
        blocks: list[tuple[float, int, list[int]]] = []  # seconds, weight, sizes
        for place, (size, seconds, weight) in enumerate(points):
            if weight < _ENOUGH and len(points) > 1:  # it may have been disturbed
                others = [*points[:place], *points[place + 1 :]]
                expected = self._read([point[0] for point in others], [point[1] for point in others], size)
                seconds = min(seconds, math.sqrt(seconds * expected))
            blocks.append((seconds, weight, [size]))
            while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
                (one, n, left), (other, m, right) = blocks[-2:]
                blocks[-2:] = [((one * n + other * m) / (n + m), n + m, left + right)]
        sizes = [size for _, _, block in blocks for size in block]
        return sizes, [seconds for seconds, _, block in blocks for _ in block]

    def _read(self, sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
        """Between two known sizes no more than the smaller, up to half-way, so that what might be free is tried.

        Beyond them as steep as measured, or as assumed where only one size is known.
        """
        place = bisect_right(sizes, size)
        if 0 < place < len(sizes):
            share = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
            return seconds[place - 1] + (share > 0.5) * share * (seconds[place] - seconds[place - 1])
        end = 0 if place == 0 else -1
        if len(sizes) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        else:
            slope = seconds[0] / (self._fixed + sizes[0]) if self._fixed + sizes[0] else 0.0
        floor = seconds[end] * min(1.0, size / sizes[end]) if sizes[end] else 0.0  # never cheaper than in proportion
        return max(floor, seconds[end] + slope * (size - sizes[end]))


class Costs:
    """What all requests on one target and drafter have learned of passes, by rows and nodes."""

    def __init__(self) -> None:
        self._verify: dict[int, Curve] = {}
        self._draft: dict[int, Curve] = {}
        self._plain: dict[int, tuple[int, int]] = {}  # plain passes, passes since the last of them
        self._drift: deque[float] = deque(maxlen=9)

    def add(self, rows: int, nodes: int, verify_seconds: float) -> None:
        """Take note of a pass of the target over `nodes` nodes of `rows` rows."""
        curve = self._verify.setdefault(rows.bit_length(), Curve(_FIXED))
        if curve.settled(nodes):
            self._follow(verify_seconds / curve.at(nodes))
        curve.add(nodes, verify_seconds)
        plain, since = self._plain.get(rows.bit_length(), (0, 0))
        self._plain[rows.bit_length()] = (plain + 1, 0) if nodes == rows else (plain, since + 1)

    def add_draft(self, rows: int, depth: int, seconds: float, *, at_most: bool = False) -> None:
        """Take note of drafting.

        Args:
            rows: that were drafted for together.
            depth: tokens of the deepest draft.
            seconds: that it took.
            at_most: the drafter had other work to do in that time, so it tells only if it is less than what is known.
        """
        known = self._draft.get(rows.bit_length())
        if not at_most or (known and seconds < known.at(depth)):
            self._draft.setdefault(rows.bit_length(), Curve(0.0)).add(depth, seconds)

    def verify(self, rows: int) -> Curve | None:
        """Seconds by nodes; those of the nearest number of rows where this one was not seen yet."""
        return _nearest(self._verify, rows)

    def draft(self, rows: int) -> Curve | None:
        """Seconds by depth; see `verify`."""
        return _nearest(self._draft, rows)

    def plain_is_due(self, rows: int, gain: float) -> bool:
        """Whether the next pass should be a plain one, so that there is something to compare with.

        Every second pass until there are three, then one in 128, or in 8 where the gain from drafting is so small that
        it hangs on what a plain pass costs.
        """
        plain, since = self._plain.get(rows.bit_length(), (0, 0))
        if plain < 3:
            return since >= 1
        return since >= (8 if gain < _CLOSE and plain < _WINDOW else 128)

    def _follow(self, ratio: float) -> None:
        """Rescale everything when passes of known sizes have long taken another time than they used to."""
        self._drift.append(ratio)
        change = median(self._drift)
        if len(self._drift) == self._drift.maxlen and not 1 / _DRIFT < change < _DRIFT:
            for curve in (*self._verify.values(), *self._draft.values()):
                curve.scale(change)
            self._drift.clear()


def _nearest(curves: dict[int, Curve], rows: int) -> Curve | None:
    """The curve for the number of rows that comes nearest, in powers of two; the smaller of equally near ones."""
    return curves[min(curves, key=lambda seen: (abs(seen - rows.bit_length()), seen))] if curves else None
