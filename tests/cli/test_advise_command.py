"""`outrider advise`: flags, the dialogue, a model's configuration, results, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import tiny
import typer
from alphabets import byte_level
from measured import everything

from outrider import cli
from outrider.commands.advise import Wanted, dialogue, run

COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """A tiny model of two layers, whose weights cannot be read."""
    folder = tiny.save(tmp_path_factory.mktemp("tiny"), demo_tokenizer)
    (folder / "model.safetensors").write_bytes(b"not weights")
    return folder


def test_flags_are_answered_with_a_ranked_list(outrider) -> None:
    code, out, _ = outrider(
        "advise", "--hardware", "cpu", "--text-in-prompt", "--no-train", "--must-be-exact", "--json"
    )
    document = json.loads(out)
    assert code == 0
    able = [one for one in document["recommendations"] if one["ruled_out"] is None]
    assert able[0]["method"] == "suffix"
    assert [one["points"] for one in able] == sorted((one["points"] for one in able), reverse=True)
    assert able[0]["for"] and able[0]["commands"]
    assert document["situation"]["text_in_prompt"] is True
    assert document["target"] is None
    assert any("match" in note for note in document["notes"])


def test_every_command_that_is_advised_exists(outrider) -> None:
    """With every option that stands in it."""
    found = 0
    for answers in (("--can-train",), ("--no-train", "--small-model"), ("--text-in-prompt", "--batch", "4")):
        _, out, _ = outrider("advise", *answers, "--json")
        for one in json.loads(out)["recommendations"]:
            for text in one["commands"]:
                words = shlex.split(text)
                assert words[0] == "outrider"
                options = {name for parameter in COMMANDS[words[1]].params for name in parameter.opts}
                assert {word for word in words if word.startswith("--")} <= options, text
                found += 1
    assert found > 20


def test_memory_comes_from_the_configuration_alone(outrider, folder: Path) -> None:
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load_file(folder / "model.safetensors")
    arguments = ("--target", str(folder), "--draft-model", str(folder), "--memory", "1GiB", "--context", "512")
    code, out, _ = outrider("advise", *arguments, "--dtype", "float32", "--batch", "2", "--json")
    document = json.loads(out)
    assert code == 0
    told = {one["method"]: one for one in document["recommendations"]}
    assert document["target"]["tokens_in_cache"] == 1024
    weights, cache = document["target"]["weight_bytes"], document["target"]["cache_bytes"]
    assert weights == 4 * document["target"]["parameters"]
    assert told["model"]["memory_bytes"] == weights + cache, "the same model twice"
    assert told["model"]["total_bytes"] == 2 * (weights + cache)
    assert told["suffix"]["total_bytes"] == weights + cache
    assert document["situation"]["small_model"] is True, "its tokenizer is the same"
    assert told["mtp"]["ruled_out"]


def test_a_small_model_with_another_tokenizer_is_translated(outrider, folder: Path, tmp_path: Path) -> None:
    other = tiny.save(tmp_path / "other", byte_level())
    code, out, _ = outrider("advise", "--target", str(folder), "--draft-model", str(other), "--json")
    document = json.loads(out)
    told = {one["method"]: one for one in document["recommendations"]}
    assert code == 0
    assert document["situation"]["small_model"] is False
    assert told["model"]["ruled_out"]
    assert told["translated"]["ruled_out"] is None
    assert told["translated"]["drafter"] == f"translated:{other}"
    assert any("another tokenizer" in note for note in document["notes"])


def test_it_is_for_people_too(outrider, folder: Path) -> None:
    code, out, _ = outrider("advise", "--target", str(folder), "--memory", "8MiB", "--may-differ", "--can-train")
    assert code == 0
    for words in ("What to draft with", "Ruled out", "billion parameters", "$ outrider", "--device-map auto"):
        assert words in " ".join(out.split()), words


def answering(*answers: str) -> Iterator[str]:
    """What a person says, one answer after another."""
    yield from answers
    pytest.fail("more was asked than expected")


def test_the_dialogue() -> None:
    said = answering("demo", "16GiB", "cpu", "4", "fast", "latency", "maybe", "n", "y", "", "yes")
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return next(said)

    assert dialogue(ask) == Wanted(
        target="demo", memory="16GiB", hardware="cpu", batch=4, goal="latency", can_train=False, small_model=True,
        text_in_prompt=None, must_be_exact=True,
    )  # fmt: skip
    assert len(asked) == 11, "what is no answer is asked again"


def test_the_dialogue_is_held_where_nothing_was_said() -> None:
    """Without a model nobody asks for memory."""
    said = answering("", "gpu", "", "throughput", "y", "n", "n", "n")
    document = run(Wanted(), ("generate",), show=False, ask=lambda question: next(said))
    assert document["situation"]["goal"] == "throughput"
    assert document["situation"]["batch"] == 1
    assert document["recommendations"]


def results_in(folder: Path, target: str) -> None:
    """A bench's folder, of that target."""
    results, samples = everything()
    changed = results.model_copy(update={"manifest": {**results.manifest, "plan": {"target": target}}})
    (folder / "results.json").write_text(changed.model_dump_json())
    (folder / "samples.jsonl").write_text("\n".join(sample.model_dump_json() for sample in samples))


def test_results_come_before_rules(outrider, folder: Path, tmp_path: Path) -> None:
    results_in(tmp_path, str(folder))
    code, out, _ = outrider(
        "advise", "--target", str(folder), "--results", str(tmp_path), "--must-be-exact", "--no-train", "--json"
    )
    document = json.loads(out)
    assert code == 0
    first = document["recommendations"][0]
    assert first["measured"]["verdict"] == "faster"
    assert first["measured"]["speed"] > 1
    assert "--policy" in first["commands"][0]
    code, out, _ = outrider("advise", "--target", str(folder), "--results", str(tmp_path))
    assert code == 0
    assert "times plain" in " ".join(out.split())


def test_results_of_another_target_are_refused(outrider, folder: Path, tmp_path: Path) -> None:
    results_in(tmp_path, "another")
    code, _, err = outrider("advise", "--target", str(folder), "--results", str(tmp_path))
    assert code == 2
    assert "another" in err


MISTAKES = {
    "nothing said": ((), "Say something"),
    "memory without a model": (("--memory", "16GiB"), "--target"),
    "memory that is none": (("--target", "FOLDER", "--memory", "much"), "16GiB"),
    "results without a model": (("--results", "x"), "--target"),
    "results that are none": (("--target", "FOLDER", "--results", "nowhere"), "nowhere"),
    "other hardware": (("--hardware", "abacus"), "cpu or gpu"),
    "another goal": (("--goal", "fame"), "throughput"),
    "a small model that there is not": (("--draft-model", "x", "--no-small-model"), "leave one out"),
    "unknown model": (("--target", "./nowhere"), "nowhere"),
    "unknown draft model": (("--target", "FOLDER", "--draft-model", "./nowhere"), "nowhere"),
    "a context too long": (("--target", "FOLDER", "--context", "1000000"), "512"),
    "unknown dtype": (("--target", "FOLDER", "--dtype", "int3"), "int3"),
    "unknown rounding": (("--target", "FOLDER", "--quantize", "int3"), "int8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(outrider, folder: Path, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    code, out, err = outrider("advise", *(str(folder) if word == "FOLDER" else word for word in arguments))
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
