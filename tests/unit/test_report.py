"""The report: what it shows of which results, that nothing from outside gets out of its place, and what is left out."""

from __future__ import annotations

import builtins
import html
import importlib.util
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from measured import SMALL, SUFFIX, costs_of, everything, hostile, results_of

from outrider.measure import report
from outrider.measure.results import PLAIN, Case, Results

VOID = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """A page taken apart: every element with its attributes, its text, and whether tags close in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def written(results: Results, folder: Path, samples: Any = ()) -> tuple[Page, str, list[Path]]:
    """The page, the Markdown and the files of a report."""
    paths = report.write(results, folder, samples)
    page, text = (folder / "report.html").read_text("utf-8"), (folder / "report.md").read_text("utf-8")
    return Page(page), text, paths


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a report's time, and one test of it does."""
    monkeypatch.setattr(report.png, "can_draw", lambda: False)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str, list[Path], Results]:
    """A report with everything in it, written once."""
    results, samples = everything()
    return *written(results, tmp_path_factory.mktemp("full"), samples), results


def test_every_file_is_written(full: tuple[Page, str, list[Path], Results]) -> None:
    _, text, paths, _ = full
    assert [path.name for path in paths[:2]] == ["report.html", "report.md"]
    pictures = {path.name for path in paths[2:]}
    assert pictures >= {"speed.png", "speed_by_k.png", "length_by_k.png", "survival.png", "conditional.png", "kept.png",
                        "categories.png", "rounds.png", "costs.png", "speed_by_batch.png", "pareto.png",
                        "survival_batch_4.png"}  # fmt: skip
    for path in paths[2:]:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"(plots/{path.name})" in text


def test_every_case_has_its_verdict_and_figures(full: tuple[Page, str, list[Path], Results]) -> None:
    page, text, _, results = full
    for found in results.summaries:
        case = results.cases[found.case]
        assert case.name in page.text and case.name.replace("_", "\\_") in text
        if found.speedup is not None and found.speedup_interval is not None:
            for shown in (f"{found.speedup:.2f}×", f"{found.speedup_interval.low:.2f} to "):
                assert shown in page.text and shown in text
    assert "RELAXED: the output does not have the target's law" in page.text
    assert "Fastest without changing the target's law" in page.text
    assert "Identical output in all 12" in page.text


@pytest.mark.parametrize(
    "says",
    [
        "bonus token (the target's own) COUNTED",
        "the bonus token NOT counted",
        "vLLM calls it acceptance per position",
        "which bursts do not mislead",
        "its logit", "18.25", "18.2499", "0.0001",  # a divergence with both logits and the gap
        "AMD EPYC 7R13", "sha256:9f2c", "outrider bench --target demo", "GPU clocks: no GPU",
        "nothing is better in both",
    ],
)  # fmt: skip
def test_the_traps_are_defined_on_screen(full: tuple[Page, str, list[Path], Results], says: str) -> None:
    page, text, _, _ = full
    assert says in " ".join(page.text.split())
    if says != "nothing is better in both":
        assert says in html.unescape(text.replace("\\", ""))


def test_the_manifest_is_told_once(full: tuple[Page, str, list[Path], Results]) -> None:
    page = full[0]
    assert "sessions.2.started" in page.text and "2026-11-30T02:02:03+0000" in page.text
    assert "plan.cases" not in page.text and "plan.machine" not in page.text
    assert page.text.count("GPU clocks: no GPU") == 1


