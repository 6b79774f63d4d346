"""`outrider bench` as people and scripts use it, on a tiny random model, and once on the real demo model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from outrider.drafters import DRAFTERS
from outrider.measure import runner
from outrider.measure.baseline import Transformers
from outrider.measure.results import Results


@pytest.fixture
def questions(tmp_path: Path) -> str:
    """Two short prompts of two kinds."""
    path = tmp_path / "questions.jsonl"
    records = [
        {"id": "count", "category": "lists", "prompt": "One, two, three, one, two,"},
        {"id": "hello", "category": "chat", "messages": [{"role": "user", "content": "Say hello."}]},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> str:
    """A folder with a tiny random model."""
    return str(tiny.save(tmp_path_factory.mktemp("tiny"), demo_tokenizer))


SHORT = ("--max-new-tokens", "6", "--repeats", "1")


def test_on_the_demo_model(outrider, questions: str) -> None:
    code, text, _ = outrider("bench", "--prompts", questions, "--drafters", "suffix", "--k", "2", *SHORT, "--json")
    results = Results.model_validate_json(text)
    plain, fast = results.summaries
    assert code == 0 and results.manifest["targets"]["none"]["build"] == "lean"
    assert (fast.compared, fast.identical) == (2, 2) and fast.accepted > 0, "it can count to three"
    assert plain.verdict is None and fast.verdict in {"faster", "slower", "indistinguishable"}


def test_the_document_and_the_folder(outrider, small: str, questions: str, tmp_path: Path) -> None:
    out, drafters = tmp_path / "run", f"suffix,model:{small}"
    options = ("--target", small, "--prompts", questions, "--drafters", drafters, "--k", "2", "--perplexity", *SHORT)
    arguments = ("bench", *options, "--out", str(out), "--timeline", "--costs", "--json")
    code, text, _ = outrider(*arguments)
    assert code == 0
    results = Results.model_validate_json(text)
    assert [case.name for case in results.cases] == ["none", "suffix, k=2", f"model:{small}, k=2"]
    plain, suffix, model = results.summaries
    for found in results.summaries:
        assert (found.prompts, found.samples) == (2, 2) and found.tokens <= 12
        assert found.perplexity is not None and found.perplexity == plain.perplexity
        assert found.peak_memory is not None and 100 << 20 < found.peak_memory < 16 << 30
        assert set(found.categories) == {"lists", "chat"}
    for found in (suffix, model):
        assert (found.compared, found.identical) == (2, 2) and found.speedup is not None
    assert model.acceptance_rate == 1, "the model drafts for itself"
    assert (plain.drafter_memory, suffix.drafter_memory) == (0, 0)
    assert model.drafter_memory is not None and model.drafter_memory > 5 << 20, "a copy of its own"
    assert {cost.width for cost in results.costs} >= {1, 2, 4, 8} and results.traces
    assert json.loads((out / "results.json").read_text()) == json.loads(text)
    assert json.loads((out / "timeline.json").read_text())["traceEvents"]
    again = outrider(*arguments)
    assert (again[0], json.loads(again[1])["summaries"]) == (0, json.loads(text)["summaries"])
    code, _, err = outrider("bench", *options, "--seed", "4", "--out", str(out))
    assert code == 2 and "'seed'" in err


def test_the_table_and_the_report(outrider, small: str, questions: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    asked = ("--target", small, "--prompts", questions, "--limit", "1", *SHORT)
    code, out, err = outrider("bench", *asked, "--report", str(report))
    assert code == 0
    assert "suffix" in out and "1 of 1" in out and "…" not in out, "every figure is seen whole, on narrow screens too"
    said = " ".join(out.split())
    assert "the bonus token (the target's own) COUNTED" in said and "the bonus token NOT counted" in said
    assert {"report.md", "results.json", "samples.jsonl"} <= {path.name for path in report.iterdir()}
    assert str(report) in err.replace("\n", "")


def test_relaxed_rules_batches_and_temperatures(outrider, small: str, questions: str) -> None:
    """The cross product, with plain decoding for each batch and temperature; relaxed rules say how far they go."""
    options = ("--drafters", f"model:{small}", "--k", "2", "--verifiers", "ensemble:0.5", "--batch", "1,2")
    asked = ("--target", small, "--prompts", questions, "--temperature", "0.7", *SHORT)
    code, text, _ = outrider("bench", *asked, *options, "--json")
    results = Results.model_validate_json(text)
    assert code == 0 and len(results.cases) == 4
    relaxed = [found for found in results.summaries if results.cases[found.case].verifier == "ensemble:0.5"]
    assert len(relaxed) == 2
    for found in relaxed:
        assert (found.lossless, found.compared) == (False, 0)
        assert found.mean_tv == pytest.approx(0, abs=1e-3)


def test_quantized_targets_and_drafters(outrider, small: str, questions: str) -> None:
    """Each target has its own plain decoding; the draft model is one for all, and rounded if asked for."""
    options = ("--drafters", f"model:{small}", "--k", "2", "--quantize", "none,int8", "--draft-quantize", "int8")
    code, text, _ = outrider("bench", "--target", small, "--prompts", questions, *options, *SHORT, "--json")
    results = Results.model_validate_json(text)
    assert code == 0 and [case.quantize for case in results.cases] == [None, None, "int8", "int8"]
    assert [found.identical for found in results.summaries] == [0, 2, 0, 2]
    wide, narrow = results.summaries[1], results.summaries[3]
    assert narrow.acceptance_rate == 1 and wide.drafter_memory == narrow.drafter_memory


def test_a_configuration_fills_in(outrider, small: str, questions: str, tmp_path: Path) -> None:
    """Single values are lists of one here; its policy goes with its drafter."""
    path = tmp_path / "outrider.toml"
    path.write_text(f'target = "{small}"\ndrafter = "lookup:3"\npolicy = "fixed:3"\nbatch = 2\n')
    asked = ("bench", "--config", str(path), "--prompts", questions, *SHORT, "--json")
    assert named(outrider(*asked)) == ["none, batch 2", "lookup:3, k=3, batch 2"]
    assert named(outrider(*asked, "--drafters", "suffix")) == ["none, batch 2", "suffix, batch 2"]


def named(ended: tuple[int, str, str]) -> list[str]:
    """The names of a document's cases."""
    return [case.name for case in Results.model_validate_json(ended[1]).cases]


