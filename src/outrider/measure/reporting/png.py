"""Charts as PNG files, by matplotlib where that is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .charts import Bars, Chart, Columns, Lines, Stacks
from .wording import clean

_COLOURS = ("#1f6fb4", "#c4500a", "#2c8a4b", "#8a4fb0", "#a8325e", "#6b6b00", "#00808a", "#7a4a2b")
_MARKS = "os^Dos^D"


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(chart: Chart, path: Path) -> None:
    """Draw a chart into a PNG file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, "axes.unicode_minus": False}):
        figure = Figure(figsize=(7, _inches(chart)), layout="constrained")
        axes = figure.add_subplot()
        if isinstance(chart, Lines):
            _lines(axes, chart)
        elif isinstance(chart, Columns):
            _columns(axes, chart)
        elif isinstance(chart, Bars):
            _bars(axes, chart)
        else:
            _stacks(axes, chart)
        axes.set_title(_drawable(chart.title))
        axes.set_xlabel(_drawable(chart.x))
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > 1 or (labels and not isinstance(chart, Bars)):
            axes.legend(handles, labels, fontsize="small")
        figure.savefig(path, dpi=140)


def _inches(chart: Chart) -> float:
    if isinstance(chart, Bars):
        return 1.6 + 0.12 * len(chart.groups) + 0.24 * sum(len(group.bars) for group in chart.groups)
    return 1.8 + 0.36 * len(chart.stacks) if isinstance(chart, Stacks) else 4.5


def _lines(axes: Any, chart: Lines) -> None:
    for one in chart.series:
        xs, ys = [point.x for point in one.points], [point.y for point in one.points]
        colour = _COLOURS[one.colour % 8]
        style = {"line": "-", "dashed": "--", "points": ""}[one.kind]
        mark = "" if one.kind == "dashed" else _MARKS[one.colour % 8]
        axes.plot(xs, ys, color=colour, linestyle=style, marker=mark, label=_drawable(one.name))
        sure = [(p.x, p.y, p.y - p.low, p.high - p.y) for p in one.points if p.low is not None and p.high is not None]
        if sure:
            x, y, below, above = zip(*sure, strict=True)
            # An interval of a few prompts may lie beside the average itself; bars cannot be negative.
            reach = [[max(0.0, value) for value in below], [max(0.0, value) for value in above]]
            axes.errorbar(x, y, yerr=reach, fmt="none", ecolor=colour, elinewidth=1, capsize=3)
        if one.kind != "points":
            for point in one.points:
                axes.annotate(
                    _drawable(point.label), (point.x, point.y), fontsize=7, xytext=(4, 4), textcoords="offset points"
                )
    if any(point.label for one in chart.series for point in one.points):
        axes.margins(x=0.2)
    if chart.doubling:
        axes.set_xscale("log", base=2)
    if chart.ticks:
        axes.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks])
    if chart.reference:
        axes.axhline(chart.reference[0], color="0.4", linewidth=1)
    if chart.share:
        axes.set_ylim(0, 1)
    elif not chart.reference:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(_drawable(chart.y))


def _columns(axes: Any, chart: Columns) -> None:
    thick = 0.8 / len(chart.names)
    for series, name in enumerate(chart.names):
        xs = [place + (series - (len(chart.names) - 1) / 2) * thick for place in range(len(chart.places))]
        axes.bar(
            xs, [values[series] for values in chart.places], thick, color=_COLOURS[series % 8], label=_drawable(name)
        )
    axes.set_xticks(range(len(chart.places)))
    axes.set_ylabel(_drawable(chart.y))


def _bars(axes: Any, chart: Bars) -> None:
    ticks, y, named = [], 0.0, set()
    for group in chart.groups:
        first = y
        for bar in group.bars:
            label = None if bar.series in named else _drawable(chart.names[bar.series])
            named.add(bar.series)
            axes.barh(y, bar.value, 0.8, color=_COLOURS[bar.series % 8], label=label)
            if bar.low is not None and bar.high is not None:
                axes.plot((bar.low, bar.high), (y, y), color="black", linewidth=1.2, marker="|")
            y += 1
        ticks.append(((first + y - 1) / 2, _drawable(group.name)))
        y += 0.5
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], fontsize="small")
    axes.invert_yaxis()
    if chart.reference:
        axes.axvline(chart.reference[0], color="0.2", linewidth=1)


def _stacks(axes: Any, chart: Stacks) -> None:
    starts = [0.0] * len(chart.stacks)
    for part, name in enumerate(chart.names):
        lengths = [stack.parts[part] for stack in chart.stacks]
        axes.barh(range(len(starts)), lengths, 0.7, left=starts, color=_COLOURS[part % 8], label=_drawable(name))
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    axes.set_yticks(range(len(starts)), [_drawable(stack.name) for stack in chart.stacks], fontsize="small")
    axes.invert_yaxis()


def _drawable(words: str, most: int = 60) -> str:
    """What matplotlib's own font can draw: it warns of every letter that it lacks."""
    shown = " ".join(clean(words).split()).encode("latin-1", "replace").decode("latin-1")
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
