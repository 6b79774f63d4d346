"""A whole bench on the toy target: what it keeps, goes on with, and asks of answers when the clocks have stopped."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_runner import TEXT, prompts, toy
from toy import Stream, Table, ToyTarget

from outrider.api import Outrider
from outrider.errors import BadOption, BadPrompt
from outrider.measure.bench import Wanted, measure
from outrider.measure.bundle import Bundle, table, write_whole
from outrider.measure.manifest import build, fingerprint, fingerprints
from outrider.measure.perplexity import perplexity
from outrider.measure.prompts import BenchPrompt
from outrider.measure.reading import read
from outrider.measure.results import Case, Results, Sample
from outrider.measure.runner import Plan
from outrider.types import Verdict
from outrider.verify.match import Match

CASES = (Case(drafter="none"), Case(drafter="suffix", policy="fixed:3", k=3))


def wanted(cases: tuple[Case, ...] = CASES, count: int = 3, **plan: Any) -> Wanted:
    """Some answers of six tokens."""
    return Wanted(cases, prompts(*range(count)), Plan(6, plan.pop("repeats", 1), **plan))


def bundle(folder: Path | None, asked: Wanted) -> Bundle:
    """The bundle of that."""
    return Bundle(folder, build({"target": "toy"}, asked.cases, asked.prompts, asked.plan, argv=["outrider"]))


def load(quantize: str | None = None) -> Outrider:
    """The toy, which has no weights to be quantized."""
    return toy()


def test_a_run_and_its_folder(tmp_path: Path) -> None:
    asked = wanted(repeats=2)
    steps: list[None] = []
    results = measure(asked, load, bundle(tmp_path, asked), lambda: steps.append(None))
    assert len(steps) == asked.steps == 12
    assert [(s.prompts, s.samples, s.compared, s.identical) for s in results.summaries] == [(3, 6, 0, 0), (3, 6, 6, 6)]
    assert results.divergences == () and results.manifest["interrupted"] is False
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json", "samples.jsonl", "rounds.jsonl", "results.json", "summary.csv",
    }  # fmt: skip
    run = read(tmp_path)
    assert run.results == results
    assert len(run.samples) == 12 and {sample.ids for sample in run.samples} == {TEXT[:6]}
    assert [sample.identical for sample in run.samples if sample.case == 1] == [True] * 6
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and lines[0]["prompt_ids"] == [0]
    assert [token for round_ in lines[-1]["rounds"] for token in round_["tokens"]] == list(TEXT[:6])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "summary.csv").read_text())))
    assert [row["drafter"] for row in rows] == ["none", "suffix"] and rows[1]["identical"] == "6"
    assert float(rows[1]["speedup"]) == pytest.approx(results.summaries[1].speedup)


class Interrupted(ToyTarget):
    """A target that is interrupted after so many passes."""

    left = 10**9

    def forward(self, *args: Any, **options: Any) -> Any:
        """See `ToyTarget`."""
        type(self).left -= 1
        if type(self).left < 0:
            raise KeyboardInterrupt
        return super().forward(*args, **options)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Interrupted]]:
    """The toy target, interruptible."""
    monkeypatch.setattr("test_runner.ToyTarget", Interrupted)
    yield Interrupted
    Interrupted.left = 10**9


def test_what_is_done_before_an_interruption_is_kept_and_gone_on_with(
    interrupted: type[Interrupted], tmp_path: Path
) -> None:
    asked = wanted(count=4)
    interrupted.left = 40
    first = measure(asked, load, bundle(tmp_path, asked))
    count = len((tmp_path / "samples.jsonl").read_text().splitlines())
    assert first.manifest["interrupted"] is True and 0 < count < 8
    assert sum(summary.samples for summary in first.summaries) == count
    before = read(tmp_path).samples
    interrupted.left = 10**9
    whole = bundle(tmp_path, asked)
    assert whole.resumed and len(whole.manifest["sessions"]) == 2
    second = measure(asked, load, whole)
    assert second.manifest["interrupted"] is False
    assert [summary.samples for summary in second.summaries] == [4, 4]
    kept = {(s.case, s.prompt): s.seconds for s in read(tmp_path).samples}
    assert all(kept[s.case, s.prompt] == s.seconds for s in before), "they were not measured again"


def test_a_finished_run_loads_nothing(tmp_path: Path) -> None:
    asked = wanted()
    first = measure(asked, load, bundle(tmp_path, asked))

    def refuse(quantize: str | None) -> Outrider:
        raise AssertionError("nothing to do")

    assert measure(asked, refuse, bundle(tmp_path, asked)).summaries == first.summaries


def test_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    asked = wanted()
    measure(asked, load, bundle(tmp_path, asked))
    path = tmp_path / "samples.jsonl"
    path.write_text(path.read_text()[:-40])
    assert len(bundle(tmp_path, asked).samples.records) == 5
    assert len(path.read_text().splitlines()) == 5
    assert [s.samples for s in measure(asked, load, bundle(tmp_path, asked)).summaries] == [3, 3]


def test_a_line_that_is_none_is_refused(tmp_path: Path) -> None:
    asked = wanted()
    measure(asked, load, bundle(tmp_path, asked))
    path = tmp_path / "samples.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(BadOption, match="line 1 is no line"):
        bundle(tmp_path, asked)


def test_another_run_is_not_touched(tmp_path: Path) -> None:
    asked = wanted()
    measure(asked, load, bundle(tmp_path, asked))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for other, differs in ((wanted(seed=1), "seed"), (wanted(count=2), "prompts"), (wanted(CASES[:1]), "cases")):
        with pytest.raises(BadOption, match=f"differs in '{differs}'"):
            bundle(tmp_path, other)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_without_answers_gives_way(tmp_path: Path) -> None:
    """One that was refused before its first answer, for example, whose mistake is now put right."""
    bundle(tmp_path, wanted())
    other = bundle(tmp_path, wanted(seed=1))
    assert not other.resumed and json.loads((tmp_path / "manifest.json").read_text())["plan"]["seed"] == 1


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(BadOption, match="no run of bench"):
        bundle(tmp_path, wanted())
    with pytest.raises(BadOption, match="is a file"):
        bundle(tmp_path / "thesis.txt", wanted())
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(BadOption, match="no manifest"):
        bundle(tmp_path, wanted())
    (tmp_path / "manifest.json").write_text('{"plan": {}, "schema_version": 0}')
    with pytest.raises(BadOption, match="schema 0"):
        bundle(tmp_path, wanted())


def test_history_cannot_be_gone_on_with(interrupted: type[Interrupted], tmp_path: Path) -> None:
    asked = wanted(count=4, keep_history=True)
    interrupted.left = 40
    measure(asked, load, bundle(tmp_path, asked))
    interrupted.left = 10**9
    with pytest.raises(BadOption, match="--keep-history"):
        measure(asked, load, bundle(tmp_path, asked))


def test_each_quantization_is_loaded_once() -> None:
    asked: list[str | None] = []

    def counting(quantize: str | None) -> Outrider:
        asked.append(quantize)
        return toy()

    cases = (*CASES, *(case.model_copy(update={"quantize": "int8"}) for case in CASES))
    run = wanted(cases)
    results = measure(run, counting, bundle(None, run))
    assert asked == [None, "int8"]
    assert [summary.identical for summary in results.summaries] == [0, 3, 0, 3]
    assert set(results.manifest["targets"]) == {"none", "int8"}


def test_an_answer_that_departs_is_shown_with_both_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that keeps everything drafted is no lossless one, and where logits cannot move it is a fault."""

    def everything(self: Match, law: Any, draft: Any, noise: Any, position: int) -> Verdict:
        path = tuple(range(len(draft.tree)))
        return Verdict(path, law.draws(noise, [position + len(path) - 1] * len(path))[-1])

    monkeypatch.setattr(Match, "__call__", everything)
    asked = Wanted(CASES, [prompts(1)[0]], Plan(12, 1))
    table_ = Table(4, 3)
    results = measure(asked, lambda quantize: toy(table_), bundle(None, asked))
    assert (results.summaries[1].compared, results.summaries[1].identical) == (1, 0)
    (found,) = results.divergences
    assert (found.case, found.prompt, found.repeat, found.verdict) == (1, "p0", 0, "fault")
    assert found.plain != found.other and found.plain_logit > found.other_logit
    assert found.gap > 0 and found.plain_logit - found.other_logit >= found.gap - 1e-6


