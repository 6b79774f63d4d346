"""What a chart says, apart from how it is drawn, and the same as a table. Knows no models and no ink."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .tables import Column, Table
from .wording import NOTHING, number


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a line.

    Attributes:
        x, y: where.
        low, high: the interval of y, where it is known.
        label: written beside it.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Attributes:
        name: in the legend.
        points: in the order of x.
        kind: "line", "dashed" (predicted, not measured) or "points".
        colour: which of the colours; a prediction has that of what it predicts.
    """

    name: str
    points: tuple[Point, ...]
    kind: str = "line"
    colour: int = 0

    @property
    def ends(self) -> Iterator[float]:
        """All heights that have to be on the chart."""
        for point in self.points:
            yield from (value for value in (point.y, point.low, point.high) if value is not None)


@dataclass(frozen=True, slots=True)
class Lines:
    """y against x.

    Attributes:
        key: for links and file names.
        title, description: what it shows, and how to read it.
        x, y: what the axes are.
        series: what is drawn.
        reference: (height, what it means) of a line across.
        ticks: where x is marked, if not at round numbers.
        doubling: x on a scale of powers of two.
        share: y is a share of 1, shown in percent.
    """

    key: str
    title: str
    description: str
    x: str
    y: str
    series: tuple[Series, ...]
    reference: tuple[float, str] | None = None
    ticks: tuple[float, ...] = ()
    doubling: bool = False
    share: bool = False

    @property
    def table(self) -> Table:
        """The points."""
        rows = [
            (series.name, point.label, _short(point.x), self._shown(point.y), _range(point.low, point.high))
            for series in self.series
            for point in series.points
        ]
        return _data(self.key, self.title, ("line", "point", self.x, self.y, "interval"), rows, ("line", "point"))

    def _shown(self, value: float) -> str:
        return f"{value * 100:.1f} %" if self.share else _short(value)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: of which series, how long, and how sure."""

    series: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Bars under one name."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Lying bars in groups, with intervals; see `Lines` for the names."""

    key: str
    title: str
    description: str
    x: str
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    reference: tuple[float, str] | None = None

    @property
    def table(self) -> Table:
        """The bars."""
        rows = [
            (group.name, self.names[bar.series], _short(bar.value), _range(bar.low, bar.high))
            for group in self.groups
            for bar in group.bars
        ]
        if len(self.names) == 1:
            return _data(
                self.key, self.title, ("case", self.x, "interval"), [(a, c, d) for a, _, c, d in rows], ("case",)
            )
        return _data(self.key, self.title, ("category", "case", self.x, "interval"), rows, ("category", "case"))


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of several parts."""

    name: str
    parts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Lying bars whose parts add up; see `Lines` for the names."""

    key: str
    title: str
    description: str
    x: str
    names: tuple[str, ...]
    stacks: tuple[Stack, ...]

    @property
    def table(self) -> Table:
        """The parts."""
        rows = [(stack.name, *(_short(part) for part in stack.parts)) for stack in self.stacks]
        return _data(self.key, f"{self.title}, {self.x}", ("case", *self.names), rows, ("case",))


@dataclass(frozen=True, slots=True)
class Columns:
    """Shares that stand side by side, for each place one per series; see `Lines` for the names."""

    key: str
    title: str
    description: str
    x: str
    y: str
    names: tuple[str, ...]
    places: tuple[tuple[float, ...], ...]

    @property
    def table(self) -> Table:
        """The shares."""
        rows = [(str(place), *(f"{value * 100:.1f} %" for value in values)) for place, values in enumerate(self.places)]
        return _data(self.key, self.title, (self.x, *self.names), rows, ())


Chart = Lines | Bars | Stacks | Columns


def known(value: float | None) -> bool:
    """Whether there is a figure that can be drawn."""
    return value is not None and math.isfinite(value)


def _data(
    key: str, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: tuple[str, ...]
) -> Table:
    heads = tuple(Column(name, name not in words) for name in columns)
    return Table(f"{key}-data", title, heads, tuple(rows)).without_empty(NOTHING)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _range(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{number(low)} to {number(high)}"
