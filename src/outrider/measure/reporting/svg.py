"""Charts as SVG that takes its colours from the page. Text in, text out; every word is escaped here.

The drawing is 460 wide whatever the page, so that on a phone it is shown at almost its own size and stays readable.
Series differ by the shape of their marks as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from .charts import Bars, Chart, Columns, Lines, Point, Series, Stacks
from .wording import clean

WIDTH = 460
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300, 54, 14, 34, 46
_FIRST, _ROW, _NAME, _GAP, _VALUE = 12, 15, 18, 8, 56  # lying bars: top, height, name, space, room for the figure


def svg(chart: Chart) -> str:
    """The chart, with a title and a description for those who cannot see it."""
    if isinstance(chart, Lines):
        height, parts = float(_HEIGHT), _lines(chart)
    elif isinstance(chart, Columns):
        height, parts = float(_HEIGHT), _columns(chart)
    elif isinstance(chart, Bars):
        height, parts = _bars(chart)
    else:
        height, parts = _stacks(chart)
    named = f'aria-labelledby="{chart.key}-title {chart.key}-desc"'
    head = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" {named} xmlns="http://www.w3.org/2000/svg">'
    )
    title = f'<title id="{chart.key}-title">{_safe(chart.title)}</title>'
    description = f'<desc id="{chart.key}-desc">{_safe(chart.description)}</desc>'
    return "".join([head, title, description, *parts, "</svg>"])


def legend(chart: Chart) -> list[tuple[str, str]]:
    """(a small drawing, a name) for each series; none where there is only one."""
    if isinstance(chart, Lines):
        return [
            (_swatch(_stroke(one, "M1 7H27") + _mark(one.colour, 14, 7, one.kind)), one.name) for one in chart.series
        ]
    if len(chart.names) < 2:
        return []
    box = '<rect class="fill c{}" x="4" y="1" width="20" height="12"/>'
    return [(_swatch(box.format(place)), name) for place, name in enumerate(chart.names)]


def numbered(chart: Chart) -> list[str]:
    """What the numbers beside the points of a line stand for."""
    if not isinstance(chart, Lines):
        return []
    return [point.label for one in chart.series if one.kind != "points" for point in one.points if point.label]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low if high > low else max(abs(high), 1.0)
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, max(last, first + 1) + 1)]


def _lines(chart: Lines) -> list[str]:
    xs = [point.x for one in chart.series for point in one.points]
    ys = [end for one in chart.series for end in one.ends] + ([chart.reference[0]] if chart.reference else [])
    marks = ticks(0.0, 1.0) if chart.share else ticks(_floor(chart, ys), max(ys))
    across = _scale(xs, _LEFT + 12, WIDTH - _RIGHT - 12, doubling=chart.doubling)
    up = _between(marks[0], marks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = _grid_across(marks, up, chart.share)
    for tick in chart.ticks or ticks(min(xs), max(xs)):
        if min(xs) <= tick <= max(xs):
            parts.append(_text(across(tick), _HEIGHT - _BOTTOM + 17, _tick(tick), "middle"))
    parts += _axis_names(chart.x, chart.y)
    if chart.reference:
        parts += _reference_across(chart.reference, up)
    count = 0
    for place, one in enumerate(chart.series):
        shift = (place - (len(chart.series) - 1) / 2) * 2.5 if any(p.low is not None for p in one.points) else 0.0
        spots = [(across(point.x) + shift, up(point.y)) for point in one.points]
        if one.kind != "points" and len(spots) > 1:
            parts.append(_stroke(one, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)))
        for (x, y), point in zip(spots, one.points, strict=True):
            if point.low is not None and point.high is not None:
                parts.append(_whisker_up(one.colour, x, up(point.low), up(point.high)))
            if one.kind != "dashed":
                parts.append(_hover(_mark(one.colour, x, y, one.kind), _told(chart, one, point)))
            if point.label and one.kind != "points":
                count += 1
                parts.append(_text(x, y - 9, str(count), "middle", "strong"))
    return parts


def _floor(chart: Lines, ys: Sequence[float]) -> float:
    """Where the y axis begins: at 0, or nearer where all is far from it; below the line of reference in any case."""
    if min(ys) < 0.6 * max(ys):
        return 0.0
    return min(ys) - 0.15 * (max(ys) - min(ys)) if chart.reference and min(ys) == chart.reference[0] else min(ys)


def _columns(chart: Columns) -> list[str]:
    marks = ticks(0.0, max(max(place) for place in chart.places), 4)
    up = _between(0.0, marks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = _grid_across(marks, up, True)
    slot = (WIDTH - _LEFT - _RIGHT) / len(chart.places)
    thick = min(34.0, slot * 0.8 / len(chart.names))
    for place, values in enumerate(chart.places):
        centre = _LEFT + slot * (place + 0.5)
        parts.append(_text(centre, _HEIGHT - _BOTTOM + 17, str(place), "middle"))
        for series, value in enumerate(values):
            x = centre + (series - len(values) / 2) * thick
            box = _box(series, x, up(value), thick, up(0.0) - up(value))
            parts.append(_hover(box, f"{chart.names[series]}: {place} kept in {value * 100:.1f} %"))
    return parts + _axis_names(chart.x, chart.y)


def _bars(chart: Bars) -> tuple[float, list[str]]:
    every = [bar for group in chart.groups for bar in group.bars]
    furthest = max(max(bar.value, bar.high or 0.0) for bar in every)
    marks = ticks(0.0, max(furthest, chart.reference[0] if chart.reference else 0.0))
    along = _between(0.0, marks[-1], _GAP, WIDTH - _VALUE)
    parts, y = [], float(_FIRST)
    for group in chart.groups:
        parts.append(_text(_GAP, y + 13, _cut(group.name), "start", "name"))
        y += _NAME
        for bar in group.bars:
            box = _box(bar.series, along(0.0), y, along(bar.value) - along(0.0), _ROW - 2)
            how_sure = f" ({bar.low:.2f} to {bar.high:.2f})" if bar.low is not None and bar.high is not None else ""
            whose = group.name if len(chart.names) == 1 else f"{group.name}, {chart.names[bar.series]}"
            parts.append(_hover(box, f"{whose}: {bar.value:.2f}{how_sure}"))
            if bar.low is not None and bar.high is not None:
                parts.append(_whisker_along(along(bar.low), along(bar.high), y + _ROW / 2 - 1))
            end = max(bar.value, bar.high or 0.0)
            parts.append(_text(along(end) + 5, y + _ROW - 3, f"{bar.value:.2f}", "start"))
            y += _ROW
        y += _GAP
    if chart.reference:
        parts.append(f'<path class="reference" d="M{along(chart.reference[0]):.1f} {_FIRST - 4}V{y:.1f}"/>')
    return y + _BOTTOM - 8, [*_grid_along(marks, along, y), *parts, _text(WIDTH / 2, y + 34, chart.x, "middle", "axis")]


def _stacks(chart: Stacks) -> tuple[float, list[str]]:
    marks = ticks(0.0, max(sum(stack.parts) for stack in chart.stacks))
    along = _between(0.0, marks[-1], _GAP, WIDTH - _VALUE)
    parts, y = [], float(_FIRST)
    for stack in chart.stacks:
        parts.append(_text(_GAP, y + 13, _cut(stack.name), "start", "name"))
        y += _NAME
        start = 0.0
        for place, part in enumerate(stack.parts):
            box = _box(place, along(start), y, along(start + part) - along(start), _ROW)
            parts.append(_hover(box, f"{stack.name}, {chart.names[place]}: {part:.2f} {chart.x}"))
            start += part
        parts.append(_text(along(start) + 5, y + _ROW - 3, f"{start:.1f}", "start"))
        y += _ROW + _GAP
    return y + _BOTTOM - 8, [*_grid_along(marks, along, y), *parts, _text(WIDTH / 2, y + 34, chart.x, "middle", "axis")]


def _scale(values: Sequence[float], start: float, end: float, *, doubling: bool) -> Callable[[float], float]:
    if not doubling:
        return _between(min(values), max(values), start, end)
    inner = _between(math.log2(min(values)), math.log2(max(values)), start, end)
    return lambda value: inner(math.log2(value))


def _between(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From figures to places in the drawing; in the middle where all figures are one."""
    if high <= low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _grid_across(marks: Sequence[float], up: Callable[[float], float], share: bool) -> list[str]:
    parts = []
    for mark in marks:
        parts.append(f'<path class="grid" d="M{_LEFT} {up(mark):.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, up(mark) + 4, f"{mark * 100:.0f} %" if share else _tick(mark), "end"))
    return parts


def _grid_along(marks: Sequence[float], along: Callable[[float], float], bottom: float) -> list[str]:
    parts = []
    for mark in marks:
        parts.append(f'<path class="grid" d="M{along(mark):.1f} {_FIRST - 4}V{bottom:.1f}"/>')
        parts.append(_text(along(mark), bottom + 15, _tick(mark), "middle"))
    return parts


def _axis_names(x: str, y: str) -> list[str]:
    return [_text((WIDTH + _LEFT - _RIGHT) / 2, _HEIGHT - 8, x, "middle", "axis"), _text(4, 14, y, "start", "axis")]


def _reference_across(reference: tuple[float, str], up: Callable[[float], float]) -> list[str]:
    y = up(reference[0])
    line = f'<path class="reference" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
    return [line, _text(WIDTH - _RIGHT - 2, y - 4, reference[1], "end", "faint")]


def _stroke(one: Series, path: str) -> str:
    if one.kind == "points":
        return ""
    dashed = " dashed" if one.kind == "dashed" else ""
    return f'<path class="line c{one.colour % 8}{dashed}" d="{path}"/>'


def _mark(colour: int, x: float, y: float, kind: str) -> str:
    """Eight shapes: four, then the same hollow."""
    if kind == "dashed":
        return ""
    shapes = (
        f'<circle {{}} cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
        f'<rect {{}} x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"/>',
        f'<path {{}} d="M{x:.1f} {y - 5:.1f}L{x + 5:.1f} {y + 4:.1f}H{x - 5:.1f}Z"/>',
        f'<path {{}} d="M{x:.1f} {y - 5.2:.1f}L{x + 5.2:.1f} {y:.1f}L{x:.1f} {y + 5.2:.1f}L{x - 5.2:.1f} {y:.1f}Z"/>',
    )
    return shapes[colour % 4].format(f'class="mark c{colour % 8}{" hollow" if colour % 8 > 3 else ""}"')


def _box(colour: int, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    return f'<rect class="fill c{colour % 8}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def _whisker_up(colour: int, x: float, low: float, high: float) -> str:
    caps = f"M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"
    return f'<path class="whisker c{colour % 8}" d="M{x:.1f} {low:.1f}V{high:.1f}{caps}"/>'


def _whisker_along(low: float, high: float, y: float) -> str:
    caps = f"M{low:.1f} {y - 3.5:.1f}v7M{high:.1f} {y - 3.5:.1f}v7"
    return f'<path class="whisker dark" d="M{low:.1f} {y:.1f}H{high:.1f}{caps}"/>'


def _hover(drawing: str, told: str) -> str:
    return f"<g>{drawing}<title>{_safe(told)}</title></g>"


def _told(chart: Lines, one: Series, point: Point) -> str:
    value = f"{point.y * 100:.1f} %" if chart.share else f"{point.y:.4g}"
    sure = f" ({point.low:.2f} to {point.high:.2f})" if point.low is not None and point.high is not None else ""
    return f"{point.label or one.name}: {chart.x} {_tick(point.x)}, {chart.y} {value}{sure}"


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_safe(words)}</text>'


def _swatch(drawing: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">{drawing}</svg>'


def _tick(value: float) -> str:
    return f"{value:,.6g}"


def _cut(words: str, most: int = 46) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _safe(words: str) -> str:
    return escape(clean(words), quote=True)
