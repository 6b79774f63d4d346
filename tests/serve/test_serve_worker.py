"""Joining and leaving, queues, memory, draining: what must hold whatever clients do."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving_tiny import NAME, Gate, gated, until

import outrider
from outrider import Sampling
from outrider.errors import BadOption
from outrider.kv import BLOCK
from outrider.serve import guard
from outrider.serve import server as server_module
from outrider.serve.room import Room, parse_size
from outrider.serve.server import Server, serving
from outrider.serve.service import Limits, Service
from outrider.serve.worker import Worker
from outrider.target import token_bytes

TEXT: dict[str, Any] = {"model": NAME, "prompt": "Hello", "max_tokens": 60, "temperature": 0}
PATH = "/v1/completions"


@pytest.fixture
def plain(tiny: outrider.Outrider, monkeypatch: pytest.MonkeyPatch) -> outrider.Outrider:
    """One token per pass, so that passes can be counted; nothing is kept of prompts."""
    llm = tiny.using(drafter="none")
    monkeypatch.setattr(llm._prefixes, "_budget", 0)
    monkeypatch.setattr(llm._prefixes, "_entries", [])
    return llm


class Client:
    """One answer, read in a thread of its own.

    Attributes:
        lines: that have come.
        status: of HTTP.
        cut: whether the line was cut before the answer's end.
    """

    def __init__(self, url: str, body: dict[str, Any], *, stream: bool = True) -> None:
        self.lines: list[str] = []
        self.status, self.cut = 0, False
        self._thread = threading.Thread(target=self._read, args=(url, body | {"stream": stream}), daemon=True)
        self._leaving = threading.Event()
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.Client(timeout=60) as http, http.stream("POST", url + PATH, json=body) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self.lines.append(line)
                    if self._leaving.is_set():
                        return
        except (httpx.RemoteProtocolError, httpx.ReadError):
            self.cut = True

    def leave(self) -> None:
        """Hang up at the next line."""
        self._leaving.set()

    def end(self) -> list[dict[str, Any]]:
        """Everything that came, once it has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    @property
    def text(self) -> str:
        """What has been written."""
        return "".join(event["choices"][0]["text"] for event in self.end())


def worker_of(server: Server) -> Worker:
    """The one behind a server."""
    return server.service.wait().worker


@contextmanager
def held(llm: outrider.Outrider, **limits: Any) -> Iterator[tuple[Server, Gate]]:
    """A server whose passes wait at a gate."""
    with gated(llm) as gate, serving(llm, NAME, limits=Limits(**limits)) as server:
        gate.close()
        yield server, gate
        gate.open()


def test_a_client_that_leaves_takes_its_row_along(plain: outrider.Outrider) -> None:
    """Within one round, whether it streams or waits for the whole; its neighbour does not notice."""
    right = plain.generate("Hello", max_new_tokens=60).text
    with held(plain) as (server, gate):
        worker = worker_of(server)
        stays = Client(server.url, TEXT)
        goes = Client(server.url, TEXT | {"prompt": "Goodbye"})
        until(lambda: worker.running + worker.waiting == 2)
        goes.leave()
        gate.let(12)
        until(lambda: goes.lines != [])
        until(lambda: not goes._thread.is_alive())
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + PATH, json=TEXT | {"prompt": "Bye"}, timeout=0.3)
        until(lambda: gate.passes >= 12)
        gate.let(2)
        until(lambda: worker.running == 1 and worker.waiting == 0)
        assert gate.passes <= 15
        gate.open()
        assert stays.text == right
        counted = metrics_of(server)
        assert counted["outrider_request_cancelled_total"] == 2
        assert counted['outrider_request_success_total{finished_reason="length"}'] == 1


def test_rows_join_between_rounds_one_at_a_time(plain: outrider.Outrider) -> None:
    """Beside rows under way, one prompt is read per round; alone, all of them at once."""
    with held(plain, max_batch=4) as (server, gate):
        worker, clients = worker_of(server), []
        for _ in range(3):
            clients.append(Client(server.url, TEXT))
        until(lambda: worker.running + worker.waiting == 3)
        gate.let(1)
        until(lambda: worker.running == 3 or gate.passes > 1)
        running = []
        for _ in range(12):
            before = gate.passes
            gate.let(1)
            until(lambda before=before: gate.passes > before)
            running.append(worker.running)
        assert running == sorted(running) and running[-1] == 3
        gate.open()
        assert len({client.text for client in clients}) == 1


