"""`outrider tune`: the document, the file, the picture, and what is refused before any work. On few tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.config import read

TEXTS = ("1, 2, 3, 4, 5, 6, 7, 8,", "a b c a b c a b c a b c a b")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Two prompts that are worth copying from."""
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(TEXTS))
    return str(path)


def test_from_end_to_end(outrider, prompts: str, tmp_path: Path) -> None:
    out, plot = tmp_path / "outrider.toml", tmp_path / "front.png"
    code, told, err = outrider(
        "tune", "--drafters", "none,suffix", "--prompts", prompts, "--k", "2,4", "--trees", "2x4", "--batch", "1,2",
        "--max-new-tokens", "8", "--validate", "1", "--goal", "throughput", "--out", str(out), "--plot", str(plot),
        "--json",
    )  # fmt: skip
    assert code == 0, err
    document = json.loads(told)
    settings = [(one["drafter"], one["policy"], one["batch"]) for one in document["predictions"]]
    assert settings[:2] == [("none", None, 1), ("none", None, 2)]
    assert set(settings[2:]) == {("suffix", p, b) for p in ("fixed:2", "fixed:4", "fixed:2,4") for b in (1, 2)}
    for one in document["predictions"]:
        assert one["throughput"] == pytest.approx(one["batch"] * one["tokens_per_second"])
        assert 1 <= one["tokens_per_pass"] <= 5 and one["speedup"] > 0
    assert any(one["front"] for one in document["predictions"])
    assert {cost["batch"] for cost in document["costs"]["passes"]} == {1, 2}
    assert {(run["asked"]["depth"], run["asked"]["nodes"]) for run in document["drafters"]} == {(4, 4), (2, 4)}
    assert document["drafters"][0]["survival"][0] > 0.2, "these texts are worth copying"
    assert isinstance(document["checks"]["several_tokens_cost_one"]["answer"], bool)
    assert document["checks"]["accepted_enough"]["drafters"][0]["needed"] > 0

    run = [(one["drafter"], one["policy"]) for one in document["contenders"]]
    assert run[0] == ("none", None) and run[-1] == ("suffix", "goodput")
    assert sum(policy is not None and policy.startswith("fixed") for _, policy in run) == 1
    for one in document["contenders"]:
        assert one["identical"] in (None, one["compared"])
        assert (one["predicted"] is None) == (one["policy"] == "goodput")
        if one["error"] is not None:
            assert one["error"] == pytest.approx(one["predicted"] / one["speedup"] - 1)
    best = max(document["contenders"], key=lambda one: one["throughput"])
    assert document["chosen"] == {key: best[key] for key in document["chosen"]}

    assert plot.read_bytes().startswith(b"\x89PNG")
    config = read(out)
    assert (config.target, config.drafter, config.batch) == ("demo", best["drafter"], best["batch"])
    assert config.policy == best["policy"]
    assert config.measured is not None and config.measured["run"]["throughput"] > 0
    for text in TEXTS:
        assert text not in told and text not in out.read_text()
    assert outrider("generate", "--config", str(out), "--prompt", "1, 2,", "--max-new-tokens", "2")[0] == 0


def test_for_people_and_without_running_the_best(outrider, prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "outrider.toml"
    code, told, err = outrider(
        "tune", "--drafters", "lookup", "--prompts", prompts, "--k", "1-3", "--max-new-tokens", "8", "--validate", "0",
        "--quantize", "int8", "--out", str(out),
    )  # fmt: skip
    assert code == 0, err
    words = " ".join(told.split())
    for phrase in (
        "cost what one costs here?",
        "Is enough of the drafts accepted?",
        "The front, predicted",
        "Best for",
    ):
        assert phrase in words
    assert "run in turns" not in words
    config = read(out)
    assert config.quantize == "int8" and config.measured is not None and "run" not in config.measured
    assert ("speculative_config" in config.measured) == (config.drafter == "lookup")


MISTAKES = {
    "no drafter": (("--drafters", "none"), "plain decoding is there anyway"),
    "unknown drafter": (("--drafters", "hope"), "'hope'"),
    "drafter that needs a text": (("--drafters", "reference"), "'reference'"),
    "drafter of changing trees": (("--drafters", "lookahead"), "outrider bench"),
    "trees for nothing": (("--drafters", "lookup", "--trees", "4x8"), "--trees would change nothing"),
    "trees that the rule does not serve": (
        ("--drafters", "suffix", "--trees", "4x8", "--verifier", "block"),
        "--trees",
    ),
    "no tree": (("--trees", "8x4"), "more nodes than depth"),
    "no length": (("--k", "0"), "--k"),
    "rule that needs probabilities": (("--drafters", "suffix", "--verifier", "ensemble"), "'suffix' has none"),
    "too few prompts": (("--batch", "64", "--prompts", __file__, "--limit", "3"), "takes as many prompts"),
    "no prompts": (("--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
    "no picture": (("--plot", "front.txt"), ".png"),
    "existing file": (("--out", __file__), "never overwritten"),
    "no folder": (("--out", "/nowhere/outrider.toml"), "no folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(outrider, tmp_path: Path, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    usual = () if "--out" in arguments else ("--out", str(tmp_path / "outrider.toml"))
    code, out, err = outrider("tune", *arguments, *usual)
    assert (code, out) == (2, "")
    assert named in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
