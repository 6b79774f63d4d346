"""What the server refuses, and how it says so: OpenAI's shape, the field by name, and nothing that must not leak."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from serving_tiny import NAME, VOCABULARY, Ask

import outrider
from outrider.drafters import Drafter
from outrider.errors import BadOption
from outrider.serve.guard import Rules, loopback, read_keys
from outrider.serve.server import Server, rules_for, serving
from outrider.serve.service import Limits
from outrider.types import Draft, Tree

CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
TEXT: dict[str, Any] = {"model": NAME, "prompt": "Hello", "max_tokens": 4}
LONG = "word " * 600

# (body, the field that is named, a word of the message)
CHATS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": CHAT["messages"]}, "model", "missing"),
    ({"model": NAME}, "messages", "missing"),
    (CHAT | {"messages": []}, "messages", "at least 1"),
    (CHAT | {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'system', 'user' or 'assistant'"),
    (CHAT | {"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
    (CHAT | {"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages.0.name", "not known"),
    (CHAT | {"messages": [{"role": "user", "content": LONG}]}, "messages", "shorten the prompt"),
    (CHAT | {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (CHAT | {"max_tokens": 100_000}, "max_tokens", "at most 2048"),
    (CHAT | {"max_tokens": 500}, "max_tokens", "context holds 512"),
    (CHAT | {"max_completion_tokens": 5}, "max_tokens", "differs"),
    (CHAT | {"min_tokens": 5}, "min_tokens", "4 at most"),
    (CHAT | {"temperature": 2.5}, "temperature", "less than or equal to 2"),
    (CHAT | {"temperature": 0.001}, "temperature", "take 0"),
    (CHAT | {"temperature": "hot"}, "temperature", "valid number"),
    (CHAT | {"top_p": 0}, "top_p", "greater than 0"),
    (CHAT | {"n": 0}, "n", "greater than or equal to 1"),
    (CHAT | {"n": 128}, "n", "more than the queue"),
    (CHAT | {"n": "2"}, "n", "valid integer"),
    (CHAT | {"stop": [""]}, "stop.0", "at least 1"),
    (CHAT | {"stop": ["x"] * 17}, "stop", "at most 16"),
    (CHAT | {"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", f"tokens 0 to {VOCABULARY - 1}"),
    (CHAT | {"logit_bias": {"1": 101}}, "logit_bias.1", "less than or equal to 100"),
    (CHAT | {"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
    (CHAT | {"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'"),
    (CHAT | {"tools": []}, "tools", "not supported"),
    (CHAT | {"user": "me"}, "user", "not supported"),
    (CHAT | {"max_token": 3}, "max_token", "not known"),
    (CHAT | {"Any thing[0]": 3}, "Any thing[0]", "not known"),
    (CHAT | {"response_format": {"type": "json_schema"}}, "response_format", "goes with"),
    (CHAT | {"outrider": {"draft": 3}}, "outrider.draft", "not known"),
    (CHAT | {"outrider": {"drafter": "suffix"}}, "outrider.drafter", "choose one of 'model:tiny', 'lookup:3', 'none'"),
    (CHAT | {"outrider": {"drafter": "os:system"}}, "outrider.drafter", "choose one of"),
    (CHAT | {"outrider": {"policy": "fast"}}, "outrider.policy", "choose one of"),
    (CHAT | {"outrider": {"policy": "fixed:0"}}, "outrider.policy", "K of 1 or more"),
    (CHAT | {"outrider": {"policy": "fixed:5,9999"}}, "outrider.policy", "128 are allowed"),
    (CHAT | {"outrider": {"policy": "fixed:" + "9" * 200}}, "outrider.policy", "at most 64"),
    (CHAT | {"outrider": {"drafter": "none", "policy": "fixed:3"}}, "outrider.drafter", "would change nothing"),
    (CHAT | {"outrider": {"drafter": "lookup:3", "policy": "entropy"}}, "outrider.drafter", "no probabilities"),
    (CHAT | {"prediction": {"type": "content", "content": ""}}, "prediction", "is empty"),
    (
        CHAT | {"prediction": {"type": "content", "content": "x"}, "outrider": {"drafter": "lookup:3"}},
        "prediction",
        "no use for a prediction",
    ),
]
TEXTS: list[tuple[dict[str, Any], str | None, str]] = [
    (TEXT | {"prompt": ""}, "prompt", "empty"),
    (TEXT | {"prompt": []}, "prompt", "at least 1"),
    (TEXT | {"prompt": [VOCABULARY]}, "prompt", "outside the target's vocabulary"),
    (TEXT | {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
    (TEXT | {"prompt": [[1], []]}, "prompt.1", "at least 1"),
    (TEXT | {"prompt": LONG}, "prompt", "shorten the prompt"),
    (TEXT | {"echo": True}, "echo", "not supported"),
    (TEXT | {"best_of": 2}, "best_of", "not supported"),
    (TEXT | {"logprobs": 21}, "logprobs", "less than or equal to 20"),
    (TEXT | {"logprobs": True}, "logprobs", "valid integer"),
]
CASES = [("/v1/chat/completions", *case) for case in CHATS] + [("/v1/completions", *case) for case in TEXTS]


@pytest.mark.parametrize(("path", "body", "param", "word"), CASES)
def test_what_cannot_be_used_is_named(ask: Ask, path: str, body: dict[str, Any], param: str | None, word: str) -> None:
    """400 before any work, one sentence, and the field."""
    response = ask(path, body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert word in error["message"] and "\n" not in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("value", ["tools", "user", "seed", "nothing", "outrider", "prediction", "stop"])
def test_null_is_as_good_as_nothing(ask: Ask, value: str) -> None:
    """Clients of other languages send it for what was not set."""
    assert ask("/v1/chat/completions", CHAT | {value: None}).status_code == 200


RAW: list[tuple[bytes, str, int, str]] = [
    (b"{", "application/json", 400, "invalid_json"),
    (b"", "application/json", 400, "missing_field"),
    (b"[]", "application/json", 400, "invalid_value"),
    (b"\xff\xfe", "application/json", 400, ""),
    (b"[" * 100_000, "application/json", 400, ""),
    (json.dumps(CHAT | {"messages": [{"role": "user", "content": "\ud800"}]}).encode(), "application/json", 400, ""),
    (json.dumps(CHAT | {"\ud800": 1}).encode(), "application/json", 400, "unknown_field"),
    (json.dumps(CHAT | {"outrider": {"\ud800": 1}}).encode(), "application/json", 400, "unknown_field"),
    (json.dumps(CHAT | {"logit_bias": {"\ud800": 1}}).encode(), "application/json", 400, "invalid_value"),
    (json.dumps(CHAT | {"temperature": float("nan")}).encode(), "application/json", 400, "invalid_value"),
    (json.dumps(CHAT).encode(), "text/plain", 415, "not_json"),
    (json.dumps(CHAT).encode(), "application/x-www-form-urlencoded", 415, "not_json"),
]


@pytest.mark.parametrize(("content", "kind", "status", "code"), RAW)
def test_malformed_bodies(server: Server, content: bytes, kind: str, status: int, code: str) -> None:
    """Whatever is sent, the answer has the usual shape."""
    response = httpx.post(f"{server.url}/v1/chat/completions", content=content, headers={"content-type": kind})
    assert response.status_code == status
    assert not code or response.json()["error"]["code"] == code


def test_addresses_and_methods(ask: Ask) -> None:
    """404 and 405 in the same shape."""
    assert (ask("/v1/nothing").status_code, ask("/v1/chat/completions").status_code) == (404, 405)
    for path in ("/v1/nothing", "/v1/chat/completions"):
        assert set(ask(path).json()["error"]) == {"message", "type", "param", "code", "request_id"}
    response = ask("/v1/chat/completions", CHAT | {"model": "gpt"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    """OpenAI's client understands what it is told."""
    with pytest.raises(openai.BadRequestError, match="not supported") as caught:
        client.chat.completions.create(**CHAT, tools=[])
    assert caught.value.param == "tools" and caught.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**(CHAT | {"model": "another"}))


