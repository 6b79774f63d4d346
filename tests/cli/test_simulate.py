"""`outrider simulate`: a document of `outrider generate` replayed, a trace cut down, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

PROMPTS = ["a b c a b c a b c a", "one two one two one two one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """A tiny model of two layers."""
    return tiny.save(tmp_path_factory.mktemp("tiny"), demo_tokenizer)


@pytest.fixture
def answers(outrider, folder: Path, tmp_path: Path):
    """`answers(*options)`: the path and the document of two answers."""

    def write(*options: str) -> tuple[Path, dict[str, Any]]:
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("\n".join(PROMPTS))
        code, out, _ = outrider(
            "generate", "--target", str(folder), "--prompts", str(prompts), "--max-new-tokens", "40", "--json", *options
        )
        assert code == 0
        path = tmp_path / "answers.json"
        path.write_text(out)
        return path, json.loads(out)

    return write


@pytest.mark.parametrize(("drafter", "batch"), [("suffix", "2"), ("suffix", "1"), ("lookup", "8")])
def test_the_acceptance_length_that_was_measured(outrider, answers, drafter: str, batch: str) -> None:
    path, document = answers("--drafter", drafter, "--policy", "fixed:4", "--batch", batch, "--trace")
    code, out, _ = outrider("simulate", "--log", str(path), "--drafters", drafter, "--k", "2,4", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["answers"], told["batch"]) == (2, int(batch))
    rounds = [round_ for output in document["outputs"] for round_ in output["rounds"]]
    drafts = [len(round_["tokens"]) for round_ in rounds if round_["draft_tokens"]]
    two, four = told["cases"]
    assert (two["policy"], four["policy"]) == ("fixed:2", "fixed:4")
    assert four["stats"]["acceptance_length"] == sum(drafts) / len(drafts)
    assert four["stats"]["rounds"] == len(rounds)
    assert two["stats"]["acceptance_length"] <= four["stats"]["acceptance_length"]
    assert four["speed"] == {
        "speedup": pytest.approx(four["stats"]["tokens_per_pass"]),
        "tokens_per_second": None,
        "verify_seconds": None,
        "draft_seconds": None,
    }
    assert any("No costs were given" in note for note in told["notes"])


COSTS = {
    "passes": [{"width": w, "batch": 1, "context": 64, "seconds": s} for w, s in ((1, 0.02), (8, 0.04), (32, 0.2))]
}


def test_costs_trees_and_text(outrider, answers, folder: Path, tmp_path: Path) -> None:
    _, document = answers("--drafter", "none")
    log, costs = tmp_path / "log.jsonl", tmp_path / "costs.json"
    costs.write_text(json.dumps(COSTS))
    lines = [{"prompt": p, "output": o["text"]} for p, o in zip(PROMPTS, document["outputs"], strict=True)]
    log.write_text("\n".join(map(json.dumps, lines)))
    options = ("--log", str(log), "--target", str(folder), "--costs", str(costs))
    code, out, _ = outrider("simulate", *options, "--drafters", "suffix", "--k", "3", "--nodes", "2,9,16", "--json")
    told = json.loads(out)
    assert code == 0
    assert [case["policy"] for case in told["cases"]] == ["fixed:3,9", "fixed:3,16"]
    for case in told["cases"]:
        assert 0.02 <= case["speed"]["verify_seconds"] <= 0.2
        assert case["speed"]["tokens_per_second"] > 0
    code, out, _ = outrider("simulate", *options)
    assert code == 0
    assert "plain decoding" in out
    assert "lookup" in out and "fixed:8" in out


def test_a_trace_predicts_every_smaller_k(outrider, answers, folder: Path, tmp_path: Path) -> None:
    path, document = answers("--drafter", "early_exit:1", "--policy", "fixed:4", "--trace")
    code, out, _ = outrider("simulate", "--trace", str(path), "--json")
    told = json.loads(out)
    assert code == 0
    assert [case["k"] for case in told["cases"]] == [1, 2, 3, 4]
    assert told["cases"][-1]["acceptance_length"] == pytest.approx(told["recorded"]["acceptance_length"])
    assert told["recorded"]["tokens"] == sum(len(output["token_ids"]) for output in document["outputs"])
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(COSTS))
    code, out, _ = outrider("simulate", "--trace", str(path), "--k", "2", "--costs", str(costs))
    assert code == 0
    assert "k = 2" in out
    assert "estimates" in out


def test_the_folder_of_a_bench(outrider, folder: Path, tmp_path: Path) -> None:
    """Its answers, each once, give the acceptance length that it measured; its rounds are a trace."""
    prompts, out = tmp_path / "prompts.txt", tmp_path / "run"
    prompts.write_text("\n".join(PROMPTS))
    code, _, err = outrider(
        "bench", "--target", str(folder), "--drafters", "lookup", "--k", "3", "--prompts", str(prompts),
        "--max-new-tokens", "40", "--repeats", "1", "--out", str(out),
    )  # fmt: skip
    assert code == 0, err
    summaries = json.loads((out / "results.json").read_text())["summaries"]
    (measured,) = [summary["acceptance_length"] for summary in summaries if summary["drafted"]]
    code, told, _ = outrider("simulate", "--log", str(out), "--drafters", "lookup", "--k", "3", "--json")
    document = json.loads(told)
    assert code == 0
    assert document["answers"] == len(PROMPTS)
    assert document["cases"][0]["stats"]["acceptance_length"] == pytest.approx(measured)
    code, told, _ = outrider("simulate", "--trace", str(out), "--json")
    assert code == 0
    assert [case["k"] for case in json.loads(told)["cases"]] == [1, 2, 3]


LOG = ("--log", "log.jsonl")
MISTAKES = {
    "nothing to simulate": ((), "--log"),
    "log and trace": ((*LOG, "--trace", "x"), "--trace"),
    "drafters for a trace": (("--trace", "x", "--drafters", "suffix"), "--drafters"),
    "missing log": (("--log", "nowhere.jsonl"), "nowhere.jsonl"),
    "a drafter with a model": ((*LOG, "--drafters", "model:demo"), "suffix, reference"),
    "a drafter that looks at scores": ((*LOG, "--drafters", "recycle"), "more than the text"),
    "an unknown drafter": ((*LOG, "--drafters", "oracle"), "oracle"),
    "no number": ((*LOG, "--k", "two"), "--k"),
    "no tree": ((*LOG, "--k", "4", "--nodes", "4"), "no tree"),
    "trees for chains": ((*LOG, "--drafters", "lookup", "--nodes", "16"), "makes chains"),
    "text without a tokenizer": (LOG, "--tokenizer"),
    "costs for many": ((*LOG, "--costs", "x", "--batch", "2"), "--batch"),
    "missing costs": ((*LOG, "--costs", "nowhere.json"), "nowhere.json"),
    "a tokenizer that is none": ((*LOG, "--tokenizer", "./nowhere"), "nowhere"),
    "a trace without rounds": (("--trace", "log.jsonl"), "no rounds"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    outrider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"prompt": "one", "output": "two"}\n')
    arguments, named = MISTAKES[mistake]
    code, out, err = outrider("simulate", *arguments)
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
