"""What people come with: LangChain's OpenAI class, and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from serving_tiny import NAME

import outrider
from outrider import Sampling
from outrider.serve.server import Server

CHAT = [{"role": "user", "content": "Hello"}]
SAMPLING = Sampling(temperature=0.8, seed=3)


@pytest.fixture
def chat(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatOpenAI]:
    """LangChain's class for chats, as its documentation says for servers like this one."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    yield ChatOpenAI(model=NAME, base_url=f"{server.url}/v1", api_key="none", temperature=0.8, seed=3, max_tokens=24)


def test_langchain_chats(chat: ChatOpenAI, tiny: outrider.Outrider) -> None:
    """Whole and streamed, with usage; the text is the library's."""
    right = tiny.generate(CHAT, sampling=SAMPLING, max_new_tokens=24)
    answer = chat.invoke("Hello")
    assert answer.content == right.text
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == len(right.token_ids)
    pieces = list(chat.stream("Hello"))
    assert "".join(str(piece.content) for piece in pieces) == right.text and len(pieces) > 2
    assert [answer.content for answer in chat.batch(["Hello", "Hello"])] == [right.text] * 2


def test_langchain_extras_and_schemas(chat: ChatOpenAI) -> None:
    """What only this server knows goes through `extra_body`; structured output through `response_format`."""
    bare = chat.model_copy(update={"extra_body": {"outrider": {"drafter": "none", "timings": True}}})
    assert bare.invoke("Hello").content == chat.invoke("Hello").content

    class Answer(BaseModel):
        """A document of one field."""

        right: bool

    long = chat.model_copy(update={"max_tokens": 200})
    told = long.with_structured_output(Answer, method="json_schema").invoke("Is it?")
    assert isinstance(told, Answer)


def test_langchain_completions(server: Server, tiny: outrider.Outrider) -> None:
    """The older class continues a text."""
    llm = OpenAI(model=NAME, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=12)
    assert llm.invoke("Hello") == tiny.generate("Hello", max_new_tokens=12).text


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Server, tiny: outrider.Outrider) -> None:
    """As docs/serving.md shows it, streamed."""
    body = {"model": NAME, "messages": CHAT, "max_tokens": 24, "temperature": 0.8, "seed": 3, "stream": True}
    command = ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    ran = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, text=True, timeout=120, check=True)
    events = [line.removeprefix("data: ") for line in ran.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert text == tiny.generate(CHAT, sampling=SAMPLING, max_new_tokens=24).text