def test_a_full_queue_turns_requests_away(plain: outrider.Outrider) -> None:
    """429 with Retry-After; `/ready` says so before; what was taken in is served."""
    with held(plain, max_batch=1, max_queue=2) as (server, gate):
        worker = worker_of(server)
        clients = [Client(server.url, TEXT | {"max_tokens": 5}) for _ in range(3)]
        until(lambda: worker.running + worker.waiting == 3)
        assert httpx.get(f"{server.url}/ready").json() == {"status": "full"}
        assert httpx.get(f"{server.url}/health").status_code == 200
        refused = httpx.post(server.url + PATH, json=TEXT)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        both = httpx.post(server.url + PATH, json=TEXT | {"n": 2})
        assert both.status_code == 429, "all answers of a request are taken in, or none"
        gate.open()
        assert len({client.text for client in clients}) == 1
        assert httpx.get(f"{server.url}/ready").status_code == 200


def test_a_silent_stream_gets_comments(plain: outrider.Outrider) -> None:
    """So that nobody between hangs up; clients do not see them."""
    with held(plain, keep_alive_seconds=0.05) as (server, gate):
        client = Client(server.url, TEXT | {"max_tokens": 3})
        until(lambda: len([line for line in client.lines if line == ": keep-alive"]) >= 2)
        gate.open()
        assert len(client.end()) == 3 and client.lines[-2] == "data: [DONE]"


def test_the_first_signal_drains(plain: outrider.Outrider) -> None:
    """No new requests, `/health` says why, those under way are written to their end; then it ends."""
    with held(plain, max_batch=1) as (server, gate):
        clients = [Client(server.url, TEXT | {"max_tokens": 6}) for _ in range(2)]
        until(lambda: worker_of(server).running + worker_of(server).waiting == 2)
        worker = worker_of(server)
        server.handle_exit(signal.SIGTERM, None)
        assert httpx.get(f"{server.url}/health").json() == {"status": "draining"}
        assert httpx.get(f"{server.url}/health").status_code == 503
        refused = httpx.post(server.url + PATH, json=TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert not server.should_exit
        gate.open()
        for client in clients:
            assert client.end()[-1]["choices"][0]["finish_reason"] == "length"
        until(lambda: server.should_exit)
        assert worker.idle


def test_what_does_not_end_in_time_is_told_so(plain: outrider.Outrider) -> None:
    """An error event, not a cut line."""
    with held(plain, drain_seconds=0.2) as (server, gate):
        client = Client(server.url, TEXT)
        until(lambda: worker_of(server).running + worker_of(server).waiting == 1)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: server.should_exit)
        gate.let(3)
        assert client.end()[-1]["error"]["code"] == "shutting_down"
        assert server.killed_by is None and not client.cut


def test_a_second_signal_waits_for_nobody(plain: outrider.Outrider, caplog: pytest.LogCaptureFixture) -> None:
    """A pass is under way, a stream and an answer wait for it: lines are cut at once, and the log is quiet."""
    with held(plain) as (server, gate):
        stream, worker = Client(server.url, TEXT), worker_of(server)
        gate.let(2)  # the prompt and a token
        until(lambda: len(stream.lines) > 0)
        whole = Client(server.url, TEXT | {"max_tokens": 5}, stream=False)
        until(lambda: worker.running + worker.waiting == 2)
        server.handle_exit(signal.SIGTERM, None)
        assert not server.should_exit
        server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit and server.killed_by == signal.SIGTERM
        began = perf_counter()
        for client in (stream, whole):
            client.end()
            assert client.cut
        assert perf_counter() - began < 4, "not even for last words"
        gate.open()
        until(lambda: not server.service._thread.is_alive())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("signals", [1, 2])
