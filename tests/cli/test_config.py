"""`--config outrider.toml`: its values are defaults, what is given beside it wins, and what it may not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

import outrider as library
from outrider import cli

SHORT = ("--prompt", "1, 2, 3, 4, 5,", "--max-new-tokens", "4", "--json")
FILE = """
target = "{folder}"
drafter = "lookup:3"
policy = "fixed:3"
quantize = "int8"
batch = 2

[measured]
anything = [1, 2.5]
"""


@pytest.fixture
def folder(small: str) -> str:
    """A small random model."""
    return small


@pytest.fixture
def file(tmp_path: Path, folder: str) -> Path:
    """A configuration."""
    path = tmp_path / "outrider.toml"
    path.write_text(FILE.format(folder=folder))
    return path


def configured(outrider, *arguments: str) -> dict[str, str]:
    """What is in force."""
    code, out, err = outrider("generate", *SHORT, *arguments)
    assert code == 0, err
    return json.loads(out)["configuration"]


def test_its_values_are_defaults(outrider, file: Path, folder: str) -> None:
    found = configured(outrider, "--config", str(file))
    assert (found["drafter"], found["policy"], found["quantize"]) == ("lookup:3", "fixed:3", "int8")
    without = configured(outrider, "--target", folder)
    assert (without["policy"], without["quantize"]) == ("goodput", "none")


@pytest.mark.parametrize("last", [True, False], ids=["before", "after"])
def test_what_is_given_beside_it_wins(outrider, file: Path, last: bool) -> None:
    """Wherever it stands, even where it says what would be the default without the file."""
    given, named = ("--policy", "goodput"), ("--config", str(file))
    found = configured(outrider, *(given + named if last else named + given))
    assert (found["drafter"], found["policy"], found["quantize"]) == ("lookup:3", "goodput", "int8")


def test_another_drafter_leaves_the_policy_behind(outrider, file: Path) -> None:
    """It was chosen for the file's drafter; with "none" it would even be refused."""
    for drafter in ("none", "suffix:global=0"):
        found = configured(outrider, "--config", str(file), "--drafter", drafter)
        assert (found["policy"], found["quantize"]) == ("goodput", "int8")
    found = configured(outrider, "--policy", "fixed:2", "--drafter", "suffix", "--config", str(file))
    assert found["policy"] == "fixed:2"


def test_switches(outrider, tmp_path: Path, folder: str) -> None:
    path = tmp_path / "modules.toml"
    path.write_text(f'target = "{folder}"\nfast = false\ndtype = "float32"\n')
    assert configured(outrider, "--config", str(path))["build"] == "modules"
    assert configured(outrider, "--config", str(path), "--fast")["build"] == "lean"


def test_every_command_that_loads_a_model_takes_it() -> None:
    """Those that have a target, but for the demonstration, which has its own."""
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    options = {name: {option.name for option in command.params} for name, command in commands.items()}
    assert {"generate", "costs"} <= {name for name, found in options.items() if "target" in found}
    assert all("config" in found for found in options.values() if "target" in found)


def test_a_command_takes_what_concerns_it(outrider, file: Path) -> None:
    """A value for a list is a list of one, and what a command has no option for is not asked for."""
    code, out, _ = outrider(
        "costs", "--config", str(file), "--widths", "1", "--contexts", "16", "--repeats", "1", "--json"
    )
    document = json.loads(out)
    assert code == 0
    assert document["configuration"]["quantize"] == "int8"
    assert [cost["batch"] for cost in document["passes"]] == [2]


def test_lists_get_a_list_of_one(outrider, file: Path, tmp_path: Path) -> None:
    """A bench measures what the file describes; draft lengths that are given take the place of its policy."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("1, 2, 3,\n4, 5, 6,")
    short = ("--prompts", str(prompts), "--max-new-tokens", "3", "--repeats", "1", "--json")
    for given, policies in (((), ["fixed:3"]), (("--k", "1,2"), ["fixed:1", "fixed:2"])):
        code, out, err = outrider("bench", "--config", str(file), *given, *short)
        assert code == 0, err
        cases = json.loads(out)["cases"]
        assert [case["policy"] for case in cases if case["drafter"] == "lookup:3"] == policies
        assert {(case["batch"], case["quantize"]) for case in cases} == {(2, "int8")}


def test_in_python(file: Path, folder: str) -> None:
    """`batch` is no argument of `load`."""
    assert library.load_config(file) == {
        "target": folder, "drafter": "lookup:3", "policy": "fixed:3", "quantize": "int8",
    }  # fmt: skip
    assert library.load(**library.load_config(str(file))).configuration["quantize"] == "int8"


MISTAKES = {
    "unknown key": ('drafer = "suffix"', ("'drafer'", "drafter")),
    "unknown table": ("[drafter]\nname = 1", ("'drafter'", "string")),
    "wrong kind": ('batch = "4"', ("'batch'", "'4'", "integer")),
    "out of range": ("batch = 0", ("'batch'", "greater than or equal to 1")),
    "no TOML": ("drafter = ,", ("no TOML", "line 1")),
    "remote code": ("trust_remote_code = true", ("--trust-remote-code",)),
    "unknown drafter": ('drafter = "hope"', ("'hope'",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_key_and_the_file(outrider, tmp_path: Path, mistake: str) -> None:
    text, named = MISTAKES[mistake]
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    code, out, err = outrider("generate", *SHORT, "--config", str(path))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    for word in (*named, *(["wrong.toml"] if mistake != "unknown drafter" else [])):
        assert word in err


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b" " * ((1 << 20) + 1)], ids=["missing", "bytes", "huge"])
def test_a_file_that_is_none(outrider, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "nowhere.toml"
    if content is not None:
        path.write_bytes(content)
    code, _, err = outrider("generate", *SHORT, "--config", str(path))
    assert code == 2
    assert "nowhere.toml" in err and "Traceback" not in err