def test_the_preset_says_what_is_missing(outrider, small: str, questions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: kind for name, kind in DRAFTERS.items() if name not in {"medusa", "eagle", "eagle3"}}
    monkeypatch.setattr("outrider.measure.presets.DRAFTERS", known)
    preset = ("bench", "--preset", "architectures", "--target", small, "--prompts", questions, *SHORT)
    code, text, _ = outrider(*preset, "--k", "1", "--draft-model", small, "--json")
    document = json.loads(text)
    assert code == 0
    assert [case["drafter"] for case in document["cases"]] == ["none", f"model:{small}"]
    left_out = " ".join(document["manifest"]["left_out"])
    assert "Medusa" in left_out and "EAGLE" in left_out and "2 of 100 prompts" in left_out
    assert document["summaries"][1]["perplexity"] > 1
    code, _, err = outrider(*preset)
    assert code == 2 and "--draft-model" in err


def test_an_interruption_has_its_own_exit_code(
    outrider, small: str, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = runner._served

    def interrupted(*args, **options):  # type: ignore[no-untyped-def]
        if (tmp_path / "run" / "samples.jsonl").exists():
            raise KeyboardInterrupt
        return served(*args, **options)

    monkeypatch.setattr(runner, "_served", interrupted)
    asked = ("--target", small, "--prompts", questions, *SHORT)
    code, out, err = outrider("bench", *asked, "--out", str(tmp_path / "run"))
    assert code == 130
    assert "what is done is kept" in err and "Traceback" not in err
    assert "none" in out
    assert len(json.loads((tmp_path / "run" / "results.json").read_text())["summaries"]) == 1


@pytest.mark.parametrize(("baseline", "batch"), [("transformers,transformers-lookup", "1"), ("transformers", "2")])
def test_transformers_in_the_same_run(outrider, small: str, questions: str, tmp_path: Path, baseline: str, batch: str):
    """Its own generate takes its turns, is held against plain decoding as every other case, and has no rounds."""
    options = ("--drafters", "suffix", "--baseline", baseline, "--batch", batch, "--perplexity", "--costs")
    asked = (
        "bench",
        "--target",
        small,
        "--prompts",
        questions,
        *options,
        *SHORT,
        "--out",
        str(tmp_path / "run"),
        "--json",
    )
    code, text, _ = outrider(*asked)
    results = Results.model_validate_json(text)
    assert code == 0
    plain, ours, *theirs = results.summaries
    names = ["none (transformers)", "prompt lookup (transformers), k=10"][: len(theirs)]
    assert [results.cases[found.case].name.partition(", batch")[0] for found in theirs] == names
    for found in theirs:
        assert (found.compared, found.identical) == (2, 2), results.divergences
        assert (found.rounds, found.acceptance_length, found.verify_seconds) == (0, None, None)
        assert found.tokens == plain.tokens == ours.tokens and found.perplexity == plain.perplexity
        assert found.speedup is not None and found.verdict is not None
        assert found.time_to_first.p50 is not None and found.peak_memory is not None
        assert found.drafter_memory is None and ours.drafter_memory == 0
    again = outrider(*asked)
    assert json.loads(again[1])["summaries"] == json.loads(text)["summaries"], "nothing is left to be done"


def test_where_transformers_writes_something_else_it_is_told(
    outrider, small: str, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty loop of theirs: the divergence is judged by their own logits."""
    right = Transformers._ended
    monkeypatch.setattr(Transformers, "_ended", lambda self, row: [*right(self, row)[:-1], 7])
    options = ("--drafters", "none", "--baseline", "transformers")
    code, text, _ = outrider("bench", "--target", small, "--prompts", questions, *options, *SHORT, "--json")
    results = Results.model_validate_json(text)
    assert code == 0 and results.summaries[1].identical == 0
    assert [(found.place, found.other, found.verdict) for found in results.divergences] == [(5, 7, "fault")] * 2


def test_what_a_report_lacks_is_told(
    outrider, small: str, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.measure.reporting.png.can_draw", lambda: False)
    asked = ("--target", small, "--prompts", questions, "--limit", "1", *SHORT)
    code, _, err = outrider("bench", *asked, "--report", str(tmp_path / "report"))
    assert code == 0 and "There are no PNGs" in err


MISTAKES = {
    "unknown drafter": (("--drafters", "crystal-ball"), "crystal-ball"),
    "unknown policy": (("--policies", "whim"), "whim"),
    "what cannot go together": (("--verifiers", "ensemble"), "mixes the drafter's probabilities"),
    "no lengths": (("--k", "0"), "--k"),
    "no temperature": (("--temperature", "hot"), "--temperature"),
    "unknown quantization": (("--quantize", "int3"), "--quantize"),
    "quantized without fast modules": (("--quantize", "none,int8", "--no-fast"), "fast"),
    "missing prompts": (("--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
    "missing spec_bench": (("--prompts", "spec_bench:nowhere.jsonl"), "nowhere.jsonl"),
    "unknown model": (("--target", "no-such-model"), "no-such-model"),
    "timeline without a folder": (("--timeline",), "--out"),
    "history without use": (("--keep-history", "--drafters", "lookup"), "--keep-history"),
    "draft model without a preset": (("--draft-model", "demo"), "--preset"),
    "unknown preset": (("--preset", "everything", "--draft-model", "demo"), "architectures"),
    "a server's model without a server": (("--model", "x"), "--endpoint"),
    "no server": (("--endpoint", "http://127.0.0.1:9"), "cannot be reached"),
    "no address": (("--endpoint", "nowhere"), "http://localhost:8000"),
    "drafters for a server": (("--endpoint", "http://127.0.0.1:9", "--drafters", "suffix"), "--drafters"),
    "a dtype for a server": (("--endpoint", "http://127.0.0.1:9", "--dtype", "float32"), "--dtype"),
    "a target for a server": (("--endpoint", "http://127.0.0.1:9", "--target", "demo"), "--target"),
    "unknown baseline": (("--baseline", "llama"), "transformers-lookup"),
    "lookup for a batch": (("--baseline", "transformers-lookup", "--batch", "1,2"), "one prompt at a time"),
    "a baseline without its model": (("--baseline", "transformers", "--quantize", "int8"), "--quantize"),
    "a baseline for a server": (("--endpoint", "http://127.0.0.1:9", "--baseline", "transformers"), "--baseline"),
    "unknown dtype": (("--dtype", "int3"), "int3"),
    "a draft model's device without one": (("--draft-device", "cpu"), "--draft-device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(outrider, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    code, out, err = outrider("bench", *arguments)
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_foreign_folders_are_left_alone(outrider, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    code, _, err = outrider("bench", "--out", str(tmp_path))
    assert code == 2 and "no run of bench" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