def test_last_words_that_nobody_has_are_not_waited_for(
    plain: outrider.Outrider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, signals: int
) -> None:
    """A pass that outlives its limit and the time for last words: then the line is cut, and the log is quiet. A second
    signal in that time cuts it at once."""
    monkeypatch.setattr(server_module, "_LAST_WORDS", 0.3 if signals == 1 else 50)
    with held(plain, drain_seconds=0.1) as (server, gate):
        client = Client(server.url, TEXT)
        until(lambda: gate.passes >= 1)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: server.should_exit)
        if signals == 2:
            until(lambda: not server.servers[0].is_serving())
            server.handle_exit(signal.SIGTERM, None)
        client.end()
        assert client.cut
        gate.open()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_fault_outside_of_any_request_ends_the_server(
    plain: outrider.Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients are told, `/health` would say so, and the program can exit with an error."""
    with held(plain) as (server, gate):
        client = Client(server.url, TEXT)
        until(lambda: gate.passes >= 1)
        monkeypatch.setattr(Worker, "_leave", lambda self: 1 / 0)
        gate.open()
        assert client.end()[-1]["error"]["code"] == "shutting_down"
        until(lambda: server.should_exit)
        assert isinstance(server.service.error, ZeroDivisionError)


def test_drafters_of_one_server_share_its_target(tiny: outrider.Outrider) -> None:
    """Others are refused."""
    with pytest.raises(BadOption, match="one rule"), serving([tiny, tiny.using(verifier="token")], NAME):
        pass


def test_a_server_in_a_thread_leaves_signals_alone(plain: outrider.Outrider) -> None:
    """Library mode installs no handlers, and nothing stays behind."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    with serving(plain, NAME) as server:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        assert httpx.post(server.url + PATH, json=TEXT | {"max_tokens": 2}).status_code == 200
    until(lambda: threading.active_count() <= threads)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_loading_takes_time_and_may_fail(plain: outrider.Outrider) -> None:
    """Meanwhile `/health` says 503 and requests are asked to come back; a failure is the caller's to see."""
    loading = threading.Event()

    def load() -> list[outrider.Outrider]:
        assert loading.wait(60)
        return [plain]

    service = Service(load, NAME)
    server = Server(service, guard.Rules(), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    assert httpx.get(f"{server.url}/health").json() == {"status": "loading"}
    early = httpx.post(server.url + PATH, json=TEXT)
    assert (early.status_code, early.headers["retry-after"]) == (503, "5")
    assert httpx.get(f"{server.url}/v1/models").status_code == 503
    loading.set()
    service.wait(60)
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.should_exit = True
    thread.join(30)

    def fail() -> list[outrider.Outrider]:
        raise BadOption("There is no such thing.")

    with pytest.raises(BadOption, match="no such thing"), serving(fail, NAME):
        pass


def test_a_port_that_is_taken_is_told_at_once(plain: outrider.Outrider) -> None:
    """Before anything is loaded."""
    with serving(plain, NAME) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(BadOption, match="cannot be used"), serving(lambda: 1 / 0, NAME, port=port):  # type: ignore[arg-type, return-value]
            pass


def test_trouble_in_a_pass_ends_its_rows_and_no_others(plain: outrider.Outrider) -> None:
    """Those who shared it hear of it; the next request is served."""
    with held(plain) as (server, gate):
        client = Client(server.url, TEXT)
        gate.let(2)
        until(lambda: gate.passes >= 3)
        gate.fail()
        assert client.end()[-1]["error"]["code"] == "internal"
        gate.open()
        again = httpx.post(server.url + PATH, json=TEXT | {"max_tokens": 3}, timeout=60)
        assert again.status_code == 200
        assert metrics_of(server)["outrider_request_failure_total"] == 1


# ---- memory ----


def test_sizes() -> None:
    """As people write them."""
    assert [parse_size(text, "--memory") for text in ("8GiB", "512 MB", "1000", "1.5k", "2Ti", "3b")] == [
        8 << 30, 512_000_000, 1000, 1500, 2 << 40, 3
    ]  # fmt: skip
    for text in ("", "lots", "-1", "8 GiBi", "GiB"):
        with pytest.raises(BadOption, match="--memory"):
            parse_size(text, "--memory")


def test_memory_bounds_the_batch(tiny: outrider.Outrider, plain: outrider.Outrider) -> None:
    """What a batch really allocates, at its worst moment, stays within the budget; a request that never fits is
    refused before any work."""
    per_token = token_bytes(plain.target)
    assert per_token == 2 * 2 * 2 * 8 * 4  # keys and values, two layers, two heads of 8, float32
    room = Room(2 * 3 * BLOCK * per_token, plain.target)
    assert room.slots(60) == BLOCK and room.slots(BLOCK) == 2 * BLOCK, "with a margin for wide drafts"
    rows = [(room.slots(60), room.per_slot(0))] * 4
    assert room.fits(rows[:3]) and not room.fits(rows)
    with held(plain, memory=2 * 3 * BLOCK * per_token) as (server, gate):
        worker = worker_of(server)
        clients = [Client(server.url, TEXT) for _ in range(5)]
        until(lambda: worker.running + worker.waiting == 5)
        for _ in range(20):
            gate.let(1)
        until(lambda: worker.running == 3)
        until(lambda: worker.cache_bytes > 0)
        assert worker.cache_bytes <= worker.room.budget
        assert worker.waiting == 2, "the queue's head waits for room"
        gate.open()
        assert len({client.text for client in clients}) == 1
    with serving(plain, NAME, limits=Limits(memory=2 * BLOCK * per_token)) as server:
        refused = httpx.post(server.url + PATH, json=TEXT | {"max_tokens": 450})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    with pytest.raises(BadOption, match="allow more"), serving(plain, NAME, limits=Limits(memory=1000)):
        pass
    assert tiny.drafter.token_bytes == per_token, "a draft model's keys count too"


# ---- figures ----


def metrics_of(server: Server) -> dict[str, float]:
    """All samples of `/metrics`, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_metrics_are_what_the_rounds_say(tiny: outrider.Outrider) -> None:
    """Every counter equals its sum over the traces of all answers."""
    rounds: list[dict[str, Any]] = []
    bodies = [
        TEXT | {"outrider": {"trace": True, "policy": "fixed:5"}, "max_tokens": 17, "n": 2},
        TEXT | {"outrider": {"trace": True, "drafter": "lookup:3"}, "max_tokens": 40},
        TEXT | {"outrider": {"trace": True, "drafter": "none"}, "max_tokens": 5},
    ]
    with serving([tiny, tiny.using(drafter="lookup:3")], NAME) as server:
        prompts = 0
        for body in bodies:
            answer = httpx.post(server.url + PATH, json=body, timeout=60).json()
            prompts += answer["usage"]["prompt_tokens"] * body.get("n", 1)
            rounds += [told for choice in answer["choices"] for told in choice["outrider"]["rounds"]]
        counted = metrics_of(server)
    drafts = [told for told in rounds if told["draft_tokens"]]
    accepted = [len(told["path"]) - 1 for told in drafts]
    assert counted["outrider_rounds_total"] == len(rounds)
    assert counted["outrider_generation_tokens_total"] == sum(len(told["tokens"]) for told in rounds) == 17 * 2 + 45
    assert counted["outrider_prompt_tokens_total"] == prompts
    assert counted["outrider_spec_decode_num_drafts_total"] == len(drafts)
    assert counted["outrider_spec_decode_num_draft_tokens_total"] == sum(len(told["draft_tokens"]) for told in drafts)
    assert counted["outrider_spec_decode_num_accepted_tokens_total"] == sum(accepted)
    for place in range(max(accepted)):
        key = f'outrider_spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'
        assert counted[key] == sum(count > place for count in accepted)
    assert counted["outrider_inter_token_latency_seconds_count"] == sum(
        len(told["tokens"]) for told in rounds if told["round"] > 0
    )
    assert counted["outrider_time_to_first_token_seconds_count"] == 4
    assert counted['outrider_request_success_total{finished_reason="length"}'] == 4
    assert counted['outrider_http_requests_total{endpoint="/v1/completions",status="200"}'] == 3
    assert counted["outrider_num_requests_running"] == counted["outrider_num_requests_waiting"] == 0
    assert counted["outrider_kv_cache_bytes"] == 0


def test_what_is_relaxed_is_labelled(tiny: outrider.Outrider) -> None:
    """With every answer, and by how much."""
    relaxed = tiny.using(verifier="typical")
    with serving(relaxed, NAME) as server:
        answer = httpx.post(server.url + PATH, json=TEXT | {"temperature": 1.0, "max_tokens": 8}, timeout=60).json()
    about = answer["outrider"]
    assert about["lossless"] is False and about["verifier"].startswith("typical")
    assert 0 <= about["mean_tv"] <= 1


def test_the_server_reports_unasked_where_it_is_told_to(plain: outrider.Outrider) -> None:
    """For tools that read acceptance without asking."""
    with serving(plain, NAME, report=True) as server:
        answer = httpx.post(server.url + PATH, json=TEXT | {"max_tokens": 4}, timeout=60).json()
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert answer["timings"]["draft_n"] == 0


def test_many_streams_with_an_asynchronous_client(tiny: outrider.Outrider) -> None:
    """A dozen at once over one event loop, more than the batch holds, each exact."""
    right = tiny.generate("Hello", sampling=Sampling(temperature=1.0, seed=5), max_new_tokens=30).text

    async def one(http: httpx.AsyncClient, url: str) -> str:
        body = TEXT | {"temperature": 1.0, "seed": 5, "max_tokens": 30, "stream": True}
        text = ""
        async with http.stream("POST", url + PATH, json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    async def all_of_them(url: str) -> list[str]:
        async with httpx.AsyncClient(timeout=120) as http:
            return await asyncio.gather(*(one(http, url) for _ in range(12)))

    with serving(tiny, NAME, limits=Limits(max_batch=5)) as server:
        assert asyncio.run(all_of_them(server.url)) == [right] * 12
