"""OpenAI's Whisper base on speech that espeak-ng makes: what Transformers writes, with every kind of draft."""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider
from outrider.audio import read_audio
from outrider.drafters.model import ModelDrafter
from outrider.encoder_decoder import EncoderDecoderTarget
from outrider.quiet import quiet

pytestmark = pytest.mark.slow

RATE = 16000
SHORT = "The quick brown fox jumps over the lazy dog. It was a bright cold day in April."
LONG = " ".join(
    f"This is sentence number {number}. {SHORT}" for number in ("one", "two", "three", "four", "five", "six", "seven")
)


@pytest.fixture(scope="module")
def folder(models_folder: Path) -> Path:
    """See bench/get_whisper.py."""
    found = models_folder / "whisper-base-float32"
    if not found.is_dir():
        pytest.fail(f"{found} is missing: python bench/get_whisper.py WHEELS {found}")
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """As Transformers has it."""
    from transformers import WhisperForConditionalGeneration

    with quiet():
        return WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def spoken(text: str, folder: Path) -> Any:
    """Samples of a text."""
    if shutil.which("espeak-ng") is None:
        pytest.fail("The recordings are made by espeak-ng: apt-get install espeak-ng.")
    path = folder / "spoken.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(path), text], check=True)
    return read_audio(path, RATE)


def transformers_ids(model: Any, llm: outrider.Outrider, samples: Any, **options: Any) -> list[int]:
    """What Transformers writes."""
    features = llm.ear.features(samples)[None]
    out = model.generate(features, do_sample=False, num_beams=1, **options)
    return [int(token) for token in out[0]]


@pytest.mark.parametrize("way", ["a language", "detected", "long"])
def test_greedy_equals_transformers(folder: Path, model: Any, tmp_path: Path, way: str) -> None:
    """Words that were said, the very ids, and drafts that are accepted."""
    samples = spoken(LONG if way == "long" else SHORT, tmp_path)
    plain = outrider.load(str(folder), "none", dtype="float32", policy="fixed:6")
    options: dict[str, Any] = {} if way == "detected" else {"language": "en"}
    more = {"return_timestamps": True} if way == "long" else {}
    expected = transformers_ids(model, plain, samples, **options, **more)
    output = plain.generate(audio=samples, **options)
    assert output.token_ids == expected
    assert output.language == "<|en|>"
    assert "brown fox" in output.text.lower()
    assert (len(output.segments) > 3) == (way == "long")
    again = plain.using("reference").generate(audio=samples, prediction=output.text, **options)
    assert again.token_ids == expected
    assert again.stats.acceptance_length > (2 if way == "long" else 3)
    small = copy.deepcopy(model)
    small.model.decoder.layers = small.model.decoder.layers[:5]
    small.config.decoder_layers = 5
    drafting = plain.using("lookup")
    drafting.drafter = ModelDrafter(
        EncoderDecoderTarget(small, own=True), plain.target.vocabulary, encoder=plain.target
    )
    assert drafting.drafter.note
    shared = drafting.generate(audio=samples, **options)
    assert shared.token_ids == expected
    assert shared.stats.accepted > 0
