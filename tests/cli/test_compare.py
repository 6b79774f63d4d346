"""`outrider compare` and `outrider explain`: the document, the words, the exit codes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from measured import SMALL, results_of

from outrider.measure.results import PLAIN, Case


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Two runs; in the second one case takes a quarter longer and writes something else."""
    results, samples = results_of([(Case(drafter=PLAIN), SMALL), (Case(drafter="[bold]d", k=2), SMALL)], prompts=6)
    for name, factor in (("a", 1.0), ("b", 1.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(results.model_dump_json())
        changed = [
            sample.model_copy(update={"seconds": sample.seconds * factor, "ids": (*sample.ids[:-1], int(factor * 100))})
            if sample.case
            else sample
            for sample in samples
        ]
        (tmp_path / name / "samples.jsonl").write_text("\n".join(sample.model_dump_json() for sample in changed))
    return str(tmp_path / "a"), str(tmp_path / "b")


def test_the_document(outrider, runs: tuple[str, str]) -> None:
    code, out, _ = outrider("compare", *runs, "--json")
    document = json.loads(out)
    assert code == 0
    assert [(case["name"], case["verdict"]) for case in document["cases"]] == [
        ("none", "indistinguishable"), ("[bold]d, k=2", "slower"),
    ]  # fmt: skip
    assert document["cases"][1]["ratio"] == pytest.approx(0.8)
    assert document["fail_below"] is None and document["failed"] == []


def test_the_words_are_for_people(outrider, runs: tuple[str, str]) -> None:
    code, out, _ = outrider("compare", *runs, "--fail-below", "0.5")
    assert code == 0
    assert "slower" in out and "0.80×" in out and "[bold]d, k=2" in out
    assert "[bold]d, k=2: 6 of 6 answers are not the same." in out
    assert "At least 0.5: the gate holds." in out


@pytest.mark.parametrize(("least", "code"), [("0.95", 1), ("0.79", 0)])
def test_the_gate(outrider, runs: tuple[str, str], least: str, code: int) -> None:
    for form in ((), ("--json",)):
        got, out, _ = outrider("compare", *runs, "--fail-below", least, *form)
        assert got == code
    assert json.loads(out)["failed"] == (["[bold]d, k=2"] if code else [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compare", "nowhere", "nowhere"), "holds no results.json"),
        (("compare", "{a}", "{b}", "--of", "colour"), "--of"),
        (("compare", "{a}", "{b}", "--fail-below", "0"), "--fail-below"),
        (("compare", "{a}", "{b}", "--fail-below", "nan"), "--fail-below"),
        (("explain", "nowhere"), "holds no results.json"),
    ],
)
def test_mistakes_are_one_sentence(outrider, runs: tuple[str, str], arguments: tuple[str, ...], says: str) -> None:
    code, out, err = outrider(*(argument.format(a=runs[0], b=runs[1]) for argument in arguments))
    assert code == 2 and out == ""
    assert says in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_explaining(outrider, runs: tuple[str, str]) -> None:
    code, out, _ = outrider("explain", runs[0], "--json")
    (case,) = json.loads(out)["cases"]
    assert code == 0
    assert math.prod(factor["value"] for factor in case["factors"]) == pytest.approx(case["speedup"])
    code, out, _ = outrider("explain", runs[0])
    assert code == 0
    assert f"[bold]d, k=2: {case['speedup']:.2f}× plain decoding's speed" in out
    for words in ("tokens per pass", "checking the draft", "drafting", "reading the prompt"):
        assert words in out


def test_plain_decoding_alone_explains_nothing(outrider, tmp_path: Path) -> None:
    results, _ = results_of([(Case(drafter=PLAIN), SMALL)], prompts=2)
    (tmp_path / "results.json").write_text(results.model_dump_json())
    code, _, err = outrider("explain", str(tmp_path))
    assert code == 2
    assert "nothing but plain decoding" in err
