"""A tiny random Whisper with a tokenizer and a processor of its own, and recordings of noise."""

from __future__ import annotations

import copy
import wave
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

RATE = 16000
EOS, START, FIRST_LANGUAGE, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_STAMPS = (
    100,
    101,
    102,
    105,
    106,
    107,
    108,
    109,
)
FIRST_STAMP = 110
LANGUAGES = ("<|en|>", "<|de|>", "<|fr|>")
_STAMPS = 51  # one for each fiftieth of a second; a chunk is one second
VOCABULARY = FIRST_STAMP + _STAMPS


def recording(seconds: float, seed: int = 1) -> Any:
    """A chirp with noise, so that no two moments are alike."""
    chance = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 200 + 150 * np.sin(5 * time + seed)
    return (0.5 * np.sin(2 * np.pi * pitch * time) + 0.2 * chance.standard_normal(len(time))).astype(np.float32)


def write_wave(path: Path, samples: Any, rate: int = RATE) -> Path:
    """A recording as a WAV file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def tiny_whisper(seed: int = 1, **options: Any) -> Any:
    """The model; its chunks are one second long."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": 48,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 16,
        "max_source_positions": 50,
        "max_target_positions": 64,
        "pad_token_id": EOS,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": START,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        "tie_word_embeddings": False,
        **options,
    }
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**settings)).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    about = {
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "decoder_start_token_id": START,
        "is_multilingual": True,
        "lang_to_id": {name: FIRST_LANGUAGE + place for place, name in enumerate(LANGUAGES)},
        "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        "no_timestamps_token_id": NO_STAMPS,
        "prev_sot_token_id": PREVIOUS,
        "suppress_tokens": [3, 4, START, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH],
        "begin_suppress_tokens": [7, EOS],
        "max_initial_timestamp_index": 20,
        "return_timestamps": False,
    }
    model.generation_config = transformers.GenerationConfig(**about)
    return model


def distilled(model: Any) -> Any:
    """The same encoder, and a decoder that has drifted a little."""
    small = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(9)
    for name, parameter in small.named_parameters():
        if "decoder.layers" in name and parameter.dim() > 1:
            parameter.data += 0.004 * torch.randn(parameter.shape, generator=generator)
    return small


def _words() -> list[str]:
    """Token 0 is a space; then letters and syllables with spaces of their own."""
    letters = [chr(ord("a") + place) for place in range(26)]
    words = ["Ġ", *letters, *(f"Ġ{a}" for a in letters), *(f"{a}{b}" for a in "bcdf" for b in "aeiou")]
    return [*words, *(f"x{place}" for place in range(EOS - len(words)))][:EOS]


@lru_cache
def whisper_processor() -> Any:
    """Tokenizer and feature extractor."""
    vocabulary = {word: place for place, word in enumerate(_words())}
    special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *LANGUAGES,
        "<|translate|>",
        "<|transcribe|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ]
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([f"<|{place * 0.02:.2f}|>" for place in range(_STAMPS)])
    assert tokenizer.convert_tokens_to_ids("<|notimestamps|>") == NO_STAMPS
    assert tokenizer.convert_tokens_to_ids("<|0.00|>") == FIRST_STAMP
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    return transformers.WhisperProcessor(extractor, tokenizer)


def features_of(sound: Any) -> Any:
    """[bins, frames], as one gives them to Transformers."""
    extractor = whisper_processor().feature_extractor
    options = {"truncation": False, "padding": "longest"} if len(sound) > RATE else {}
    return extractor(sound, sampling_rate=RATE, return_tensors="pt", **options)["input_features"][0]


def save(folder: Path, model: Any | None = None) -> Path:
    """Model and processor in a folder, for commands that take a model by name."""
    (model or copy.deepcopy(tiny_whisper())).save_pretrained(folder)
    whisper_processor().save_pretrained(folder)
    return folder
