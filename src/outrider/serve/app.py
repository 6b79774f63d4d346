"""The endpoints. Knows HTTP, and of the rest only whom to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.sse import format_sse_event
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..errors import UsageError
from .answers import Answer
from .audio import GONE, add_audio
from .faults import Fault, broken, invalid, leaving
from .guard import Guard, Rules
from .metrics import CONTENT_TYPE
from .prepare import plan
from .schema import ChatRequest, CompletionRequest, ErrorDocument
from .service import Service
from .worker import Closed, Failed, Full, Job, Worker, Wrote

_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorDocument, "description": "Something else went wrong."},
    400: {"model": ErrorDocument, "description": "Something in the request cannot be used; `param` names it."},
    401: {"model": ErrorDocument, "description": "The API key is missing or wrong."},
    404: {"model": ErrorDocument, "description": "There is no such model."},
    413: {"model": ErrorDocument, "description": "The body is too large."},
    415: {"model": ErrorDocument, "description": "The body is not JSON."},
    429: {"model": ErrorDocument, "description": "The queue is full; `Retry-After` says for how long."},
    503: {"model": ErrorDocument, "description": "The server is loading or shutting down."},
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or with `stream` its pieces as server-sent events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **_ERRORS,
}
_Events = asyncio.Queue[tuple[int, Wrote | Failed | None]]


def create_app(service: Service, rules: Rules | None = None) -> FastAPI:
    """The application. It starts the service when it is started itself, and installs no signal handlers."""
    app = FastAPI(
        title="Outrider", version=__version__, docs_url=None, redoc_url=None, lifespan=partial(_life, service)
    )
    app.add_middleware(Guard, rules=rules or Rules(max_body=service.limits.max_body), metrics=service.metrics)
    for kind in (Fault, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _told)
    _add_generation(app, service)
    add_audio(app, service)
    _add_models(app, service)
    _add_states(app, service)
    _add_page(app)
    describe = app.openapi

    def described() -> dict[str, Any]:
        """The description of all endpoints, with the name of the model that is served."""
        document = describe()
        for kind in (ChatRequest, CompletionRequest):
            document["components"]["schemas"][kind.__name__]["properties"]["model"]["enum"] = [service.name]
        return document

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend it
    return app


@asynccontextmanager
async def _life(service: Service, app: FastAPI) -> AsyncIterator[None]:
    service.start()
    yield
    await asyncio.to_thread(service.stop)


async def _told(request: Request, error: Exception) -> Response:
    """Errors in OpenAI's shape."""
    if isinstance(error, RequestValidationError):
        fault = invalid(error.errors())
    elif isinstance(error, HTTPException):
        words = {404: "There is no such address here.", 405: "This address does not take that method."}
        reason = words.get(error.status_code, "The request cannot be read.")
        fault = Fault(error.status_code, reason, headers=error.headers)
    else:
        assert isinstance(error, Fault)
        fault = error
    return JSONResponse(fault.body(request.state.ident), fault.status, headers=fault.headers)


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=_ANSWERS, response_model=None)
    async def chat(request: Request, body: Annotated[ChatRequest, Body()]) -> Response:
        """Answer a chat."""
        return await _generate(service, request, body)

    @app.post("/v1/completions", responses=_ANSWERS, response_model=None)
    async def completions(request: Request, body: Annotated[CompletionRequest, Body()]) -> Response:
        """Continue a text, or several."""
        return await _generate(service, request, body)


async def _generate(service: Service, request: Request, body: ChatRequest | CompletionRequest) -> Response:
    """Hand the rows of a request to the worker and tell what becomes of them."""
    model, ident, loop = service.model, request.state.ident, asyncio.get_running_loop()
    made = await loop.run_in_executor(service.encoding, plan, service, model, body)
    events = _Events()

    def listener(index: int) -> Callable[[Wrote | Failed], object]:
        return lambda event: loop.call_soon_threadsafe(events.put_nowait, (index, event))

    jobs = [
        Job(ident, row, made.choice.drafter, made.choice.make_policy, listener(index), slots, made.per_slot)
        for index, (row, slots) in enumerate(zip(made.requests, made.slots, strict=True))
    ]
    answer = Answer(body, made, jobs, model.llm, service.name, model.tokens, ident, report=service.report)
    try:
        model.worker.submit(jobs)
    except Full as full:
        raise Fault(
            429,
            "The queue is full: try again later.",
            code="queue_full",
            headers={"retry-after": str(full.seconds)},
        ) from None
    except Closed:
        raise leaving() from None
    if body.stream:
        pieces = _pieces(answer, events, ident, service.limits.keep_alive_seconds)
        return _Stream(pieces, model.worker, jobs)
    try:
        return await _whole(request, answer, events)
    finally:
        model.worker.cancel(jobs)


