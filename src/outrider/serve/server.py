"""Runs the application on uvicorn: as a program that answers to signals, or in a thread of somebody else's program.

The first SIGTERM (or Ctrl-C) stops new requests and lets the others end, within a limit, while `/health` says so; a
second one ends at once: whoever can still be told within a moment is told, and other lines are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from types import FrameType

import uvicorn

from ..api import Outrider
from ..errors import BadOption
from .app import create_app
from .guard import Rules, loopback
from .service import Limits, Service

_LAST_WORDS = 5  # seconds in which streams that were ended may say so, where nobody asked to end at once
_MOMENT = 0.1  # seconds between two looks at the clock


class Server(uvicorn.Server):
    """One service on one port.

    Args:
        service: what is served.
        rules: who may come in.
        host, port: where; port 0 takes a free one.

    Attributes:
        url: where it answers.
        killed_by: the signal that ended it at once, or None.

    Raises:
        BadOption: that address cannot be used.
    """

    def __init__(self, service: Service, rules: Rules, host: str, port: int) -> None:
        self.service = service
        self.killed_by: int | None = None
        config = uvicorn.Config(
            create_app(service, rules),
            host=host,
            port=port,
            http="h11",
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_LAST_WORDS + 1,
        )
        super().__init__(config)
        self._socket = _bound(host, port)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal, or until loading fails: then `service.error` says why."""
        super().run([self._socket] if sockets is None else sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        state = self.service.state
        if state == "failed" or (state == "draining" and self.service.drained):
            self.service.end()  # what is still under way hears of it before the line is cut
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain at the first one, end at the second."""
        if self.service.state == "draining":
            self.killed_by = sig
            self.service.end(at_once=True)
            self.should_exit = True
        else:
            self.service.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for last words as long as they may take, then cut what is left; endpoints take that for clients that
        went away, so they end as they always do."""
        cutting = asyncio.create_task(self._cut())
        await super().shutdown(sockets)
        cutting.cancel()

    async def _cut(self) -> None:
        """Hang up on everybody, once the time for last words is over or somebody has asked to end at once."""
        until = monotonic() + _LAST_WORDS
        while self.killed_by is None and monotonic() < until:
            await asyncio.sleep(_MOMENT)
        for connection in list(self.server_state.connections):
            transport: asyncio.Transport = connection.transport
            transport.abort()


def _bound(host: str, port: int) -> socket.socket:
    """A socket of that address; taken before anything is loaded, so that a taken port is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise BadOption(f"The address {host}:{port} cannot be used ({error.strerror}): choose another one.") from error
    return bound


def rules_for(host: str, keys: Sequence[str], limits: Limits, *, unprotected: bool = False) -> Rules:
    """Who may come in.

    Raises:
        BadOption: other machines could, without a key, and nobody said that they may.
    """
    own = loopback([host])
    if not own and not keys and not unprotected:
        raise BadOption(
            f"The host {host} is open to other machines and there is no key: give --api-key-file, or say --unprotected."
        )
    return Rules(tuple(keys), limits.max_body, loopback=own and not keys)


@contextlib.contextmanager
def serving(
    llm: Outrider | Sequence[Outrider] | Callable[[], Sequence[Outrider]],
    name: str = "outrider",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    keys: Sequence[str] = (),
    limits: Limits | None = None,
    report: bool = False,
) -> Iterator[Server]:
    """A server in a thread of this program, for as long as the context lasts; no signal handlers are installed.

    Args:
        llm: what to serve; several with different drafters on one target, of which requests may choose, the usual one
            first; or what loads them.
        name: of the model, as clients say it.
        host, port: where; port 0 takes a free one, see `Server.url`.
        keys: one of which clients have to show.
        limits: see `Limits`.
        report: tell acceptance and timings in every answer.

    Raises:
        BadOption: before anything happens, with the remedy.
    """
    chosen = limits or Limits()
    rules = rules_for(host, keys, chosen)
    load = llm if callable(llm) else (lambda: [llm] if isinstance(llm, Outrider) else llm)
    service = Service(load, name, chosen, report=report)
    server = Server(service, rules, host, port)
    thread = threading.Thread(target=server.run, name="outrider-server", daemon=True)
    service.start()
    thread.start()
    try:
        service.wait()
        yield server
    finally:
        service.stop()
        server.should_exit = True
        thread.join()
