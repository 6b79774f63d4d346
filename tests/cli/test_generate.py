"""The command line as people and scripts use it, in this process: on the real demo model where its text matters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = ("--max-new-tokens", "8")


def test_text_goes_to_standard_output_and_figures_to_standard_error(outrider) -> None:
    code, out, err = outrider("generate", "--prompt", "One, two, three, one, two,", *SHORT)
    assert code == 0
    assert "three" in out
    assert "tokens/s" in err and "tokens/s" not in out


def test_json_is_one_document_with_everything(outrider, small: str) -> None:
    code, out, _ = outrider("generate", "--target", small, "--chat", "Say hello.", *SHORT, "--json", "--trace")
    document = json.loads(out)
    (output,) = document["outputs"]
    assert code == 0
    assert output["finish_reason"] in {"stop", "length"}
    assert len(output["token_ids"]) == output["stats"]["tokens"] == sum(len(r["tokens"]) for r in output["rounds"])
    assert document["configuration"]["drafter"].startswith("suffix")
    assert set(document["versions"]) == {"outrider", "torch", "transformers", "python"}


def test_trace_prints_the_rounds(outrider, small: str) -> None:
    code, _, err = outrider("generate", "--target", small, "--prompt", "a b c a b c a b", *SHORT, "--trace")
    assert code == 0
    for heading in ("prefix", "drafted", "accepted", "rejected"):
        assert heading in err


def test_same_seed_same_ids_with_any_drafter(outrider, small: str) -> None:
    sampling = (
        "--target",
        small,
        "--temperature",
        "0.9",
        "--top-p",
        "0.95",
        "--top-k",
        "50",
        "--seed",
        "7",
        *SHORT,
        "--json",
    )
    ids = [
        json.loads(outrider("generate", "--prompt", "Once upon a time", "--drafter", drafter, *sampling)[1])["outputs"][
            0
        ]["token_ids"]
        for drafter in ("none", "lookup", "suffix", "recycle", "lookahead", f"model:{small}")
    ]
    assert all(other == ids[0] for other in ids)


def test_what_a_drafter_has_to_say_is_said_once(outrider, small: str) -> None:
    """In the summary and in the configuration; nothing where there is nothing to say."""
    asked = ("generate", "--target", small, "--prompt", "One, two,", *SHORT)
    code, out, err = outrider(*asked, "--drafter", "early_exit:1")
    assert code == 0
    assert " ".join(err.split()).count("train an exit first") == 1
    assert "train an exit" not in out
    for drafter in ("early_exit:1", "lookup"):
        document = json.loads(outrider(*asked, "--drafter", drafter, "--json")[1])
        assert ("note" in document["configuration"]) == (drafter != "lookup")


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_file_of_prompts_is_a_batch(outrider, small: str, tmp_path: Path, suffix: str) -> None:
    lines = ["Red, green,", "Once upon a time there was a"]
    path = tmp_path / f"prompts{suffix}"
    text = lines if suffix == ".txt" else [json.dumps({"prompt": line}) for line in lines]
    path.write_text("\n".join(text))
    asked = ("generate", "--target", small, *SHORT, "--json")
    code, out, _ = outrider(*asked, "--prompts", str(path), "--batch", "2")
    batch = [output["token_ids"] for output in json.loads(out)["outputs"]]
    alone = [json.loads(outrider(*asked, "--prompt", line)[1])["outputs"][0]["token_ids"] for line in lines]
    assert code == 0
    assert batch == alone


def test_stop_strings_are_cut_off(outrider) -> None:
    code, out, _ = outrider(
        "generate", "--prompt", "1, 2, 3, 4, 5,", "--stop", " 8", "--max-new-tokens", "30", "--json"
    )
    (output,) = json.loads(out)["outputs"]
    assert code == 0
    assert output["finish_reason"] == "stop"
    assert " 8" not in output["text"]


def test_a_prediction_is_followed(outrider, tmp_path: Path) -> None:
    prompt = ("generate", "--prompt", "1, 2, 3, 4, 5,", "--max-new-tokens", "24", "--json")
    plain = json.loads(outrider(*prompt, "--drafter", "none")[1])["outputs"][0]
    path = tmp_path / "expected.txt"
    path.write_text(plain["text"], encoding="utf-8")
    followed = json.loads(outrider(*prompt, "--drafter", "reference", "--prediction", str(path))[1])["outputs"][0]
    assert followed["token_ids"] == plain["token_ids"]
    assert followed["stats"]["accepted"] >= 16


def test_a_corpus_and_its_bound_reach_the_drafter(outrider, tmp_path: Path) -> None:
    prompt = ("generate", "--prompt", "1, 2, 3, 4, 5,", "--max-new-tokens", "24", "--json")
    path = tmp_path / "corpus.txt"
    path.write_text("3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21", encoding="utf-8")
    documents = [
        json.loads(outrider(*prompt, *options)[1])
        for options in (("--global-tokens", "0"), ("--corpus", str(path)), ("--drafter", "suffix:factor=3,doubt=0"))
    ]
    assert [document["configuration"]["drafter"] for document in documents] == [
        "suffix:factor=2,longest=32,doubt=1.7,global=0",
        f"suffix:factor=2,longest=32,doubt=1.7,global=65536,corpus={path}",
        "suffix:factor=3,longest=32,doubt=0,global=65536",
    ]
    without, with_corpus, _ = [document["outputs"][0] for document in documents]
    assert without["token_ids"] == with_corpus["token_ids"]
    assert with_corpus["stats"]["rounds"] < without["stats"]["rounds"]


def relaxed(small: str) -> tuple[str, ...]:
    """A model that drafts for itself, under a rule that mixes its law in."""
    how = ("--drafter", f"model:{small}", "--verifier", "ensemble:0.5", "--temperature", "0.9", "--seed", "1")
    return "generate", "--target", small, "--prompt", "Once upon a time", *how, *SHORT


def test_relaxed_output_is_labelled_in_json(outrider, small: str) -> None:
    _, out, _ = outrider(*relaxed(small), "--json", "--trace")
    document = json.loads(out)
    (output,) = document["outputs"]
    assert (output["verifier"], output["lossless"]) == ("ensemble:0.5", False)
    assert document["configuration"]["verifier"] == "ensemble:0.5"
    assert output["stats"]["mean_tv"] == pytest.approx(0, abs=1e-3), "the model drafts for itself"
    for round_ in output["rounds"]:
        assert len(round_["divergence"]) == len(round_["tokens"])


def test_relaxed_output_is_labelled_in_the_summary(outrider, small: str) -> None:
    _, _, err = outrider(*relaxed(small))
    assert "RELAXED by ensemble:0.5" in err
    assert "mean TV" in err
    _, _, err = outrider("generate", "--target", small, "--prompt", "Once upon a time", *SHORT)
    assert "RELAXED" not in err


MISTAKES = {
    "ensemble without probabilities": (("--verifier", "ensemble", "--prompt", "x"), "'suffix' has none"),
    "lenience without l": (("--verifier", "lenience", "--prompt", "x"), "lenience:l"),
    "ensemble beyond 1": (("--verifier", "ensemble:2", "--drafter", "model:demo", "--prompt", "x"), "between 0 and 1"),
    "unknown model": (("--target", "no-such-model", "--prompt", "x"), "no-such-model"),
    "unknown folder": (("--target", "./nowhere", "--prompt", "x"), "nowhere"),
    "unknown drafter": (("--drafter", "crystal-ball", "--prompt", "x"), "crystal-ball"),
    "unknown verifier": (("--verifier", "hope", "--prompt", "x"), "hope"),
    "unknown policy": (("--policy", "whim", "--prompt", "x"), "whim"),
    "k = 0": (("--policy", "fixed:0", "--prompt", "x"), "1 or more"),
    "policy without drafts": (("--drafter", "none", "--policy", "fixed:3", "--prompt", "x"), "--policy"),
    "empty prompt": (("--prompt", ""), "empty"),
    "empty chat": (("--chat", ""), "empty"),
    "no prompt": ((), "exactly one"),
    "two prompts": (("--prompt", "x", "--chat", "y"), "exactly one"),
    "prompt beyond the context": (("--prompt", "word " * 9000), "context"),
    "negative temperature": (("--temperature", "-1", "--prompt", "x"), "temperature"),
    "top-p beyond 1": (("--temperature", "1", "--top-p", "2", "--prompt", "x"), "top_p"),
    "top-k that changes nothing": (("--top-k", "5", "--prompt", "x"), "temperature"),
    "no new tokens": (("--max-new-tokens", "0", "--prompt", "x"), "max_new_tokens"),
    "unknown dtype": (("--dtype", "int3", "--prompt", "x"), "int3"),
    "unknown device": (("--device", "warp", "--prompt", "x"), "warp"),
    "missing file of prompts": (("--prompts", "nowhere.txt"), "nowhere.txt"),
    "draft model without a name": (("--drafter", "model", "--prompt", "x"), "model:"),
    "translated without a name": (("--drafter", "translated:tli", "--prompt", "x"), "translated:MODEL"),
    "an exit behind the last layer": (("--drafter", "early_exit:2", "--prompt", "x"), "from 1 to 1"),
    "no layers for more tokens": (("--drafter", "mtp", "--prompt", "x"), "multi-token-prediction"),
    "a cascade of one": (("--drafter", "cascade:lookup", "--prompt", "x"), "cascade:A,B"),
    "reference without a prediction": (("--drafter", "reference", "--prompt", "x"), "--prediction"),
    "prediction without use": (("--prediction", __file__, "--prompt", "x"), "'reference'"),
    "missing prediction": (("--prediction", "nowhere.txt", "--drafter", "reference", "--prompt", "x"), "nowhere.txt"),
    "prediction for many": (("--prediction", __file__, "--drafter", "reference", "--prompts", "x"), "--prediction"),
    "corpus without use": (("--corpus", __file__, "--drafter", "lookup", "--prompt", "x"), "'suffix'"),
    "bound without use": (("--global-tokens", "9", "--drafter", "none", "--prompt", "x"), "'suffix'"),
    "corpus beyond its bound": (("--corpus", __file__, "--global-tokens", "9", "--prompt", "x"), "--global-tokens"),
    "missing corpus": (("--corpus", "nowhere.txt", "--prompt", "x"), "nowhere.txt"),
    "negative bound": (("--global-tokens", "-1", "--prompt", "x"), "global"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(outrider, small: str, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    code, out, err = outrider("generate", *(() if "--target" in arguments else ("--target", small)), *arguments)
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_broken_gguf_is_one_sentence(outrider, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\x00" * 64)
    code, _, err = outrider("generate", "--target", str(path), "--prompt", "x")
    assert code == 2
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("line", ["no json", "{}", '{"prompt": 3}'])
def test_a_bad_line_is_named(outrider, small: str, tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    code, _, err = outrider("generate", "--target", small, "--prompts", str(path))
    assert code == 2
    assert "line 2" in err


def test_help_needs_no_torch() -> None:
    """Help and version have to come at once."""
    program = "import sys; from outrider import cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_help_shows_examples(outrider) -> None:
    code, out, _ = outrider("generate", "--help")
    assert code == 0
    assert "outrider generate --target demo" in out


def test_version(outrider) -> None:
    code, out, _ = outrider("--version")
    assert code == 0
    assert out.startswith("outrider ")


def test_demo_reports_identical_ids(outrider) -> None:
    code, out, _ = outrider("demo", "--max-new-tokens", "24", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["identical"] is True
    assert document["plain"]["token_ids"] == document["speculative"]["token_ids"]
    assert document["speculative"]["stats"]["drafted"] > 0
