"""Whisper, tiny and random: what Transformers' `generate` writes of a recording, with every drafter, chunk by chunk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from listened import FIRST_STAMP, LANGUAGES, distilled, features_of, recording, tiny_whisper, whisper_processor
from loaded import drafting_for_itself

import outrider
from outrider import Sampling
from outrider.drafters import Drafter
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.encoder_decoder import EncoderDecoderTarget
from outrider.errors import BadOption, BadPrompt
from outrider.speech import Opening, opening, settled, spans

NEW = 24
SHORT, LONG = recording(0.8), recording(3.3, seed=2)


@pytest.fixture(scope="module")
def model() -> Any:
    """The model, which nobody changes."""
    return tiny_whisper()


@pytest.fixture(scope="module")
def plain(model: Any) -> outrider.Outrider:
    """Around it, without a drafter."""
    return outrider.load(model, "none", policy="fixed:8", tokenizer=whisper_processor())


def transformers_whisper(model: Any, sound: Any, **options: Any) -> list[int]:
    """What Transformers writes, greedily."""
    out = model.generate(features_of(sound)[None], max_new_tokens=NEW, do_sample=False, num_beams=1, **options)
    return [int(token) for token in out[0]]


WAYS: dict[str, dict[str, Any]] = {
    "a language": {"language": "de"},
    "a name": {"language": "german", "task": "translate"},
    "detected": {},
    "detected for a task": {"task": "translate"},
    "time stamps": {"language": "<|en|>", "timestamps": True},
    "time stamps, detected": {"timestamps": True},
}


@pytest.mark.parametrize("name", WAYS)
def test_greedy_equals_transformers(model: Any, plain: outrider.Outrider, name: str) -> None:
    """Forced tokens, suppressed tokens and time stamps, plainly and with whole blocks accepted."""
    way = WAYS[name]
    theirs = {"return_timestamps" if key == "timestamps" else key: value for key, value in way.items()}
    expected = transformers_whisper(model, SHORT, **theirs)
    assert len(set(expected)) > 4
    itself = plain.using()
    itself.drafter = drafting_for_itself(itself.target)
    for llm in (plain, plain.using("lookup"), itself):
        output = llm.generate(audio=SHORT, max_new_tokens=NEW, **way)
        assert output.token_ids == expected, llm.drafter.spec
        assert output.language in LANGUAGES


@pytest.mark.parametrize("language", ["fr", None])
def test_a_long_recording_is_heard_in_chunks(model: Any, plain: outrider.Outrider, language: str | None) -> None:
    """Each chunk begins at the last time stamp of the one before, as Transformers has it; segments carry the times."""
    out = model.generate(
        features_of(LONG)[None],
        max_new_tokens=NEW,
        do_sample=False,
        num_beams=1,
        language=language,
        return_timestamps=True,
        return_segments=True,
    )
    expected = [int(token) for token in out["sequences"][0]]
    itself = plain.using()
    itself.drafter = drafting_for_itself(itself.target)
    for llm in (plain, itself):
        output = llm.generate(audio=LONG, language=language, max_new_tokens=NEW)
        assert output.token_ids == expected
        assert [s.start for s in output.segments] == pytest.approx([float(s["start"]) for s in out["segments"][0]])
        assert [s.end for s in output.segments] == pytest.approx([float(s["end"]) for s in out["segments"][0]])
        assert output.duration == pytest.approx(3.3)
        assert [token for segment in output.segments for token in segment.token_ids] == expected
    assert len(output.segments) > 3


def test_recordings_of_different_lengths_together(plain: outrider.Outrider) -> None:
    """Each is what it is alone; a detected language is its own."""
    sounds = [SHORT, LONG, recording(1.7, seed=5)]
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=3)):
        alone = [plain.generate(audio=sound, sampling=sampling, max_new_tokens=NEW) for sound in sounds]
        together = plain.using("lookup").generate(audio=list(sounds), sampling=sampling, max_new_tokens=NEW)
        assert [output.token_ids for output in together] == [output.token_ids for output in alone]
        assert [output.language for output in together] == [output.language for output in alone]
        assert [round_.request for output in together for round_ in output.rounds[:1]] == [0, 1, 2]


def test_every_drafter_writes_the_same_with_the_same_seed(model: Any, plain: outrider.Outrider) -> None:
    """Sampled, with time stamps, over several chunks."""
    options: dict[str, Any] = {"sampling": Sampling(temperature=0.9, seed=11), "max_new_tokens": NEW, "language": "en"}
    expected = plain.generate(audio=LONG, **options)
    target = plain.target
    own = EncoderDecoderTarget(tiny_whisper(seed=8, decoder_layers=1))
    makers: dict[str, Callable[[], Drafter]] = {
        "lookup": Lookup,
        "itself": lambda: drafting_for_itself(target),
        "distilled": lambda: ModelDrafter(EncoderDecoderTarget(distilled(model)), target.vocabulary, encoder=target),
        "an encoder of its own": lambda: ModelDrafter(own, target.vocabulary, encoder=target),
    }
    for name, make in makers.items():
        llm = plain.using(policy="fixed:4")
        llm.drafter = make()
        output = llm.generate(audio=LONG, **options)
        assert (output.token_ids, output.segments) == (expected.token_ids, expected.segments), name
    first = [token for token in expected.token_ids if token < FIRST_STAMP]
    reference = plain.using("reference").generate(audio=LONG, prediction=first, **options)
    assert reference.token_ids == expected.token_ids
    assert reference.stats.accepted > 0


def test_a_stream_tells_what_stays(plain: outrider.Outrider) -> None:
    """The pieces make up the text, whole segments at a time."""
    unstamped = Sampling(logit_bias=dict.fromkeys(range(FIRST_STAMP, plain.target.vocabulary), -100.0))
    ways: list[tuple[Any, dict[str, Any]]] = [
        (SHORT, {"language": "de", "sampling": unstamped}),
        (LONG, {}),
        (SHORT, {"timestamps": True}),
    ]
    for sound, way in ways:
        stream = plain.using("lookup").stream(audio=sound, max_new_tokens=NEW, **way)
        pieces = [piece.text for piece in stream]
        assert "".join(pieces) == stream.output.text
        assert stream.output.finish_reason in ("stop", "length")
        assert stream.output.text
    stream = plain.stream(audio=LONG, max_new_tokens=NEW)
    next(stream)
    stream.stop()
    assert stream.output.finish_reason is None


def test_a_context_stands_before_every_chunk(model: Any, plain: outrider.Outrider) -> None:
    """As Transformers' prompt ids."""
    tokenizer = plain.tokenizer
    prompt = torch.tensor(tokenizer.get_prompt_ids("a b c"))
    expected = transformers_whisper(model, SHORT, language="en", prompt_ids=prompt)
    output = plain.generate("a b c", audio=SHORT, language="en", max_new_tokens=NEW)
    assert output.token_ids == expected
    assert output.prompt_ids[: len(prompt)] == tuple(prompt.tolist())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "language": ({"audio": SHORT, "language": "klingon"}, BadOption, "choose one of de, en, fr"),
    "task": ({"audio": SHORT, "task": "summarise"}, BadOption, "choose one of transcribe, translate"),
    "a long one without stamps": ({"audio": LONG, "timestamps": False}, BadOption, "longer than 1 seconds"),
    "stop": ({"audio": SHORT, "stop": "x"}, BadOption, "leave stop out"),
    "nothing": ({"audio": np.zeros(0, np.float32)}, BadPrompt, "one row of samples"),
    "stereo": ({"audio": np.zeros((2, 9), np.float32)}, BadPrompt, "one row of samples"),
    "no file": ({"audio": "/nowhere.wav"}, BadPrompt, "no file"),
    "text": ({"prompt": [5, 6]}, BadPrompt, "reads audio"),
    "ids before it": ({"prompt": [5, 6], "audio": SHORT}, BadPrompt, "give a string"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(plain: outrider.Outrider, name: str) -> None:
    """In one sentence, before any work."""
    options, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words) as caught:
        plain.generate(**options)
    assert str(caught.value).endswith(".")


