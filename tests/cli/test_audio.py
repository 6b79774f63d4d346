"""`outrider generate --audio`, and targets with an encoder in other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import alphabets
import numpy as np
import pytest
from listened import RATE, recording, save, write_wave
from seq2seq import distilled, t5

import outrider as library
from outrider.audio import read_audio
from outrider.errors import BadPrompt


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper in a folder."""
    return save(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of three chunks."""
    return write_wave(tmp_path_factory.mktemp("talk") / "talk.wav", recording(2.4))


def test_a_recording(outrider: Any, whisper: Path, talk: Path) -> None:
    """One document with text, segments, language and rounds; the same text for a person."""
    arguments = ["generate", "--target", str(whisper), "--audio", str(talk), "--drafter", "lookup", "--language", "de"]
    code, out, err = outrider(*arguments, "--max-new-tokens", "16", "--json", "--trace")
    assert code == 0, err
    (answer,) = json.loads(out)["outputs"]
    expected = library.load(str(whisper), "none").generate(audio=str(talk), language="de", max_new_tokens=16)
    assert answer["token_ids"] == expected.token_ids
    assert [segment["text"] for segment in answer["segments"]] == [segment.text for segment in expected.segments]
    assert (answer["language"], answer["duration"]) == ("<|de|>", 2.4)
    assert len(answer["rounds"]) == answer["stats"]["rounds"]
    code, out, err = outrider(*arguments, "--max-new-tokens", "16")
    assert code == 0, err
    assert out.strip() == expected.text.strip()
    assert "tokens in" in err


REFUSED = {
    "no audio": (["--language", "en", "--prompt", "x"], "give --audio FILE"),
    "chat": (["--audio", "TALK", "--chat", "x"], "--prompt, which stands before"),
    "stop": (["--audio", "TALK", "--stop", "x"], "leave --stop out"),
    "no file": (["--audio", "/nowhere.wav"], "check the path"),
    "no text": (["--prompt", "x"], "reads audio"),
    "a drafter": (["--audio", "TALK", "--drafter", "recycle"], "'recycle' does not serve encoder-decoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(outrider: Any, whisper: Path, talk: Path, name: str) -> None:
    """One sentence, exit code 2."""
    options, words = REFUSED[name]
    options = [str(talk) if option == "TALK" else option for option in options]
    code, _, err = outrider("generate", "--target", str(whisper), *options)
    assert code == 2
    assert words in " ".join(err.split())


@pytest.mark.parametrize("rate", [RATE, 8000, 44100])
def test_files_are_resampled(tmp_path: Path, rate: int) -> None:
    """Whatever the file's rate, as a path or as bytes."""
    times = np.arange(rate) / rate
    path = write_wave(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 300 * times), rate)
    for source in (path, path.read_bytes()):
        samples = read_audio(source, RATE)
        assert abs(len(samples) - RATE) < 100
        spectrum = np.abs(np.fft.rfft(samples[:RATE]))
        assert abs(int(spectrum.argmax()) * RATE / len(samples[:RATE]) - 300) < 3


def test_what_is_no_recording(tmp_path: Path) -> None:
    """Text, and what is too long."""
    path = tmp_path / "notes.txt"
    path.write_text("not a sound")
    with pytest.raises(BadPrompt, match="cannot be read as audio"):
        read_audio(path, RATE)
    with pytest.raises(BadPrompt, match="longer than 1 seconds"):
        read_audio(write_wave(tmp_path / "long.wav", recording(2.0)), RATE, longest=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A T5 and one that has its encoder."""
    tokenizer = alphabets.byte_level(400)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0, "decoder_start_token_id": 0}
    target = t5(vocab_size=len(tokenizer), **special)
    folders = []
    for name, model in (("target", target), ("draft", distilled(target))):
        folders.append(tmp_path_factory.mktemp(name))
        model.save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return folders[0], folders[1]


def test_bench_of_a_draft_that_shares_the_encoder(outrider: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Acceptance length and speed against plain decoding, as for any other target; the report says what is shared."""
    target, draft = pair
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The cat sat on the mat.\nA dog sat on the log.\n")
    code, out, err = outrider(
        "bench", "--target", str(target), "--prompts", str(prompts), "--drafters", f"model:{draft},lookup",
        "--k", "3", "--max-new-tokens", "12", "--repeats", "1", "--out", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert code == 0, err
    assert "acceptance_length" in out
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert any("encoder states" in note for note in manifest["notes"].values())


@pytest.mark.parametrize("command", [["prove", "--drafter", "lookup"], ["tune"], ["data", "--self", "2", "--out", "x"]])
def test_commands_for_decoder_only_targets(outrider: Any, pair: tuple[Path, Path], command: list[str]) -> None:
    """Refused by name."""
    code, _, err = outrider(*command, "--target", str(pair[0]))
    assert code == 2
    assert "this one has an encoder" in " ".join(err.split())
