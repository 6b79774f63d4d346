"""`response_format`: documents that fit a schema, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from serving_tiny import NAME, Ask

pytest.importorskip("llguidance")
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "A cat, please."}], "max_tokens": 90}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "cat", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("drafter", ["model:tiny", "lookup:3", "none"])
def test_documents_fit_the_schema(client: openai.OpenAI, drafter: str) -> None:
    """Several answers, each with a state of its own, and the same ones whatever drafts."""
    answer = client.chat.completions.create(
        **CHAT, n=3, seed=5, response_format=FORMAT, extra_body={"outrider": {"drafter": drafter}}
    )
    documents = [json.loads(choice.message.content or "") for choice in answer.choices]
    assert all(set(found) == {"name", "age"} and len(found["name"]) <= 6 for found in documents)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    plain = client.chat.completions.create(
        **CHAT, n=3, seed=5, response_format=FORMAT, extra_body={"outrider": {"drafter": "none"}}
    )
    assert [choice.message.content for choice in plain.choices] == [choice.message.content for choice in answer.choices]


def test_streams_and_plain_objects(client: openai.OpenAI) -> None:
    """A stream joins to a document; `json_object` is any object; `text` is what there is anyway."""
    chunks = client.chat.completions.create(**CHAT, seed=6, response_format=FORMAT, stream=True)
    assert set(json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks))) == {"name", "age"}
    free = client.chat.completions.create(**CHAT, seed=7, response_format={"type": "json_object"})
    assert (free.choices[0].message.content or "").lstrip().startswith("{")
    texts = [
        client.chat.completions.create(**CHAT, seed=8, **options).choices[0].message.content
        for options in ({}, {"response_format": {"type": "text"}})
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "param", "word"),
    [
        ({"response_format": FORMAT | {"json_schema": {"name": "x", "schema": {"type": "no"}}}}, None, "Invalid"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "'json_schema'"),
        ({"response_format": FORMAT, "min_tokens": 5}, "min_tokens", "leave this field out"),
        ({"response_format": FORMAT, "ignore_eos": True}, "ignore_eos", "leave this field out"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(ask: Ask, change: dict[str, Any], param: str | None, word: str) -> None:
    """400, and the field by name."""
    response = ask("/v1/chat/completions", CHAT | change)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param or "response_format")
    assert word in error["message"]