def test_it_is_one_file_without_scripts(full: tuple[Page, str, list[Path], Results]) -> None:
    page = full[0]
    assert not page.named("script")
    assert [attributes["href"] for attributes in page.named("link")] == ["data:,"]
    assert all(attributes["href"].startswith("#") for attributes in page.named("a"))
    (policy,) = [a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    for _, attributes in page.elements:
        assert not {"src", "onclick", "onload", "style"} & set(attributes)


def test_it_can_be_read_without_eyes(full: tuple[Page, str, list[Path], Results]) -> None:
    """Tables have captions and scopes, charts titles, descriptions and their data; ids are one of a kind."""
    page, _, paths, _ = full
    assert page.named("html")[0]["lang"] == "en"
    assert len(page.named("caption")) == len(page.named("table")) > 20
    assert {attributes.get("scope") for attributes in page.named("th")} == {"col", "row"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in (attributes for _, attributes in page.elements if "aria-labelledby" in attributes):
        assert set(attributes["aria-labelledby"].split()) <= set(ids)
    charts = [attributes for attributes in page.named("svg") if attributes.get("role") == "img"]
    assert len(charts) == len(paths) - 2 == len(page.named("figure"))
    assert len(page.named("desc")) == len(charts)
    assert {a["href"][1:] for a in page.named("a")} <= set(ids)
    headings = [int(name[1]) for name, _ in page.elements if re.fullmatch(r"h[1-6]", name)]
    assert headings[0] == 1 and all(after - before <= 1 for before, after in pairwise(headings))
    assert all(
        attributes.get("tabindex") == "0" for attributes in page.named("div") if attributes.get("role") == "region"
    )


def test_nothing_breaks_out(tmp_path: Path) -> None:
    page, text, _ = written(hostile(), tmp_path)
    assert not page.named("script") and not page.named("img")
    assert all("onerror" not in attributes for _, attributes in page.elements)
    assert page.text.count("<script>alert(1)</script>") > 8, "it is shown, as text"
    assert "{{ 7 * 7 }}" in page.text
    raw = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", raw)
    assert "<script" not in text and "<img" not in text and "\x00" not in text and "\x1b" not in text
    for line in text.splitlines():
        assert not line.startswith("# heading")
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) >= 2
    widths = [
        len(re.findall(r"(?<!\\)\|", line))
        for line in text.split("**Answers that left")[1].partition("\n- *")[0].splitlines()
        if line[:1] == "|"
    ]
    assert len(set(widths)) == 1, "a hostile cell adds no column"


@pytest.mark.usefixtures("no_pictures")
def test_svg_is_xml_whatever_the_names(tmp_path: Path) -> None:
    report.write(hostile(), tmp_path)
    source = (tmp_path / "report.html").read_text("utf-8")
    found = re.findall(r'<svg class="chart".*?</svg>', source, re.DOTALL)
    assert len(found) > 4
    for drawing in found:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing.lower() and "inf" not in re.sub(r"<(desc|title).*?</\1>", "", drawing)


def _none() -> Results:
    return Results(manifest={}, cases=(), summaries=())


def _plain_only() -> Results:
    return results_of([(Case(drafter=PLAIN), SUFFIX)], prompts=1)[0]


def _one_prompt() -> Results:
    return results_of([(Case(drafter=PLAIN), SUFFIX), (Case(drafter="suffix", k=1), SUFFIX)], prompts=1)[0]


def _no_drafts() -> Results:
    silent = results_of([(Case(drafter=PLAIN), SUFFIX), (Case(drafter="lookup"), SUFFIX)], prompts=2)[0]
    found = silent.summaries[1].model_copy(
        update={"drafted": 0, "accepted": 0, "acceptance_rate": None, "acceptance_length": None, "survival": (),
                "conditional": (), "tokens_per_pass": 1.0}
    )  # fmt: skip
    return silent.model_copy(update={"summaries": (silent.summaries[0], found)})


def _nothing_kept() -> Results:
    found = _one_prompt()
    update = {"accepted": 0, "acceptance_rate": 0.0, "acceptance_length": 1.0, "survival": (), "conditional": (0.0,)}
    return found.model_copy(update={"summaries": (found.summaries[0], found.summaries[1].model_copy(update=update))})


def _infinite() -> Results:
    found, _ = everything(2)
    odd = found.summaries[3].model_copy(
        update={
            "mean_kl": math.inf, "mean_tv": 1.0, "perplexity": math.inf, "speedup": math.inf, "throughput": math.inf,
            "tokens_per_second": math.nan, "draft_seconds": math.nan, "speedup_interval": None, "lossless": False,
        }
    )  # fmt: skip
    return found.model_copy(update={"summaries": (*found.summaries[:3], odd, *found.summaries[4:])})


def _endpoint() -> Results:
    found = _one_prompt()
    told = found.summaries[1].model_copy(
        update={"draft_seconds": None, "verify_seconds": None, "verdict_seconds": None, "other_seconds": None,
                "acceptance_rate": None, "acceptance_length": None, "survival": (), "conditional": (),
                "tokens_per_pass": None, "lossless": None, "speedup": None, "speedup_interval": None, "verdict": None,
                "compared": 0, "identical": 0}
    )  # fmt: skip
    case = Case(drafter="remote", system="endpoint")
    return found.model_copy(update={"cases": (case,), "summaries": (told.model_copy(update={"case": 0}),)})


@pytest.mark.parametrize("make", [_none, _plain_only, _one_prompt, _no_drafts, _nothing_kept, _infinite, _endpoint])
def test_degenerate_results_are_reported_too(make: Any, tmp_path: Path) -> None:
    results = make()
    page, text, _ = written(results, tmp_path)
    for case in results.cases:
        assert case.name in page.text
    assert text.startswith("# Outrider")
    source = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', source), "no figure that cannot be drawn reached a drawing"


@pytest.mark.usefixtures("no_pictures")
def test_one_prompt_has_no_interval_and_says_so(tmp_path: Path) -> None:
    page, _, _ = written(_one_prompt(), tmp_path)
    assert "(no interval, 1 prompt)" in page.text
    assert "indistinguishable" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_without_a_baseline_there_is_no_ratio(tmp_path: Path) -> None:
    page, _, _ = written(_endpoint(), tmp_path)
    assert "no plain decoding to compare with in this run" in page.text
    assert "×" not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_many_cases_are_cut_to_the_fastest_and_said(tmp_path: Path) -> None:
    cases = [(Case(drafter=PLAIN), SUFFIX)] + [(Case(drafter=f"d{n}", k=k), SMALL) for n in range(10) for k in (1, 2)]
    page, _, _ = written(results_of(cases, prompts=2)[0], tmp_path)
    assert "The 16 fastest of 20." in page.text and "The 8 fastest of 10." in page.text
    assert all(case.name in page.text for case, _ in cases)


@pytest.mark.usefixtures("no_pictures")
def test_temperature_has_its_chart(tmp_path: Path) -> None:
    cases = [
        (Case(drafter=drafter, k=k, temperature=heat), SMALL)
        for heat in (0.0, 0.7, 1.0)
        for drafter, k in ((PLAIN, None), ("d", 3))
    ]
    page, _, _ = written(results_of(cases, prompts=2)[0], tmp_path)
    assert "chart-length_by_temperature" in {attributes.get("id") for attributes in page.named("figure")}
    assert "Acceptance length against temperature" in page.text


def test_without_matplotlib_there_are_no_pictures_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lack(monkeypatch, "matplotlib")
    page, text, paths = written(everything(2)[0], tmp_path)
    assert [path.name for path in paths] == ["report.html", "report.md"]
    says = "There are no PNGs, as matplotlib is not installed: pip install 'outrider[report]'."
    assert says in page.text and says in html.unescape(text).replace("\\", "")
    assert report.left_out() == [says]
    assert "plots/" not in text


@pytest.mark.usefixtures("no_pictures")
def test_without_jinja_there_is_no_page_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _lack(monkeypatch, "jinja2")
    paths = report.write(everything(2)[0], tmp_path)
    assert paths[0].name == "report.md"
    assert "no report.html, as jinja2 is not installed" in html.unescape(paths[0].read_text("utf-8"))


def test_with_everything_nothing_is_left_out() -> None:
    assert report.left_out() == []


def test_costs_alone_have_a_chart(tmp_path: Path) -> None:
    results = _plain_only().model_copy(update={"costs": costs_of(SUFFIX)})
    page, text, _ = written(results, tmp_path)
    assert "What a pass of the target costs" in page.text
    assert "1.14×" in page.text and "1.14×" in text  # 25 + 3 * 1.2 ms against 25


def _lack(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if a package were not installed."""
    spec, load = importlib.util.find_spec, builtins.__import__

    def find(name: str, *rest: Any) -> Any:
        return None if name.partition(".")[0] == package else spec(name, *rest)

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return load(name, *rest, **named)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(builtins, "__import__", refuse)
