"""What stands before every endpoint: request ids, keys, sizes, and faults that must not leak. Knows no models.

What nobody expected is logged without its message, which may quote somebody's text, and answered without details.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .faults import Fault, broken
from .metrics import Metrics

_logger = logging.getLogger("outrider.serve")
_IDENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'"
)
_PRIVATE = "/v1/"  # paths that need a key
_FORMS = "/v1/audio/"  # paths that take forms


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask for what.

    Attributes:
        keys: one of which a client has to show; none are needed if there are none.
        max_body: bytes of a request.
        max_audio: bytes of a request that brings a recording.
        loopback: only requests that are addressed to this very machine are answered, so that no page of the web can
            talk to the server through a name that it has pointed here.
    """

    keys: tuple[str, ...] = ()
    max_body: int = 4 << 20
    max_audio: int = 25 << 20
    loopback: bool = False


class Guard:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, rules: Rules, metrics: Metrics) -> None:
        self._app, self._rules, self._metrics = app, rules, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send)
        try:
            self._admit(visit.headers, scope)
            await visit.read(self._rules.max_audio if scope["path"].startswith(_FORMS) else self._rules.max_body)
            await self._app(scope, visit.receive, visit.send)
        except Fault as fault:
            await visit.refuse(fault)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            _logger.error("request %s failed: %s\n%s", visit.ident, type(error).__name__, where)
            await visit.refuse(broken())
        finally:
            route = scope.get("route")
            endpoint = getattr(route, "path", "other")
            self._metrics.http.labels(endpoint, str(visit.status)).inc()
            seconds = perf_counter() - visit.began
            _logger.info("request %s %s %s %s %.3f s", visit.ident, scope["method"], endpoint, visit.status, seconds)

    def _admit(self, headers: Headers, scope: Scope) -> None:
        """Turn away who may not come in.

        Raises:
            Fault: says why.
        """
        if self._rules.loopback and _name(headers.get("host", "")) not in _LOOPBACK:
            raise Fault(
                403,
                "This server answers to localhost only: start it with a key to use another name.",
                code="wrong_host",
            )
        if (
            self._rules.keys
            and scope["path"].startswith(_PRIVATE)
            and not self._knows(headers.get("authorization", ""))
        ):
            raise Fault(
                401,
                "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["path"].startswith(_FORMS):
            if scope["method"] == "POST" and kind != "multipart/form-data":
                raise Fault(415, "A recording comes as a form: send 'multipart/form-data'.", code="not_a_form")
            # Pages of other sites could send forms unasked; their browsers say where they come from.
            origin = headers.get("origin", "").partition("://")[2]
            if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (
                origin and origin != headers.get("host", "")
            ):
                raise Fault(403, "Forms are taken from this server's own pages only.", code="wrong_origin")
        elif scope["method"] == "POST" and kind != "application/json":  # pages of other sites cannot send this unasked
            raise Fault(415, "The body has to be JSON: send 'Content-Type: application/json'.", code="not_json")

    def _knows(self, authorization: str) -> bool:
        """Whether a key is one of ours; how long that takes does not depend on how much of it is right."""
        scheme, _, shown = authorization.partition(" ")
        found = [hmac.compare_digest(shown.strip().encode(), key.encode()) for key in self._rules.keys]
        return any(found) and scheme.lower() == "bearer"


class _Visit:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._body: list[bytes] = []
        self._told = False
        self.headers = Headers(scope=scope)
        shown = self.headers.get("x-request-id", "")
        self.ident = shown if _IDENT.fullmatch(shown) else f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {})["ident"] = self.ident
        self.status, self.began = 0, perf_counter()

    async def read(self, most: int) -> None:
        """Take the body in.

        Raises:
            Fault: it is larger than allowed.
        """
        size, more = 0, True
        if self.headers.get("content-length", "0").isdecimal() and int(self.headers.get("content-length", "0")) > most:
            raise _too_large(most)
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                return
            part = message.get("body", b"")
            size, more = size + len(part), message.get("more_body", False)
            if size > most:
                raise _too_large(most)
            self._body.append(part)

    async def receive(self) -> Message:
        """The body once, then whatever else the client does: it can only go away."""
        if not self._told:
            self._told = True
            return {"type": "http.request", "body": b"".join(self._body), "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Pass an answer on, with the headers that all have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.ident
            headers["x-content-type-options"] = "nosniff"
            headers["content-security-policy"] = _POLICY
            headers["referrer-policy"] = "no-referrer"
            headers.setdefault("cache-control", "no-store")
        await self._send(message)

    async def refuse(self, fault: Fault) -> None:
        """Answer with a fault, if nothing has been said yet."""
        if self.status:
            return
        body = json.dumps(fault.body(self.ident), ensure_ascii=False).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        if fault.status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _too_large(most: int) -> Fault:
    return Fault(413, f"The body is larger than {most} bytes: send less.", code="too_large")


def _name(host: str) -> str:
    """The host of a Host header, without its port."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()


def read_keys(text: str) -> tuple[str, ...]:
    """Keys of a file: one a line; lines that begin with # are remarks."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#"))


def loopback(hosts: Sequence[str]) -> bool:
    """Whether these addresses are all this very machine's own."""
    return all(host in _LOOPBACK or re.fullmatch(r"127(\.\d{1,3}){3}", host) for host in hosts)
