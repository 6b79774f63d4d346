"""The front as a picture: speed of one request against tokens per second altogether."""

from __future__ import annotations

from pathlib import Path

from ..measure.results import PLAIN
from .search import front
from .tuning import Tuning

_MARKERS = "ovsDP*X<>^"


def draw_front(tuning: Tuning, path: Path) -> None:
    """Draw every prediction, the front, plain decoding and what was run into an image file that `check_plot` passed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.add_subplot()
    drafters = dict.fromkeys(one.setting.drafter for one in tuning.predictions)
    for place, drafter in enumerate(drafters):
        own = [one for one in tuning.predictions if one.setting.drafter == drafter]
        x, y = [one.per_user for one in own], [one.throughput for one in own]
        if drafter == PLAIN:
            axes.plot(x, y, "k--o", label="plain decoding", zorder=3)
        else:
            axes.scatter(x, y, marker=_MARKERS[place % len(_MARKERS)], alpha=0.45, label=drafter)
    kept = front(tuning.predictions)
    axes.plot([one.per_user for one in kept], [one.throughput for one in kept], "-", color="tab:red", label="front")
    for one in kept:
        axes.annotate(
            one.setting.name, (one.per_user, one.throughput), fontsize=7, xytext=(4, 4), textcoords="offset points"
        )
    run = [one.measured for one in tuning.contenders]
    if run:
        axes.scatter(
            [one.per_user for one in run], [one.throughput for one in run], marker="x", color="k", label="measured"
        )
    axes.set_xlabel("tokens per second of one request, while decoding")
    axes.set_ylabel("tokens per second of all requests together")
    axes.set_xlim(0, 1.25 * max(one.per_user for one in tuning.predictions))  # room for the names
    axes.set_ylim(0, 1.1 * max(one.throughput for one in tuning.predictions))
    axes.set_title(
        f"{tuning.configuration['target']}, {tuning.configuration['dtype']}, {tuning.configuration['build']}"
    )
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
