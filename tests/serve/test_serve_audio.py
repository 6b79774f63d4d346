"""`/v1/audio`: OpenAI's own client, its answers and forms, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from listened import recording, tiny_whisper, whisper_processor, write_wave

import outrider
from outrider import Sampling
from outrider.outputs import Segment, Transcript
from outrider.serve.audio import subtitles
from outrider.serve.server import Server, serving

NAME = "tiny-whisper"


@pytest.fixture(scope="module")
def llm() -> outrider.Outrider:
    """What is served."""
    return outrider.load(tiny_whisper(), "lookup", tokenizer=whisper_processor(), policy="fixed:4")


@pytest.fixture(scope="module")
def server(llm: outrider.Outrider) -> Iterator[Server]:
    """One target."""
    with serving([llm], NAME) as running:
        yield running


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three chunks."""
    return write_wave(tmp_path_factory.mktemp("talk") / "talk.wav", recording(2.4))


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture(scope="module")
def expected(llm: outrider.Outrider, talk: Path) -> Transcript:
    """What the library hears."""
    return llm.generate(audio=str(talk), language="de")


def test_a_transcription(client: openai.OpenAI, talk: Path, expected: Transcript) -> None:
    """JSON, and every other form."""
    with talk.open("rb") as file:
        answer = client.audio.transcriptions.create(model=NAME, file=file, language="de")
    assert answer.text == expected.text.strip()
    with talk.open("rb") as file:
        told = client.audio.transcriptions.create(
            model=NAME, file=file, language="de", response_format="verbose_json", timestamp_granularities=["segment"]
        )
    assert (told.language, told.duration) == ("german", 2.4)
    assert told.segments is not None
    assert [(s.start, s.end, s.text) for s in told.segments] == [(s.start, s.end, s.text) for s in expected.segments]
    for form in ("srt", "vtt", "text"):
        with talk.open("rb") as file:
            text: Any = client.audio.transcriptions.create(model=NAME, file=file, language="de", response_format=form)
        wanted = expected.text.strip() if form == "text" else subtitles(list(expected.segments), vtt=form == "vtt")
        assert str(text).strip() == wanted.strip()


def test_sampled_with_a_seed(client: openai.OpenAI, llm: outrider.Outrider, talk: Path) -> None:
    """The very text of the library."""
    wanted = llm.generate(audio=str(talk), language="en", sampling=Sampling(temperature=0.7, seed=9))
    with talk.open("rb") as file:
        answer = client.audio.transcriptions.create(
            model=NAME, file=file, language="en", temperature=0.7, extra_body={"seed": 9}
        )
    assert answer.text == wanted.text.strip()


def test_a_stream(client: openai.OpenAI, talk: Path, expected: Transcript) -> None:
    """Pieces, then the whole."""
    with talk.open("rb") as file:
        events = list(client.audio.transcriptions.create(model=NAME, file=file, language="de", stream=True))
    pieces = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(pieces) == expected.text
    assert len(pieces) > 1
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", expected.text)


def test_a_translation_and_a_prediction(client: openai.OpenAI, llm: outrider.Outrider, talk: Path) -> None:
    """The other task; a first pass as prediction changes nothing but speed."""
    wanted = llm.generate(audio=str(talk), task="translate")
    with talk.open("rb") as file, pytest.warns(DeprecationWarning):  # OpenAI's client would have other models used
        answer = client.audio.translations.create(model=NAME, file=file)
    assert answer.text == wanted.text.strip()
    with talk.open("rb") as file:
        told = client.audio.transcriptions.create(
            model=NAME, file=file, language="de", prompt="a b", extra_body={"prediction": "ba be bi"}
        )
    assert told.text == llm.generate("a b", audio=str(talk), language="de").text.strip()


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "another model": ({"model": "other"}, 404, "model"),
    "no such language": ({"language": "klingon"}, 400, "language"),
    "words": ({"timestamp_granularities[]": "word"}, 400, "timestamp_granularities.0"),
    "unknown": ({"chunking_strategy": "auto"}, 400, "chunking_strategy"),
    "a form": ({"response_format": "xml"}, 400, "response_format"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(server: Server, talk: Path, name: str) -> None:
    """In OpenAI's shape, with the field."""
    fields, status, param = REFUSED[name]
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", data={"model": NAME, **fields}, files={"file": talk.read_bytes()}
    )
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_what_is_no_recording(server: Server) -> None:
    """No file, no sound, no form, too much, and forms of other sites."""
    address = f"{server.url}/v1/audio/transcriptions"
    missing = httpx.post(address, data={"model": NAME}, files={"other": ("", b"")})
    assert missing.status_code == 400
    silent = httpx.post(address, data={"model": NAME}, files={"file": b"text"})
    assert (silent.status_code, silent.json()["error"]["param"]) == (400, "file")
    assert httpx.post(address, json={"model": NAME}).status_code == 415
    large = httpx.post(address, content=bytes(26 << 20), headers={"content-type": "multipart/form-data; boundary=b"})
    assert large.status_code == 413
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert httpx.post(address, data={"model": NAME}, files={"file": b"x"}, headers=headers).status_code == 403


def test_text_endpoints_say_what_the_target_reads(server: Server) -> None:
    """A Whisper continues no text."""
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": NAME, "prompt": "a b", "max_tokens": 4})
    assert answer.status_code == 400
    assert "reads audio" in answer.json()["error"]["message"]


def test_subtitles() -> None:
    """Clocks with three places."""
    segments = [Segment(0.0, 1.5, " One.", ()), Segment(3661.25, 3662.0, " Two.", ())]
    assert subtitles(segments, vtt=True) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n01:01:01.250 --> 01:01:02.000\nTwo.\n"
    )
    assert subtitles(segments, vtt=False).startswith("1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n01:01:01,250")