def test_audio_needs_the_processor(model: Any) -> None:
    """A tokenizer alone hears nothing."""
    with pytest.raises(BadOption, match="feature extractor"):
        outrider.load(model, "none", tokenizer=whisper_processor().tokenizer).generate(audio=SHORT)


def test_the_language_that_a_model_of_one_language_has() -> None:
    """None: asking for one is refused; what the old configuration forces stands before the answer."""
    config = copy.deepcopy(tiny_whisper().generation_config)
    config.is_multilingual = False
    with pytest.raises(BadOption, match="one language"):
        opening(config, None, "en", None, False)
    del config.lang_to_id
    config.forced_decoder_ids = [[1, config.no_timestamps_token_id]]
    assert opening(config, None, None, None, False) == Opening((101, config.no_timestamps_token_id))
    assert opening(config, None, None, None, True) == Opening((101,))


S = FIRST_STAMP
SPANS: list[tuple[list[int], list[tuple[float, float, list[int]]], int]] = [
    ([5, 6], [(0, 1.0, [5, 6])], 100),
    ([S, 5, 6], [(0, 1.0, [S, 5, 6])], 100),
    ([S, 5, S + 20], [(0, 0.4, [S, 5, S + 20])], 100),
    ([S, 5, S + 20, S + 20, 6], [(0, 0.4, [S, 5, S + 20, S + 20])], 40),
    ([S, 5, S + 20, S + 22, 6, S + 30], [(0, 0.4, [S, 5, S + 20]), (0.44, 0.6, [S + 22, 6, S + 30])], 100),
    ([], [(0, 1.0, [])], 100),
]


@pytest.mark.parametrize(("ids", "expected", "frames"), SPANS)
def test_spans(ids: list[int], expected: list[tuple[float, float, list[int]]], frames: int) -> None:
    """Where a chunk is cut, and how much of it is done."""
    found, done = spans(ids, S, 100)
    assert [(span.start, span.end) for span in found] == [pytest.approx(times[:2]) for times in expected]
    assert [list(span.ids) for span in found] == [part for *_, part in expected]
    assert done == frames


def test_settled() -> None:
    """Only what stands before the last pair of stamps is certain while a chunk is under way."""
    assert [settled(ids, S) for ids in ([], [S, 5], [S, 5, S + 1], [S, 5, S + 1, S + 1], [S, 5, S + 1, S + 1, 6])] == [
        0,
        0,
        0,
        3,
        3,
    ]