def test_perplexity_is_that_of_the_tables() -> None:
    """Of a text whose tokens have the probabilities 1/2, 1/4 and 1/8: their geometric mean, turned over."""

    class Halves(Table):
        def make(self, context: tuple[int, ...]) -> list[float]:
            """Another law at every place."""
            chance = 0.5 ** len(context)
            return [chance, 1 - chance]

    assert perplexity(ToyTarget(Halves(2)), [0], [0, 0, 0]) == pytest.approx(4.0)
    asked = Wanted(CASES, prompts(1), Plan(3, 1), perplexity=True)
    steps: list[None] = []
    results = measure(asked, load, bundle(None, asked), lambda: steps.append(None))
    assert [summary.perplexity for summary in results.summaries] == [pytest.approx(1.0)] * 2, "it writes one text only"
    assert len(steps) == asked.steps == 4


def test_perplexity_can_be_asked_for_later(tmp_path: Path) -> None:
    asked = wanted()
    assert measure(asked, load, bundle(tmp_path, asked)).summaries[0].perplexity is None
    later = Wanted(asked.cases, asked.prompts, asked.plan, perplexity=True)
    assert measure(later, load, bundle(tmp_path, later)).summaries[0].perplexity == pytest.approx(1.0)
    assert all(sample.perplexity is not None for sample in read(tmp_path).samples)


