"""`/v1/audio/transcriptions` and `/v1/audio/translations`: OpenAI's forms and answers. Knows no models.

A recording is heard chunk by chunk, each a job of the worker's behind the one before. Everything that is about text or
sound happens in the thread in which prompts are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..errors import UsageError
from ..listening import Ear, Recording, Wish
from ..noise import fresh_seed
from ..outputs import Segment
from ..row import Request as RowRequest
from ..sampling import Sampling
from ..types import Round
from .choices import Choice
from .faults import Fault, broken, invalid, leaving
from .prepare import about, seats
from .schema import Body, ErrorDocument, Text
from .service import Model, Service
from .worker import Closed, Failed, Full, Job, Wrote

PATH = "/v1/audio/"
GONE = 499  # nginx's word for a client that went away; nobody reads it but the log
_PATIENCE = 0.1  # seconds after which the next chunk asks again for a place in the queue
_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorDocument, "description": "See `message`."}}
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]


class TranslationRequest(Body):
    """The form of `/v1/audio/translations`, but for the file. Its values are text, so they are read leniently."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)

    model: str
    prompt: Text = ""
    response_format: Format = "json"
    temperature: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)


class TranscriptionRequest(TranslationRequest):
    """The form of `/v1/audio/transcriptions`, but for the file.

    Attributes:
        prediction: the transcript that the caller expects, such as that of an earlier pass; it influences speed only.
    """

    language: str | None = Field(default=None, max_length=64)
    timestamp_granularities: list[Literal["segment"]] = Field(default_factory=list)
    stream: bool = False
    prediction: Text | None = Field(default=None, min_length=1)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A recording, ready to be heard."""

    body: TranslationRequest
    recording: Recording
    choice: Choice
    task: str


def add_audio(app: FastAPI, service: Service) -> None:
    """The two endpoints."""

    @app.post(f"{PATH}transcriptions", responses=_ERRORS, response_model=None)
    async def transcriptions(request: Request) -> Response:
        """Write down what is said in a recording (multipart form: file, model, language, ...)."""
        return await _answer(service, request, TranscriptionRequest, "transcribe")

    @app.post(f"{PATH}translations", responses=_ERRORS, response_model=None)
    async def translations(request: Request) -> Response:
        """Write down in English what is said in a recording (multipart form: file, model, ...)."""
        return await _answer(service, request, TranslationRequest, "translate")


async def _answer(service: Service, request: Request, kind: type[TranslationRequest], task: str) -> Response:
    model = service.model
    body, sound = await _form(request, kind)
    if body.model != service.name:
        raise Fault(
            404, f"There is no model of that name here: it is {service.name!r}.", param="model", code="model_not_found"
        )
    asked = await _apart(service, _asked, model, body, sound, task)
    hearing = _hear(service, model, asked, request.state.ident)
    if getattr(body, "stream", False):
        return StreamingResponse(_events(asked, hearing, request.state.ident), media_type="text/event-stream")
    watching = asyncio.create_task(_gone(request))
    try:
        while True:
            piece = asyncio.ensure_future(anext(hearing, None))
            done, _ = await asyncio.wait({piece, watching}, return_when=asyncio.FIRST_COMPLETED)
            if piece not in done:
                piece.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await piece
                return Response(status_code=GONE)
            if piece.result() is None:
                return _whole(asked)
    finally:
        watching.cancel()
        await hearing.aclose()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _form(request: Request, kind: type[TranslationRequest]) -> tuple[TranslationRequest, bytes]:
    """The fields of a form, and the content of its file.

    Raises:
        Fault: it is no form, or does not fit.
    """
    async with request.form(max_files=1, max_fields=16) as form:
        fields: dict[str, Any] = {}
        sound: bytes | None = None
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "file":
                    raise Fault(400, f"The field '{name[:100]}' cannot be a file.", param="file", code="invalid_value")
                sound = await value.read()
            elif name.endswith("[]"):
                fields.setdefault(name.removesuffix("[]"), []).append(value)
            else:
                fields[name] = value
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise invalid([dict(found) for found in error.errors()]) from None
    if not sound:
        raise Fault(400, "The field 'file' is missing: send the recording.", param="file", code="missing_field")
    return body, sound


async def _apart(service: Service, function: Callable[..., Any], *arguments: Any) -> Any:
    """In the thread in which prompts are read."""
    return await asyncio.get_running_loop().run_in_executor(service.encoding, function, *arguments)


def _asked(model: Model, body: TranslationRequest, sound: bytes, task: str) -> _Asked:
    """What a form comes to.

    Raises:
        Fault: it cannot be served.
    """
    with about("model"):
        ear: Ear = model.llm.ear.speaking(model.tokenizer)
    expected = getattr(body, "prediction", None)
    with about("prediction"):
        choice = model.choices.pick(None, None, predicted=expected is not None)
        ids = ear.prediction(expected) if expected is not None else ()
        choice.drafter.check_prediction(ids)
    with about("prompt"):
        context = ear.context(body.prompt) if body.prompt else ()
    stamped = body.response_format in ("srt", "vtt", "verbose_json")
    language = getattr(body, "language", None)
    wish = Wish(
        Sampling(temperature=body.temperature),
        fresh_seed() if body.seed is None else body.seed,
        language,
        # A model of one language knows no tasks, and transcribing is what it does.
        task if task != "transcribe" or language is not None else None,
        stamped or None,
        context,
        ids,
    )
    with about("file"):
        samples = ear.samples(sound)
    with about("language" if language is not None else "file"):
        recording = Recording(ear, samples, wish)
    seats(model, choice, [recording.next_request()])
    return _Asked(body, recording, choice, task)


async def _hear(service: Service, model: Model, asked: _Asked, ident: str) -> AsyncGenerator[tuple[str, Round], None]:
    """Hear a recording to its end: what becomes certain of its text, round by round."""
    while not asked.recording.done:
        request = await _apart(service, asked.recording.next_request)
        written: list[int] = []
        async for event in _chunk(service, model, asked, request, ident):
            written += event.round.tokens
            if event.finish is not None:
                await _apart(service, asked.recording.take, written)
                written = []
            yield await _apart(service, asked.recording.told, written, event.text), event.round


async def _chunk(
    service: Service, model: Model, asked: _Asked, request: RowRequest, ident: str
) -> AsyncGenerator[Wrote, None]:
    """One chunk through the worker."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Wrote | Failed]()
    (slots,), per_slot = seats(model, asked.choice, [request])

    def listener(event: Wrote | Failed) -> object:
        return loop.call_soon_threadsafe(events.put_nowait, event)

    job = Job(ident, request, asked.choice.drafter, asked.choice.make_policy, listener, slots, per_slot)
    while True:
        try:
            model.worker.submit([job])
            break
        except Closed:
            raise leaving() from None
        except Full as full:
            if not asked.recording.number:
                raise Fault(
                    429,
                    "The queue is full: try again later.",
                    code="queue_full",
                    headers={"retry-after": str(full.seconds)},
                ) from None
            await asyncio.sleep(_PATIENCE)  # what was begun is brought to its end
    try:
        while True:
            event = await events.get()
            if isinstance(event, Failed):
                raise _fault(event)
            yield event
            if event.finish is not None:
                return
    finally:
        model.worker.cancel([job])


