"""The scripts under examples/, run as they stand on a tiny model; of shell scripts, their commands in order."""

from __future__ import annotations

import io
import json
import runpy
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Any

import families
import learning
import pytest
from test_refusals import WORDS, tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny target with a chat template; its table is padded, for `tune` times passes over ids up to 257."""
    folder = tmp_path_factory.mktemp("target")
    families.make("llama", eos_token_id=5, vocab_size=400).save_pretrained(folder)
    words = tokenizer([*WORDS[:97], "[user]", "[end]", "[model]"])
    words.add_special_tokens({"additional_special_tokens": ["[user]", "[end]", "[model]"]})
    words.chat_template = learning.TEMPLATE
    words.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a Python script; what it prints."""

    def run(name: str, *arguments: str, typed: str = "") -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def commands(name: str, **variables: str) -> list[list[str]]:
    """The commands of a shell script, with these variables."""
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line.startswith("outrider ")]
    return [shlex.split(Template(line).substitute(variables))[1:] for line in lines]


def test_every_example_is_short_and_tested() -> None:
    """Five, each of which somebody would read before copying it."""
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert names == {"faster_chat.py", "edit_code.py", "choose_k.py", "train_eagle3.sh", "deploy_vllm.sh"}
    assert all(len((EXAMPLES / name).read_text().splitlines()) <= 45 for name in names)


def test_faster_chat(script: Any, target: str) -> None:
    """Two turns, each with its figures."""
    out = script("faster_chat.py", "--target", target, "--max-new-tokens", "12", typed="w3 w4\nw5\n")
    assert out.count("You: ") == 3 and out.count("passes of the model") == 2


def test_edit_code(script: Any, target: str, tmp_path: Path) -> None:
    """The file is the prediction."""
    file = tmp_path / "code.txt"
    file.write_text(" ".join(f"w{n}" for n in range(10, 40)))
    out = script("edit_code.py", str(file), "w7 w8", "--target", target, "--max-new-tokens", "16")
    assert "of the predicted tokens were right" in out


def test_choose_k(script: Any, target: str, tmp_path: Path) -> None:
    """Every length from none on, and one of them is named."""
    prompts = tmp_path / "mine.txt"
    prompts.write_text("w3 w4 w5\n\nw7 w8\n")
    out = script("choose_k.py", str(prompts), "--target", target, "--longest", "3", "--max-new-tokens", "16")
    assert [f"k = {k}:" in out for k in range(5)] == [True, True, True, True, False]
    assert "k = 0: 1.00 tokens per pass" in out
    assert out.splitlines()[-1].startswith(("Draft ", "Nothing pays"))


def test_deploy_vllm(outrider: Any, target: str, tmp_path: Path) -> None:
    """What tune wrote is what is served."""
    prompts = tmp_path / "mine.txt"
    prompts.write_text("w3 w4 w5\nw7 w8\n")
    where = {
        "TARGET": target,
        "PROMPTS": str(prompts),
        "DRAFTERS": "lookup",
        "OUT": str(tmp_path / "x.toml"),
        "RUN": "",
    }
    tune, deploy = commands("deploy_vllm.sh", **where)
    code, _, err = outrider(*tune, "--k", "1-2", "--max-new-tokens", "16", "--validate", "0", "--offline")
    assert code == 0, err
    code, out, err = outrider(*deploy, "--json")
    assert code == 0, err
    assert json.loads(out)["steps"][0]["argv"][:3] == ["vllm", "serve", target]


@pytest.mark.slow
def test_train_eagle3(outrider: Any, target: str, tmp_path: Path) -> None:
    """From prompts to a folder for vLLM."""
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"w{n} w{n + 9}"}) + "\n" for n in range(10, 30)))
    where = {"TARGET": target, "PROMPTS": str(prompts), "OUT": str(tmp_path / "runs")}
    data, train, prove, export = commands("train_eagle3.sh", **where)
    few = ["--draft-vocab", "60", "--steps", "4", "--evaluate-every", "2", "--batch-tokens", "64", "--offline"]
    for command in (
        [*data, "--max-new-tokens", "12", "--held-out", "0.3", "--offline"],
        [*train, *few],
        [*prove, "--offline", "--max-new-tokens", "16"],
        [*export, "--offline"],
    ):
        code, _, err = outrider(*command)
        assert code == 0, err
    assert (tmp_path / "runs" / "eagle3-vllm" / "model.safetensors").is_file()