def test_a_prompt_that_does_not_fit_is_refused_before_any_work() -> None:
    asked = Wanted(CASES, [*prompts(1), BenchPrompt("long", "chat", [1] * 50)], Plan(6, 1))

    def narrow(quantize: str | None) -> Outrider:
        llm = toy(Stream(8, 1, TEXT))
        llm.target.context = 40
        return llm

    kept = bundle(None, asked)
    with pytest.raises(BadPrompt, match="'long'"):
        measure(asked, narrow, kept)
    assert kept.samples.records == []


def test_a_drafter_that_needs_more_than_a_prompt_is_refused_before_any_work() -> None:
    asked = wanted((Case(drafter="none"), Case(drafter="cascade:reference,suffix", policy="fixed:2", k=2)))
    kept = bundle(None, asked)
    with pytest.raises(BadOption, match="'reference'"):
        measure(asked, load, kept)
    assert kept.samples.records == []


def test_files_are_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    monkeypatch.setattr(Path, "replace", lambda self, other: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_whole(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_fingerprint_tells_other_files(tmp_path: Path) -> None:
    """Small files whole, weights by their size and ends; notes beside them do not count."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"a" * (3 << 20))
    first = fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("hello")
    assert fingerprint(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"a" * (3 << 20) + b"b")
    second = fingerprint(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert len({first, second, fingerprint(tmp_path)}) == 3
    assert set(fingerprints(f"cascade:suffix:corpus={tmp_path / 'config.json'},model:{tmp_path}")) == {
        str(tmp_path / "config.json"), str(tmp_path),
    }  # fmt: skip
    assert fingerprints("suffix:factor=2") == {}


def test_the_csv_has_a_line_per_case() -> None:
    asked = wanted()
    results: Results = measure(asked, load, bundle(None, asked))
    lines = table(results.cases, results.summaries).splitlines()
    assert len(lines) == 3 and all(line.count(",") == lines[0].count(",") for line in lines)
    assert math.isclose(float(lines[1].split(",")[lines[0].split(",").index("tokens")]), 18)


def test_samples_are_strict() -> None:
    """A file of another program is not taken for ours."""
    with pytest.raises(ValueError, match="Extra inputs"):
        Sample.model_validate({"case": 0, "colour": "red"})
