"""Results as something people read: one HTML page, Markdown, and PNGs. Knows no models and no clocks.

The page is one file that asks for nothing else, has no script in it, and forbids the browser to run any. What came from
prompts, answers and models is escaped everywhere.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .reporting import png, svg, tabulate
from .reporting.charts import Chart
from .reporting.plots import charts
from .reporting.tables import Table, markdown, plainly
from .reporting.traces import ORIGINS, Answer, answers
from .reporting.wording import NOTHING, clean, counted, fastest, pairs, sentence, speculates
from .results import Results, Sample

_TEMPLATES = Path(__file__).parents[1] / "templates"
_PLOTS = "plots"


def write(results: Results, folder: Path, samples: Sequence[Sample] = ()) -> list[Path]:
    """Write `report.html`, `report.md` and `plots/*.png` into a folder.

    Without jinja2 there is no HTML and without matplotlib there are no PNGs: `left_out` and the report itself say so.

    Args:
        results: what to report.
        folder: made if it is not there.
        samples: for what only single answers tell; without them that is left out.

    Returns:
        The files written, the one to read first at the front.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = charts(results, samples)
    pictures = _draw(drawn, folder / _PLOTS) if png.can_draw() else []
    page = Page.of(results, samples, drawn)
    written = []
    if _has("jinja2"):
        written.append(_save(folder / "report.html", _html(page)))
    written.append(_save(folder / "report.md", _markdown(page, [path.name for path in pictures])))
    return written + pictures


def left_out() -> list[str]:
    """What a report written here will lack, and how to get it: one sentence each."""
    said = []
    if not _has("jinja2"):
        said.append("There is no report.html, as jinja2 is not installed: pip install 'outrider[report]'.")
    if not png.can_draw():
        said.append("There are no PNGs, as matplotlib is not installed: pip install 'outrider[report]'.")
    return said


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case's verdict: a word for the badge, the name, the sentence."""

    word: str
    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says, in order, apart from how.

    Attributes:
        title: of the whole.
        facts: (name, value) to show first.
        leads: the sentences to read if only one is read.
        verdicts: one per case.
        sections: (key, heading, tables, charts).
        answers: coloured traces.
        left_out: what is not in it.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    leads: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    sections: tuple[Section, ...]
    answers: tuple[Answer, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, results: Results, samples: Sequence[Sample], drawn: Sequence[Chart]) -> Page:
        """The page of these results."""
        known = dict(tabulate.told(results.manifest))
        target = next((value for name, value in known.items() if name.rpartition(".")[2] == "target"), "")
        sections = (
            Section.of("speed", "Speed and acceptance", [tabulate.headline(results)], drawn, "speed", "pareto"),
            Section.of(
                "acceptance", "What is accepted", [tabulate.positions(results)], drawn,
                "length", "survival", "conditional", "kept",
            ),
            Section.of("kinds", "By kind of prompt", [tabulate.categories(results)], drawn, "categories"),
            Section.of(
                "costs", "Where the time goes", [tabulate.rounds(results), tabulate.passes(results)], drawn,
                "rounds", "costs",
            ),
            Section.of("latency", "Latency", [tabulate.latency(results)], drawn),
            Section.of("quality", "Output and memory", [tabulate.quality(results)], drawn),
            Section.of("divergences", "Divergences", [tabulate.divergences(results)], drawn),
            Section.of("run", "What was run", [tabulate.manifest(results)], drawn),
        )  # fmt: skip
        return cls(
            title=f"Outrider: {target}" if target else "Outrider: a measurement",
            facts=_facts(results, samples, known),
            leads=tuple(fastest(results)) if any(found.speedup is not None for found in results.summaries) else (),
            verdicts=tuple(
                Verdict(found.verdict or ("" if speculates(case) else "baseline"), case.name, sentence(case, found))
                for case, found in pairs(results)
            ),
            sections=tuple(section for section in sections if section.tables or section.charts),
            answers=answers(results),
            left_out=(*tabulate.left_out(results), *left_out()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """Tables and charts under one heading."""

    key: str
    heading: str
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]

    @classmethod
    def of(cls, key: str, heading: str, tables: Sequence[Table | None], drawn: Sequence[Chart], *names: str) -> Section:
        """With those of the charts whose keys begin so."""
        own = tuple(chart for name in names for chart in drawn if chart.key.startswith(name))
        return cls(key, heading, tuple(table for table in tables if table is not None and table.rows), own)


def _facts(results: Results, samples: Sequence[Sample], known: dict[str, str]) -> tuple[tuple[str, str], ...]:
    wanted = ("target", "dtype", "cpu", "gpu", "threads", "torch", "transformers", "started", "revision")
    last = {name.rpartition(".")[2]: value for name, value in reversed(known.items())}
    facts = [(name, last[name]) for name in wanted if last.get(name) and last[name] != NOTHING]
    prompts = max((found.prompts for found in results.summaries), default=0)
    answered = sum(found.samples for found in results.summaries) or len(samples)
    return (*facts, ("measured", f"{counted(len(results.cases), 'case')}, {counted(prompts, 'prompt')}, "
                                 f"{counted(answered, 'answer')}"))  # fmt: skip


def _html(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda value: clean(value) if type(value) is str else value,
    )  # fmt: skip
    drawing: dict[str, Any] = {"svg": svg.svg, "legend": svg.legend, "numbered": svg.numbered, "origins": ORIGINS}
    return environment.get_template("report.html.jinja").render(page=page, **drawing)


def _markdown(page: Page, pictures: Sequence[str]) -> str:
    lines = [f"# {plainly(page.title)}", ""]
    lines += [f"- {plainly(name)}: {plainly(value)}" for name, value in page.facts]
    lines += [f"- left out: {plainly(what)}" for what in page.left_out]
    lines += ["", "## Verdicts", "", *(f"{plainly(line)}\n" for line in page.leads)]
    lines += [
        f"- **{plainly(one.name)}**: {one.word}{': ' * bool(one.word)}{plainly(one.sentence)}" for one in page.verdicts
    ]
    for section in page.sections:
        lines += ["", f"## {section.heading}", ""]
        for chart in section.charts:
            if f"{chart.key}.png" in pictures:
                lines += [f"![{plainly(chart.title)}]({_PLOTS}/{chart.key}.png)", "", plainly(chart.description), ""]
        for table in [*section.tables, *(chart.table for chart in section.charts)]:
            lines += [markdown(table)]
    return "\n".join(lines).rstrip() + "\n"


def _draw(drawn: Sequence[Chart], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for chart in drawn:
        path = folder / f"{chart.key}.png"
        png.draw(chart, path)
        paths.append(path)
    return paths


def _save(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="replace")
    return path


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
