"""`outrider prove`: the document, the certificate, and the exit codes 0, 1 and 2."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import tiny

from outrider import verify
from outrider.commands.settings import Settings
from outrider.loading import Loader
from outrider.measure.proof import Prover
from outrider.sampling import Law
from outrider.types import Draft, Noise, Verdict
from outrider.verify.match import Match


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """A tiny model of two layers."""
    return tiny.save(tmp_path_factory.mktemp("tiny"), demo_tokenizer)


def test_a_certificate(outrider, folder: Path) -> None:
    code, out, _ = outrider("prove", "--target", str(folder), "--quick", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["certificate"], document["verdict"], document["reasons"]) == (True, "lossless", [])
    assert [check["name"] for check in document["checks"]] == ["greedy", "seeded", "transformers"]
    for check in document["checks"]:
        assert check["compared"] == check["identical"] > 0
        assert check["control"]["caught"] is True
        assert (check["faults"], check["lack"], check["divergences"]) == (0, None, [])
    assert document["checks"][0]["stats"]["drafted"] > 0
    assert (document["prompts"], document["max_new_tokens"]) == (3, 24)
    assert document["configuration"]["policy"] == "fixed:5"
    assert document["machine"]["torch"]
    assert any("bits" in note or "do not depend" in note for note in document["notes"])


def test_there_is_never_more_than_one_model_in_memory(outrider, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outrider's has gone before Transformers' is read."""
    load, read = Settings.load, Loader.transformers_model
    models: list[Any] = []

    def loaded(self: Settings) -> Any:
        llm = load(self)
        models.append(weakref.ref(llm.target))
        return llm

    def read_again(self: Loader, name: str) -> Any:
        assert [model() for model in models] == [None]
        models.append(None)
        return read(self, name)

    monkeypatch.setattr(Settings, "load", loaded)
    monkeypatch.setattr(Loader, "transformers_model", read_again)
    code, _, _ = outrider("prove", "--target", str(folder), "--quick", "--max-new-tokens", "8", "--json")
    assert code == 0
    assert len(models) == 2


def test_the_certificate_is_for_people(outrider, folder: Path) -> None:
    code, out, _ = outrider(
        "prove", "--target", str(folder), "--drafter", f"model:{folder}", "--verifier", "token", "--quick", "--seeds",
        "150", "--max-new-tokens", "8",
    )  # fmt: skip
    assert code == 0
    assert "Certificate: lossless" in out
    words = " ".join(out.split())
    assert "from 150 texts" in words
    assert "90% probability" in words
    assert "every token was replaced" in words, "the target drafts for itself"


def test_int8_is_held_against_itself_and_says_so(outrider, folder: Path) -> None:
    code, out, _ = outrider("prove", "--target", str(folder), "--quantize", "int8", "--quick", "--json")
    document = json.loads(out)
    assert code == 0
    assert [check["name"] for check in document["checks"]] == ["greedy", "seeded"]
    assert any("plain decoding of the quantised model" in note for note in document["notes"])


def test_trees_are_proved_too_unless_a_policy_is_given(outrider, folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a b a b a b a\n")
    options = ("--prompts", str(prompts), "--max-new-tokens", "8", "--seeds", "1", "--json")
    for policy, named in (((), "fixed:5 and fixed:4,12"), (("--policy", "fixed:2"), "fixed:2")):
        _, out, _ = outrider("prove", "--target", str(folder), "--drafter", "recycle", *options, *policy)
        document = json.loads(out)
        assert document["configuration"]["policy"] == named
        assert document["prompts"] == 1
        assert any("goodput" in note for note in document["notes"]) == (not policy)


class KeepsOneMore(Match):
    """A planted fault: the first wrong token is kept, and the target's own stands behind it."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        verdict = super().__call__(law, draft, noise, position)
        more = (len(verdict.path),) if len(verdict.path) < len(draft.tree) else ()
        return Verdict((*verdict.path, *more), verdict.token)


def test_a_fault_is_listed_and_the_exit_code_is_1(outrider, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verify.VERIFIERS, "match", KeepsOneMore)
    options = ("prove", "--target", str(folder), "--quick", "--max-new-tokens", "8")
    code, out, _ = outrider(*options, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["certificate"], document["verdict"]) == (False, "fault")
    found = [item for check in document["checks"] for item in check["divergences"]]
    assert found
    for item in found:
        assert item["verdict"] == "fault"
        assert item["expected_logit"] != item["got_logit"]
        assert item["gap"] > item["rounding"]
    code, out, _ = outrider(*options)
    assert code == 1
    assert "FAULT: no certificate" in out
    words = " ".join(out.split())
    assert "Divergence (greedy, prompt 0" in words
    assert "top-2 gap" in words and ": fault" in words


def test_what_proves_nothing_is_no_certificate(outrider, folder: Path) -> None:
    code, out, _ = outrider(
        "prove", "--target", str(folder), "--drafter", "outrider.drafters.none:NoDrafter", "--quick",
        "--max-new-tokens", "4",
    )  # fmt: skip
    assert code == 1
    assert "No certificate" in out
    assert "proposed nothing" in " ".join(out.split())


def test_ctrl_c_keeps_what_is_done(outrider, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Prover) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Prover, "seeded", interrupted)
    code, out, _ = outrider("prove", "--target", str(folder), "--quick", "--max-new-tokens", "4", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "unproven"
    assert [check["name"] for check in document["checks"]] == ["greedy"]
    assert "interrupted" in document["reasons"][0]


def test_relaxed_rules_are_measured(outrider, folder: Path) -> None:
    arguments = (
        "prove", "--target", str(folder), "--drafter", "early_exit:1", "--verifier", "ensemble:0.5", "--quick",
        "--max-new-tokens", "8",
    )  # fmt: skip
    code, out, _ = outrider(*arguments, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["certificate"], document["verdict"], document["checks"]) == (False, "relaxed", [])
    assert 0.05 < document["bias"]["mean_tv"] < 1
    assert document["bias"]["stats"]["mean_tv"] == document["bias"]["mean_tv"]
    code, out, _ = outrider(*arguments)
    assert code == 0
    assert "not certified" in out
    assert "total variation" in out


MISTAKES = {
    "nothing to prove": (("--drafter", "none"), "nothing to prove"),
    "unknown verifier": (("--verifier", "hope"), "hope"),
    "a rule without its probabilities": (("--verifier", "ensemble"), "has none"),
    "a policy that cannot be": (("--policy", "fixed:0"), "1 or more"),
    "trees for a drafter of chains": (("--drafter", "lookup", "--policy", "fixed:2,8"), "makes chains"),
    "missing prompts": (("--prompts", "nowhere.txt"), "nowhere.txt"),
    "no tokens": (("--max-new-tokens", "0"), "max-new-tokens"),
    "no seeds": (("--seeds", "0"), "seeds"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_exit_code_2(outrider, folder: Path, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    code, out, err = outrider("prove", "--target", str(folder), *arguments)
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err


def test_help_teaches_by_example(outrider) -> None:
    code, out, _ = outrider("prove", "--help")
    assert code == 0
    assert "outrider prove --target demo --drafter suffix" in out
    assert "Exit codes" in out