def test_request_ids(ask: Ask) -> None:
    """One is made up, or taken over if it is harmless."""
    assert ask("/health").headers["x-request-id"].startswith("req-")
    assert ask("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert ask("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"


@pytest.fixture(scope="module")
def guarded(tiny: outrider.Outrider) -> Iterator[Server]:
    """A server with two keys and a small body limit."""
    with serving(tiny, NAME, keys=("secret-one", "secret-two"), limits=Limits(max_body=2000)) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/nothing"])
@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer wrong", "Bearer secret-on", "Basic secret-one", "secret-one", "Bearer ü"]
)
def test_without_a_key_nothing_under_v1(guarded: Server, path: str, shown: str | None) -> None:
    """401 with the scheme."""
    headers = {} if shown is None else {"authorization": shown.encode()}
    response = httpx.post(guarded.url + path, json=CHAT, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "secret" not in response.text


@pytest.mark.parametrize("key", ["secret-one", "secret-two"])
def test_with_a_key(guarded: Server, key: str) -> None:
    """Either of them."""
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
        assert client.chat.completions.create(**CHAT).usage is not None
        assert client.models.list().data


def test_what_is_public(guarded: Server) -> None:
    """State, figures and the page need no key."""
    for path in ("/health", "/ready", "/metrics", "/", "/page.js", "/page.css"):
        assert httpx.get(guarded.url + path).status_code == 200


def test_large_bodies_are_refused(guarded: Server) -> None:
    """By what they say of themselves, and by what they are."""
    headers = {"authorization": "Bearer secret-one", "content-type": "application/json"}
    body = json.dumps(CHAT | {"stop": ["x" * 900] * 3}).encode()
    for content in (body, iter([body[:1500], body[1500:]])):
        response = httpx.post(f"{guarded.url}/v1/chat/completions", content=content, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("evil.example", 403), ("", 403)],
)
def test_on_loopback_only_loopback_names(server: Server, guarded: Server, host: str, status: int) -> None:
    """No web page can reach a server without a key through a name that it has pointed at this machine."""
    assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == status
    assert httpx.get(f"{guarded.url}/health", headers={"host": host}).status_code == 200, "a key is enough"