def _fault(event: Failed) -> Fault:
    if isinstance(event.error, Closed):
        return leaving()
    return Fault(400, str(event.error)) if isinstance(event.error, UsageError) else broken()


async def _events(asked: _Asked, hearing: AsyncIterator[tuple[str, Round]], ident: str) -> AsyncIterator[bytes]:
    """A stream in OpenAI's events."""
    try:
        async for piece, _ in hearing:
            if piece:
                yield _event({"type": "transcript.text.delta", "delta": piece})
    except Fault as fault:
        yield _event(fault.body(ident))
        return
    done = {"type": "transcript.text.done", "text": asked.recording.text, "usage": _usage(asked.recording)}
    yield _event(done)


def _event(document: dict[str, Any]) -> bytes:
    return format_sse_event(data_str=json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _usage(recording: Recording) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(recording.duration)}


def _whole(asked: _Asked) -> Response:
    """The answer in the form that was asked for."""
    recording, form = asked.recording, asked.body.response_format
    text = recording.text.strip()
    if form == "json":
        return JSONResponse({"text": text, "usage": _usage(recording)})
    if form == "verbose_json":
        code = (recording.language or "").strip("<|>")
        return JSONResponse(
            {
                "task": asked.task,
                "language": LANGUAGES.get(code, code),
                "duration": recording.duration,
                "text": text,
                "segments": [
                    _segment(index, segment, asked.body.temperature) for index, segment in enumerate(recording.segments)
                ],
                "usage": _usage(recording),
            }
        )
    if form == "text":
        return PlainTextResponse(f"{text}\n")
    return PlainTextResponse(subtitles(recording.segments, vtt=form == "vtt"))


def _segment(index: int, segment: Segment, temperature: float) -> dict[str, Any]:
    return {
        "id": index,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": temperature,
    }


def subtitles(segments: list[Segment], *, vtt: bool) -> str:
    """Segments as WebVTT or SubRip, whose clocks differ by a comma."""
    blocks = []
    for index, segment in enumerate(segments, 1):
        times = " --> ".join(_clock(seconds, "." if vtt else ",") for seconds in (segment.start, segment.end))
        blocks.append("\n".join([*([] if vtt else [str(index)]), times, segment.text.strip()]))
    return "\n\n".join([*(["WEBVTT"] if vtt else []), *blocks]) + "\n"


def _clock(seconds: float, point: str) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3600000:02}:{whole // 60000 % 60:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"