class _Stream(StreamingResponse):
    """Server-sent events; however it ends, its rows do not outlive it."""

    def __init__(self, pieces: AsyncIterator[bytes], worker: Worker, jobs: Sequence[Job]) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._worker, self._jobs = worker, jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._worker.cancel(self._jobs)


async def _pieces(answer: Answer, events: _Events, ident: str, patience: float) -> AsyncIterator[bytes]:
    """A stream's events, with a comment now and then while nothing is written."""
    while not answer.done:
        try:
            async with asyncio.timeout(patience):
                index, event = await events.get()
        except TimeoutError:
            yield format_sse_event(comment="keep-alive")
            continue
        if not isinstance(event, Wrote):
            yield _event(_fault(event).body(ident))
            return
        chunk = answer.take(index, event)
        if chunk is not None:
            yield _event(chunk)
    for chunk in answer.closing():
        yield _event(chunk)
    yield format_sse_event(data_str="[DONE]")


def _event(document: dict[str, Any]) -> bytes:
    return format_sse_event(data_str=json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


async def _whole(request: Request, answer: Answer, events: _Events) -> Response:
    """The answer, once it is complete; nothing for a client that went away."""
    watching = asyncio.create_task(_watch(request, events))
    try:
        while not answer.done:
            index, event = await events.get()
            if event is None:
                return Response(status_code=GONE)
            if isinstance(event, Failed):
                raise _fault(event)
            answer.take(index, event)
    finally:
        watching.cancel()
    return JSONResponse(answer.whole())


async def _watch(request: Request, events: _Events) -> None:
    """Put in a word when the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    events.put_nowait((0, None))


def _fault(event: Failed | None) -> Fault:
    """What a client hears of a row that ended in trouble."""
    error = event.error if event is not None else None
    if isinstance(error, Closed):
        return leaving()
    return Fault(400, str(error)) if isinstance(error, UsageError) else broken()


def _add_models(app: FastAPI, service: Service) -> None:
    def describe() -> dict[str, Any]:
        model = service.model
        about = {**model.llm.configuration, "target": service.name, "drafter": model.choices.usual}
        limits = {"context": model.llm.target.context, "max_tokens": service.limits.max_tokens}
        offered = {"drafters": model.choices.names, "lossless": model.llm.verifier.lossless}
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "outrider",
            "outrider": {**about, **offered, **limits},
        }

    @app.get("/v1/models", responses=_ERRORS)
    async def models() -> dict[str, Any]:
        """The model that is served: target, drafter, verifier and policy in force."""
        return {"object": "list", "data": [describe()]}

    @app.get("/v1/models/{name:path}", responses=_ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """The same by name."""
        found = describe()
        if name != service.name:
            raise Fault(404, "There is no model of that name here.", param="model", code="model_not_found")
        return found


def _add_states(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses={503: {"description": "Loading, shutting down, or failed."}})
    async def health() -> Response:
        """Whether the server works; 503 while it loads or shuts down."""
        state = service.state
        return JSONResponse({"status": "ok" if state == "ready" else state}, 200 if state == "ready" else 503)

    @app.get("/ready", responses={503: {"description": "A request would be turned away."}})
    async def ready() -> Response:
        """Whether a request would be taken in now."""
        state = service.state
        word = "full" if state == "ready" and not service.model.worker.has_place() else state
        return JSONResponse({"status": word}, 200 if word == "ready" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    folder = files(__package__) / "page"
    for path, (name, kind) in _PAGE.items():
        content = (folder / name).read_bytes()
        app.add_api_route(path, partial(_file, content, kind), methods=["GET"], include_in_schema=False)


async def _file(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind, headers={"cache-control": "no-cache"})