def test_who_may_listen_where() -> None:
    """Other machines need a key, or somebody's word that they do not."""
    with pytest.raises(BadOption, match="--api-key-file"):
        rules_for("0.0.0.0", (), Limits())
    assert rules_for("0.0.0.0", ("k",), Limits()) == Rules(("k",), 4 << 20, loopback=False)
    assert rules_for("0.0.0.0", (), Limits(), unprotected=True) == Rules((), 4 << 20, loopback=False)
    assert rules_for("127.0.0.1", (), Limits()).loopback
    assert loopback(["::1", "localhost", "127.8.0.1"]) and not loopback(["127.0.0.1", "10.0.0.1"])
    assert read_keys("# ours\n\n one \ntwo\n") == ("one", "two")


QUOTING = "cannot read {} in /home/somebody/secret.py, it says: a zebra"


class Fragile(Drafter):
    """Drafts nothing, fails on one word, and quotes the text when it does."""

    spec = "fragile"
    word = ""

    def begin(self, prompt: Any, hidden: Any) -> list[int]:
        """See `Drafter`."""
        return list(prompt)

    def propose(self, states: Any, *others: Any) -> list[Draft]:
        """See `Drafter`."""
        if any(self.word in str(state) for state in states):
            raise RuntimeError(QUOTING.format(states))
        return [Draft(Tree.chain(state[-1:])) for state in states]

    def commit(self, state: list[int], tokens: Any, scores: Any, path: Any) -> None:
        """See `Drafter`."""
        state.extend(tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_fails_alone_and_tells_nothing(
    tiny: outrider.Outrider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """500 or an error event, with the request's id; the log has where it was, and no text. Others go on."""
    llm = tiny.using(drafter="lookup:3")
    llm.drafter = Fragile()
    monkeypatch.setattr(Fragile, "word", str(llm.tokenizer(" zebra")["input_ids"])[1:-1])
    right = llm.generate("Hello", max_new_tokens=40).text
    with caplog.at_level(logging.DEBUG, "outrider"), serving(llm, NAME) as server, httpx.Client(timeout=60) as http:
        good = {**TEXT, "max_tokens": 40, "temperature": 0, "stream": True}
        with http.stream("POST", f"{server.url}/v1/completions", json=good) as going:
            pieces = going.iter_lines()
            first = next(pieces)
            bad = http.post(f"{server.url}/v1/completions", json=TEXT | {"prompt": "a zebra", "stream": stream})
            rest = [first, *pieces]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in rest if line.startswith("data: {")]
    assert "".join(texts) == right and rest[-2] == "data: [DONE]"
    event = bad.text.removeprefix("data: ").strip() if stream else bad.text
    error = json.loads(event)["error"]
    assert bad.status_code == (200 if stream else 500)
    assert (error["type"], error["code"]) == ("server_error", "internal")
    assert error["request_id"] == bad.headers["x-request-id"]
    log = "\n".join(record.getMessage() for record in caplog.records)
    for leak in ("zebra", "Hello", "somebody", "Traceback", "cannot read"):
        assert leak not in bad.text and leak not in log
    assert "RuntimeError" in log and error["request_id"] in log


def test_no_text_in_the_log(server: Server, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A line per request: id, address, status, time."""
    with caplog.at_level(logging.DEBUG):
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT | {"prompt": "SECRET"})):
            assert ask(path, body, headers={"x-request-id": "the-id"}).status_code == 200
        ask("/v1/chat/completions", CHAT | {"SECRET": "SECRET"})
        ask("/v1/SECRET")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("outrider")]
    assert sum("the-id" in line for line in lines) == 2
    assert not any("SECRET" in line or "Hello" in line for line in lines)
