"""A bench against a small server of our own, which streams as vLLM, llama.cpp or a plain server would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from outrider.errors import BadOption
from outrider.measure.bench import Wanted, measure_endpoint
from outrider.measure.bundle import Bundle
from outrider.measure.cases import of_endpoint
from outrider.measure.endpoint import Endpoint
from outrider.measure.manifest import build
from outrider.measure.prompts import BenchPrompt
from outrider.measure.results import Results
from outrider.measure.runner import Plan

WORDS = (("Two ", 2), ("rivers", 1), (" meet here", 3))  # texts of the events and their tokens


class Server(ThreadingHTTPServer):
    """Answers every chat with WORDS.

    Attributes:
        style: "usage" (in every event), "total" (in the last), "none", "llama" (timings) or "fault" (in the middle).
        strict: options that it knows no more of than OpenAI does are refused.
        metrics: whether it has counters.
        asked: bodies that it was sent.
        together: how many requests were under way at once, at most.
    """

    style, strict, metrics, key = "usage", False, True, ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.drafts = 0
        self.together = self._now = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave in the middle are no news."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self._whole(200, json.dumps({"data": [{"id": "river-1b"}, {"id": "other"}]}))
        if self.path == "/metrics" and self.server.metrics:
            return self._whole(200, _counters(self.server.drafts))
        return self._whole(404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.asked.append(body)
            server._now += 1
            server.together = max(server.together, server._now)
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            self._whole(401, json.dumps({"error": {"message": "Wrong key.\nGo away."}}))
        elif server.strict and "continuous_usage_stats" in body["stream_options"]:
            self._whole(400, json.dumps({"error": {"message": "Unknown option."}}))
        else:
            self._stream()
        with server.lock:
            server._now -= 1

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        style, written = self.server.style, 0
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        self.wfile.write(b": still here\n\n")
        for text, tokens in WORDS:
            threading.Event().wait(0.02)
            written += tokens
            self._event({"choices": [{"delta": {"content": text}}], **self._usage(written, style == "usage")})
            if style == "fault":
                self._event({"error": {"message": "lost"}})
        written += 1  # the end of the answer is a token without text
        end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        if style == "llama":
            end["timings"] = {"draft_n": 10, "draft_n_accepted": 4}
        self._event({**end, **self._usage(written, style == "usage")})
        if style in ("total", "llama"):
            self._event({"choices": [], **self._usage(written, True)})
        with self.server.lock:
            self.server.drafts += 4  # before the client knows that it is over, and reads the counters
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _usage(self, written: int, told: bool) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 9, "completion_tokens": written}} if told else {}

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _whole(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def _counters(drafts: int) -> str:
    """What vLLM's /metrics says after so many drafts of three tokens, of which 2, 1 and 0 in four were kept."""
    label = 'engine="0",model_name="river-1b"'
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{label}}} {100 + drafts}.0",
        "# TYPE vllm:spec_decode_num_draft_tokens_total counter",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {300 + 3 * drafts}.0",
        "# TYPE vllm:spec_decode_num_accepted_tokens_total counter",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {50 + 3 * drafts // 4}.0",
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{place}"}} {drafts * kept // 4}.0'
            for place, kept in enumerate((2, 1, 0))
        ),
        "# TYPE vllm:spec_decode_num_drafts_created gauge",
        f"vllm:spec_decode_num_drafts_created{{{label}}} 1.7e+09",
        "# TYPE vllm:other_total counter",
        "vllm:other_total 3.0",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that listens until the test ends."""
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


PROMPTS = [BenchPrompt("a", "chat", [{"role": "user", "content": "Hi"}]), BenchPrompt("b", "code", "def f(")]


def run(
    server: Server, batch: str = "1", temperature: str = "0", repeats: int = 1, **options: Any
) -> tuple[Results, Bundle]:
    """Bench the two prompts there."""
    endpoint = Endpoint(options.pop("url", server.url), **options)
    asked = Wanted(of_endpoint(batch, temperature), PROMPTS, Plan(50, repeats, 7))
    bundle = Bundle(None, build({}, asked.cases, asked.prompts, asked.plan, argv=[]))
    try:
        return measure_endpoint(asked, endpoint, bundle), bundle
    finally:
        endpoint.close()


def test_what_is_asked_and_what_comes_back(server: Server) -> None:
    results, bundle = run(server, temperature="0,0.5", repeats=2)
    assert [(body["temperature"], body["seed"], body["max_tokens"]) for body in server.asked] == [
        (0, 7, 8), (0.5, 7, 8),  # a few tokens to warm up, for each case
        (0, 7, 50), (0.5, 7, 50), (0.5, 7, 50), (0, 7, 50), (0, 8, 50), (0.5, 8, 50), (0.5, 8, 50), (0, 8, 50),
    ]  # fmt: skip
    assert {body["model"] for body in server.asked} == {"river-1b"}
    assert server.asked[2]["messages"] == [{"role": "user", "content": "Hi"}]
    assert server.asked[4]["messages"] == [{"role": "user", "content": "def f("}]
    sample = bundle.samples.records[0]
    assert (sample.text, sample.finish_reason, sample.prompt_tokens, sample.seed) == (
        "Two rivers meet here",
        "stop",
        9,
        7,
    )
    assert [tokens for _, tokens in sample.arrivals] == [2, 1, 4], "the end of the answer came with the last text"
    times = [at for at, _ in sample.arrivals]
    assert times[0] > 0.01 and times == sorted(times) and sample.seconds == times[-1]
    assert [(s.tokens, s.samples, s.lossless, s.speedup) for s in results.summaries] == [(28, 4, None, None)] * 2
    assert results.manifest["tokens_per_event"] == ["told"]
    assert [case.name for case in results.cases] == ["as served (endpoint)", "as served (endpoint), T=0.5"]


def test_counters_are_read_before_and_after(server: Server) -> None:
    """Four drafts an answer, of three tokens each; what was counted before we came does not matter."""
    (found,) = run(server)[0].summaries
    assert (found.rounds, found.drafted, found.accepted) == (8, 24, 6)
    assert (found.acceptance_rate, found.acceptance_length) == (1 / 4, 1 + 3 / 4)
    assert (found.survival, found.conditional) == ((1 / 2, 1 / 4), (1 / 2, 1 / 2))


def test_a_batch_is_asked_at_once(server: Server) -> None:
    results, bundle = run(server, batch="2")
    assert server.together == 2
    assert [sample.group for sample in bundle.samples.records] == [0, 0]
    assert [sample.counters is None for sample in bundle.samples.records] == [False, True]
    assert results.summaries[0].drafted == 24


def test_without_counters(server: Server) -> None:
    server.metrics = False
    (found,) = run(server)[0].summaries
    assert (found.rounds, found.drafted, found.acceptance_rate, found.acceptance_length) == (0, 0, None, None)
    assert found.tokens_per_second > 0


def test_llama_cpp_counts_tokens_in_its_answers(server: Server) -> None:
    server.metrics, server.style = False, "llama"
    results, _ = run(server, batch="2")
    (found,) = results.summaries
    assert (found.drafted, found.accepted, found.acceptance_rate, found.acceptance_length) == (20, 8, 0.4, None)


def test_usage_of_the_whole_is_shared_out(server: Server) -> None:
    """7 tokens over texts of 4, 6 and 10 characters; the option that OpenAI does not know is left out then."""
    server.style, server.strict = "total", True
    results, bundle = run(server)
    assert [tokens for _, tokens in bundle.samples.records[0].arrivals] == [1, 3, 3]
    assert results.manifest["tokens_per_event"] == ["shared"]
    assert ["continuous_usage_stats" in body["stream_options"] for body in server.asked] == [True, False, False, False]


def test_without_usage_every_event_is_a_token(server: Server) -> None:
    server.style = "none"
    results, bundle = run(server)
    assert [tokens for _, tokens in bundle.samples.records[0].arrivals] == [1, 1, 1]
    assert results.manifest["tokens_per_event"] == ["events"] and bundle.samples.records[0].prompt_tokens == 0


def test_a_key_and_a_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "open"
    monkeypatch.setenv("RIVER_KEY", "open")
    run(server, url=f"{server.url}/v1/", model="other", key_variable="RIVER_KEY")
    assert {body["model"] for body in server.asked} == {"other"}
    monkeypatch.setenv("RIVER_KEY", "wrong")
    with pytest.raises(BadOption, match=r"answers 401 \(Wrong key\)"):
        run(server, key_variable="RIVER_KEY")
    with pytest.raises(BadOption, match="NO_SUCH_KEY, which is not set"):
        run(server, key_variable="NO_SUCH_KEY")


def test_an_error_in_the_middle(server: Server) -> None:
    server.style = "fault"
    with pytest.raises(BadOption, match="broke an answer off"):
        run(server)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://me:secret@x", "http://", "http://me:secret@localhost:1"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


def test_nobody_there(server: Server) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(BadOption, match="cannot be reached"):
        Endpoint(server.url)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"outrider\[endpoint\]"):
        Endpoint("http://localhost:8000")
