"""`outrider data` and `outrider train` from end to end: answers, a drafter, decoding with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import learning
import pytest
from loaded import read_model, read_tokenizer
from test_refusals import WORDS, tokenizer

import outrider as library
from outrider import Sampling, checkpoints
from outrider.train.generation import open_turn

FEW = ["--max-new-tokens", "12", "--dtype", "float32", "--offline", "--json"]
TRAINED = ["--draft-vocab", "60", "--steps", "4", "--evaluate-every", "2", "--batch-tokens", "64", "--dtype", "float32"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("target")
    families.make("llama", eos_token_id=5).save_pretrained(folder)
    words = tokenizer([*WORDS[:97], "[user]", "[end]", "[model]"])
    words.add_special_tokens({"additional_special_tokens": ["[user]", "[end]", "[model]"]})
    words.chat_template = learning.TEMPLATE
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats and texts."""
    file = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    chats = [{"messages": [{"role": "user", "content": f"w{n} w{n + 9}"}]} for n in range(10, 20)]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*chats, {"prompt": "w3 w4"}]))
    return file


def test_from_prompts_to_a_drafter(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """The commands of the documentation, one after the other."""
    data, out = tmp_path / "data", tmp_path / "out"
    where = ["--target", str(target), "--held-out", "0.3", "--samples", "2"]
    code, text, _ = outrider("data", *where, "--prompts", str(prompts), "--out", str(data), *FEW)
    assert code == 0 and json.loads(text)["answers"] == 22
    train = ["train", "eagle3", "--target", str(target), "--data", str(data), *TRAINED, "--offline"]
    code, text, _ = outrider(*train, "--out", str(out), "--dry-run")
    assert code == 0 and "million parameters" in text and not out.exists()
    code, text, _ = outrider(*train, "--out", str(out), "--json")
    assert code == 0 and [point["step"] for point in json.loads(text)["curve"]] == [2, 4]
    generate = ["generate", "--target", str(target), "--chat", "w7", "--dtype", "float32", "--json", "--offline"]
    code, text, _ = outrider(*generate, "--drafter", f"eagle3:{out}", "--policy", "fixed:3")
    assert code == 0
    drafted = json.loads(text)
    code, text, _ = outrider(*generate, "--drafter", "none")
    assert drafted["outputs"][0]["token_ids"] == json.loads(text)["outputs"][0]["token_ids"]
    assert drafted["outputs"][0]["stats"]["drafted"] > 0


def test_answers_are_the_targets_own(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """Each can be had again from its temperature and seed, whatever batch and drafter wrote it."""
    found = []
    for place, options in enumerate((["--batch", "1", "--drafter", "suffix"], ["--batch", "5"])):
        data = tmp_path / str(place)
        where = ["--target", str(target), "--prompts", str(prompts), "--out", str(data), "--seed", "3"]
        assert outrider("data", *where, *options, *FEW)[0] == 0
        found.append(sorted(learning.lines(data), key=lambda line: line["number"]))
    assert found[0] == found[1]
    assert {line["temperature"] for line in found[0]} <= {0.7, 0.8, 0.9, 1.0}
    llm = library.load(str(target), "none", dtype="float32", offline=True)
    assert [llm.tokenizer.decode(line["prompt"]) for line in found[0][:1]] == ["[user] w10 w19 [end] [model]"]
    assert {line["category"] for line in found[0]} == {"questions"}
    ended = [line for line in found[0] if line["answer"][-1] == 5]
    assert all(len(line["answer"]) == 12 for line in found[0] if line not in ended)


def test_a_broken_run_goes_on(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """What is there stays, a broken line goes, and the rest is as it would have been."""
    command = ["data", "--target", str(target), "--prompts", str(prompts), *FEW]
    assert outrider(*command, "--out", str(tmp_path / "whole"))[0] == 0
    assert outrider(*command, "--out", str(tmp_path / "broken"))[0] == 0
    file = tmp_path / "broken" / "answers.jsonl"
    every = file.read_text().splitlines(keepends=True)
    file.write_text("".join(every[:4]) + every[4][:20])
    code, text, _ = outrider(*command, "--out", str(tmp_path / "broken"))
    assert code == 0 and json.loads(text)["written_now"] == 7
    assert file.read_text().startswith("".join(every[:4]))
    ours, theirs = (sorted(map(str, learning.lines(tmp_path / name))) for name in ("whole", "broken"))
    assert ours == theirs
    assert json.loads(outrider(*command, "--out", str(tmp_path / "broken"))[1])["written_now"] == 0


def test_samples_of_a_prompt_stay_together(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """A prompt is held out or not, and then all its answers are; they differ."""
    where = ["--target", str(target), "--prompts", str(prompts), "--out", str(tmp_path / "data"), "--held-out", "0.4"]
    assert outrider("data", *where, "--samples", "3", *FEW)[0] == 0
    held: dict[tuple[int, ...], set[bool]] = {}
    texts: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for line in learning.lines(tmp_path / "data"):
        held.setdefault(tuple(line["prompt"]), set()).add(line["held_out"])
        texts.setdefault(tuple(line["prompt"]), set()).add(tuple(line["answer"]))
    assert all(len(kinds) == 1 for kinds in held.values())
    assert {True, False} == {kind for kinds in held.values() for kind in kinds}
    assert sum(map(len, texts.values())) > 2 * len(texts)


def test_prompts_that_the_target_invents(outrider: Any, target: Path, tmp_path: Path) -> None:
    """Its user's turn is left open: what it writes there is a prompt, in the template, and differs from the others."""
    before, ends = open_turn(library.load(str(target), "none", offline=True).tokenizer)
    assert (before, ends) == ([97], {98})
    command = ["data", "--target", str(target), "--self", "9", "--out", str(tmp_path / "data"), *FEW]
    code, text, _ = outrider(*command)
    assert code == 0
    found = learning.lines(tmp_path / "data")
    assert json.loads(text)["answers"] == len(found) > 4
    assert len({tuple(line["prompt"]) for line in found}) == len(found)
    for line in found:
        assert line["prompt"][0] == 97 and line["prompt"][-2:] == [98, 99] and len(line["prompt"]) > 3
    assert json.loads(outrider(*command)[1])["tokens_now"] == 0 or len(found) < 9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "either --prompts or --self"),
        (["--self", "3", "--prompts", "PROMPTS"], "either --prompts or --self"),
        (["--prompts", "PROMPTS", "--temperatures", "hot"], "give numbers"),
        (["--prompts", "PROMPTS", "--temperatures", "-1"], "from 0 to 10"),
        (["--prompts", "PROMPTS", "--held-out", "1"], "a share from 0 to 1"),
        (["--prompts", "PROMPTS", "--max-new-tokens", "500"], "No prompt leaves room"),
    ],
)
def test_data_that_cannot_be_made(
    outrider: Any, target: Path, prompts: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    """One sentence, exit code 2."""
    given = [str(prompts) if option == "PROMPTS" else option for option in options]
    code, _, error = outrider("data", "--target", str(target), "--out", str(tmp_path / "data"), *given)
    assert code == 2 and says in error and error.count("\n") == 1


def test_a_folder_is_continued_with_the_same(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """Another seed would mix two runs."""
    command = ["data", "--target", str(target), "--prompts", str(prompts), "--out", str(tmp_path / "data"), *FEW]
    assert outrider(*command)[0] == 0
    code, _, error = outrider(*command, "--seed", "1")
    assert code == 2 and "was begun with seed 0 and is now given 1" in error


@pytest.mark.parametrize(
    ("options", "config", "says"),
    [
        (["nosuch"], "", "There is no training method 'nosuch': choose one of"),
        (["eagle3"], "colour = 1", "'colour' is no option of training eagle3"),
        (["eagle3"], "fc_norm = 3", "fc_norm is 3"),
        (["eagle3"], "lr = 'high'", "another kind"),
        (["eagle3"], "lr =", "cannot be read as TOML"),
        (["eagle3", "--lr", "-1"], "", "has to be above 0|have to be above 0"),
        (["eagle3", "--batch-tokens", "0"], "", "1 or more"),
        (["eagle3", "--draft-vocab", "0"], "", "1 or more"),
    ],
)
def test_training_that_cannot_be(
    outrider: Any, target: Path, tmp_path: Path, options: list[str], config: str, says: str
) -> None:
    """One sentence, exit code 2."""
    import re

    template = checkpoints.template_hash(read_tokenizer(target))
    learning.answers(read_model(target), tmp_path / "data", 4, 9, template=template)
    file = tmp_path / "train.toml"
    file.write_text(config)
    where = ["--target", str(target), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    code, _, error = outrider("train", *options, *where, "--config", str(file), "--dtype", "float32")
    assert code == 2 and re.search(says, error) and error.count("\n") == 1, error


def test_a_file_of_options(outrider: Any, target: Path, prompts: Path, tmp_path: Path) -> None:
    """It is followed, and what is given on the command line comes first."""
    data = tmp_path / "data"
    assert (
        outrider(
            "data", "--target", str(target), "--prompts", str(prompts), "--out", str(data), "--held-out", "0.3", *FEW
        )[0]
        == 0
    )
    file = tmp_path / "train.toml"
    file.write_text("norm-output = true\nsteps = 3\nlr = 0.002\ndraft_vocab = 50\n")
    where = ["--target", str(target), "--data", str(data), "--out", str(tmp_path / "out"), "--dtype", "float32"]
    assert outrider("train", "eagle3", *where, "--config", str(file), "--steps", "2", "--batch-tokens", "64")[0] == 0
    manifest = json.loads((tmp_path / "out" / "config.json").read_text())
    assert manifest["shape"]["norm_output"] is True and manifest["draft_vocabulary"] == 50
    assert (manifest["training"]["options"]["lr"], manifest["training"]["options"]["steps"]) == (0.002, 2)
    llm = library.load(str(target), f"eagle3:{tmp_path / 'out'}", policy="fixed:2", dtype="float32", offline=True)
    prompt, sampling = [{"role": "user", "content": "w9"}], Sampling(seed=1)
    expected = llm.using("none", policy="fixed:1").generate(prompt, sampling=sampling, max_new_tokens=8)
    assert llm.generate(prompt, sampling=sampling, max_new_tokens=8).token_ids == expected.token_ids
