"""The server as OpenAI's own client sees it: every answer is what the library writes for the same seed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from serving_tiny import NAME, Ask

import outrider
from outrider import Sampling

CHAT = [{"role": "user", "content": "Name three rivers."}]


def expected(
    llm: outrider.Outrider, prompt: Any = CHAT, tokens: int = 24, stop: Any = None, **sampling: Any
) -> outrider.Output:
    """What the library writes; the server is idle meanwhile."""
    chosen = Sampling(**{"temperature": 1.0, **sampling})
    return llm.generate(prompt, sampling=chosen, max_new_tokens=tokens, stop=stop)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}])
def test_a_chat_is_what_generate_writes(
    client: openai.OpenAI, tiny: outrider.Outrider, sampling: dict[str, Any], stream: bool
) -> None:
    """Whole or as a stream."""
    right = expected(tiny, **sampling)
    options: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 24, **sampling}
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        assert chunks[0].choices[0].delta.role == "assistant"
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk.id for chunk in chunks}) == 1
        assert len(chunks) > 2, "it comes in pieces"
        text, finish = (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            chunks[-1].choices[0].finish_reason,
        )
    else:
        answer = client.chat.completions.create(**options)
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert answer.usage.completion_tokens == len(right.token_ids)
        assert answer.usage.prompt_tokens == len(right.prompt_ids)
        assert answer.usage.total_tokens == len(right.token_ids) + len(right.prompt_ids)
    assert (text, finish) == (right.text, right.finish_reason)


def test_company_changes_nothing(client: openai.OpenAI, tiny: outrider.Outrider) -> None:
    """A dozen different requests at once: each is its own run alone, whatever else is in the batch."""
    prompts = ["One", "Here are three words and more"]
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.3, "seed": 5, "frequency_penalty": 0.7},
        {"temperature": 0.9, "seed": 11, "extra_body": {"outrider": {"drafter": "none"}}},
        {"temperature": 0.7, "seed": 2, "extra_body": {"outrider": {"policy": "fixed:9"}}},
        {"temperature": 1.0, "seed": 3, "extra_body": {"outrider": {"drafter": "lookup:3"}}},
        {"temperature": 1.0, "seed": 3, "extra_body": {"outrider": {"policy": "goodput"}}},
    ]
    asked = [(prompt, setting) for setting in settings for prompt in prompts]
    rights = [
        expected(tiny, prompt, 20 + place, **{k: v for k, v in setting.items() if k != "extra_body"}).text
        for place, (prompt, setting) in enumerate(asked)
    ]

    def one(place: int) -> str:
        prompt, setting = asked[place]
        return client.completions.create(model=NAME, prompt=prompt, max_tokens=20 + place, **setting).choices[0].text

    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(one, range(len(asked)))) == rights


def test_several_answers_have_seeds_of_their_own(client: openai.OpenAI, tiny: outrider.Outrider) -> None:
    """Answer i of n is what seed + i gives, for every prompt of several; a stream tells them apart by their index."""
    prompts = ["One", "Two words"]
    rights = [expected(tiny, prompt, 8, seed=40 + place).text for prompt in prompts for place in range(3)]
    options: dict[str, Any] = {"model": NAME, "prompt": prompts, "max_tokens": 8, "n": 3, "seed": 40}
    whole = client.completions.create(**options)
    assert [choice.text for choice in whole.choices] == rights
    assert [choice.index for choice in whole.choices] == list(range(6))
    texts = [""] * 6
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == rights
    assert whole.usage is not None and whole.usage.completion_tokens == 48


def test_prompts_of_ids(client: openai.OpenAI, tiny: outrider.Outrider) -> None:
    """Ids are taken as they are."""
    ids = [504, 2365, 6354]
    right = expected(tiny, ids, 8, temperature=0.0).text
    assert client.completions.create(model=NAME, prompt=ids, max_tokens=8, temperature=0).choices[0].text == right
    both = client.completions.create(model=NAME, prompt=[ids, [7]], max_tokens=8, temperature=0)
    assert both.choices[0].text == right and len(both.choices) == 2


FEW = {504: 90.0, 2365: 90.0, 6354: 90.0, 7750: 90.0}  # tokens that are made likely, so that they come again and again
SAMPLINGS: list[dict[str, Any]] = [
    {"top_k": 2},
    {"min_p": 0.9},
    {"top_p": 0.3},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"logit_bias": {504: 91.0, 2365: 90.0}},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: "+".join(sampling))
def test_sampling_options_do_what_they_do_in_the_library(
    client: openai.OpenAI, tiny: outrider.Outrider, sampling: dict[str, Any]
) -> None:
    """Each changes something, and the same thing."""
    sampling = {"logit_bias": FEW, **sampling}
    right = expected(tiny, seed=9, temperature=0.9, **sampling).text
    assert right != expected(tiny, seed=9, temperature=0.9, logit_bias=FEW).text, "this case would show nothing"
    theirs = {"top_k", "min_p", "repetition_penalty"}
    named = {name: value for name, value in sampling.items() if name not in theirs}
    extra = {name: value for name, value in sampling.items() if name in theirs}
    answer = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=24, seed=9, temperature=0.9, **named, extra_body=extra
    )
    assert answer.choices[0].message.content == right


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(client: openai.OpenAI, tiny: outrider.Outrider, stream: bool) -> None:
    """The text ends before it, in a stream as well: nothing of it slips out."""
    plain = expected(tiny, seed=1).text
    stop = plain[len(plain) // 2 : len(plain) // 2 + 6]
    right = expected(tiny, seed=1, stop=stop)
    assert right.finish_reason == "stop" and right.text == plain[: plain.index(stop)]
    options: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 24, "seed": 1, "stop": [stop]}
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        text, finish = (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            chunks[-1].choices[0].finish_reason,
        )
    else:
        choice = client.chat.completions.create(**options).choices[0]
        text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == (right.text, "stop")


def test_eos_minimum_and_ignoring_it(client: openai.OpenAI, tiny: outrider.Outrider) -> None:
    """EOS is made likely: it ends the answer, not before `min_tokens`, and not at all where it is ignored."""
    (eos,) = tiny.target.eos
    options: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 9, "logit_bias": {eos: 100}}
    for extra, tokens, finish in (
        ({}, 1, "stop"),
        ({"min_tokens": 4}, 5, "stop"),
        ({"ignore_eos": True}, 9, "length"),
    ):
        answer = client.chat.completions.create(**options, extra_body=extra)
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (tokens, finish)


def test_logprobs_of_a_chat(client: openai.OpenAI, tiny: outrider.Outrider) -> None:
    """One entry per token, whose bytes make the text; the same with and without speculation, whole or streamed."""
    options: dict[str, Any] = {
        "model": NAME, "messages": CHAT, "max_tokens": 12, "seed": 4, "logprobs": True, "top_logprobs": 3
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0]
    plain = client.chat.completions.create(**options, extra_body={"outrider": {"drafter": "none"}}).choices[0]
    assert whole.logprobs is not None and plain.logprobs is not None
    entries = whole.logprobs.content
    assert entries is not None and len(entries) == 12
    assert bytes(byte for entry in entries for byte in entry.bytes or []).decode() == whole.message.content
    assert entries == plain.logprobs.content, "bit by bit"
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        values = [likely.logprob for likely in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and entry.logprob <= values[0]
    streamed = [
        entry
        for chunk in client.chat.completions.create(**options, stream=True)
        for entry in (chunk.choices[0].logprobs.content or [])  # type: ignore[union-attr]
    ]
    assert streamed == entries


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    """The older shape, with where each token begins."""
    choice = client.completions.create(model=NAME, prompt="One", max_tokens=6, seed=4, logprobs=2).choices[0]
    found = choice.logprobs
    assert found is not None and found.tokens is not None and found.text_offset is not None
    assert "".join(found.tokens) == choice.text
    assert [choice.text[start:] for start in found.text_offset] == [
        "".join(found.tokens[place:]) for place in range(len(found.tokens))
    ]
    assert found.token_logprobs is not None and all(value < 0 for value in found.token_logprobs)
    assert found.top_logprobs is not None and {len(top) for top in found.top_logprobs} == {2}
    none = client.completions.create(model=NAME, prompt="One", max_tokens=6, seed=4, logprobs=0).choices[0].logprobs
    assert none is not None and none.token_logprobs == found.token_logprobs and none.top_logprobs is None


def test_usage_in_streams(client: openai.OpenAI) -> None:
    """At the end where it is asked for, and in every chunk where that is asked for too."""
    options: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 12, "stream": True}
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**options))
    *chunks, last = client.chat.completions.create(**options, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == 12
    always = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        chunk.usage.completion_tokens for chunk in client.chat.completions.create(**options, stream_options=always)
    ]
    assert counts == sorted(counts) and counts[0] < 12 and counts[-1] == 12


@pytest.mark.parametrize("content", ["text", "parts"])
def test_a_prediction_is_followed_and_counted(client: openai.OpenAI, tiny: outrider.Outrider, content: str) -> None:
    """The text is the same; drafts of the prediction are told apart by what became of them."""
    right = expected(tiny, tokens=30, seed=6).text
    told: Any = (
        right if content == "text" else [{"type": "text", "text": right[:9]}, {"type": "text", "text": right[9:]}]
    )
    options: dict[str, Any] = {"model": NAME, "messages": CHAT, "max_tokens": 30, "seed": 6}
    answer = client.chat.completions.create(**options, prediction={"type": "content", "content": told})
    assert answer.choices[0].message.content == right
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= 20 and answer.model_extra["outrider"]["drafter"] == "reference"
    wrong = client.chat.completions.create(**options, prediction={"type": "content", "content": "The Rhine, the Po."})
    assert wrong.choices[0].message.content == right
    assert wrong.usage.completion_tokens_details.rejected_prediction_tokens > 0
    assert wrong.usage.completion_tokens_details.accepted_prediction_tokens == 0


def rounds_of(client: openai.OpenAI, **extras: Any) -> tuple[list[dict[str, Any]], Any]:
    """The traced rounds of one answer, and the answer."""
    answer = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=23, seed=8, extra_body={"outrider": {"trace": True, **extras}}
    )
    return answer.choices[0].model_extra["outrider"]["rounds"], answer


def test_speculation_is_switched_per_request(client: openai.OpenAI) -> None:
    """Drafter and policy, and the trace shows that they are in force; the text is the same every time."""
    texts = []
    for extras, drafted in (
        ({}, 4),
        ({"drafter": "none"}, 0),
        ({"policy": "fixed:2"}, 2),
        ({"policy": "fixed:2,6"}, 6),
    ):
        rounds, answer = rounds_of(client, **extras)
        assert len(rounds[0]["draft_tokens"]) == drafted
        assert all(len(told["draft_tokens"]) <= drafted for told in rounds)
        texts.append(answer.choices[0].message.content)
    assert len(set(texts)) == 1


def test_a_trace_tells_where_each_piece_of_text_came_from(client: openai.OpenAI) -> None:
    """Spans join to the text, origins are those of the tokens, drafts are told in words; streamed as well."""
    rounds, answer = rounds_of(client)
    text = answer.choices[0].message.content
    assert "".join(piece for told in rounds for piece, _ in told["spans"]) == text
    assert {origin for told in rounds for _, origin in told["spans"]} == {"accepted", "bonus"}
    for told in rounds:
        assert [origin for _, origin in told["spans"]] == told["origins"]
        assert len(told["draft_texts"]) == len(told["draft_tokens"])
    chunks = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=23, seed=8, stream=True, extra_body={"outrider": {"trace": True}}
    )
    streamed = [chunk.choices[0].model_extra["outrider"]["round"] for chunk in chunks]  # type: ignore[index]
    timing = {"draft_seconds", "verify_seconds"}
    assert [{k: v for k, v in told.items() if k not in timing} for told in streamed] == [
        {k: v for k, v in told.items() if k not in timing} for told in rounds
    ]


def test_acceptance_and_timings_are_told_when_asked(client: openai.OpenAI) -> None:
    """In the shapes of vLLM and llama-server, and equal to what the rounds say."""
    rounds, answer = rounds_of(client, metrics=True, timings=True)
    told = answer.model_extra["metrics"]["speculative_decoding"]
    drafts = [one for one in rounds if one["draft_tokens"]]
    accepted = [len(one["path"]) - 1 for one in drafts]
    assert told["num_spec_steps"] == len(drafts) and told["num_spec_tokens"] == 4
    assert told["num_draft_tokens"] == sum(len(one["draft_tokens"]) for one in drafts)
    assert told["num_accepted_draft_tokens"] == sum(accepted)
    assert told["acceptance_histogram"] == [accepted.count(j) for j in range(max(accepted) + 1)]
    assert told["mean_acceptance_length"] == pytest.approx(sum(len(one["tokens"]) for one in drafts) / len(drafts))
    timings = answer.model_extra["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (told["num_draft_tokens"], sum(accepted))
    assert timings["predicted_n"] == 23 and timings["predicted_ms"] > 0
    assert timings["prompt_n"] + timings["cache_n"] == answer.usage.prompt_tokens
    _, silent = rounds_of(client)
    assert not {"metrics", "timings"} & set(silent.model_extra)


def test_what_is_in_force_is_told_with_every_answer(client: openai.OpenAI) -> None:
    """Seed, drafter, policy, rule; and the same seed gives the same text again."""
    first = client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=12)
    about = first.model_extra["outrider"]
    assert about | {"seed": 0} == {
        "seed": 0,
        "drafter": "model:tiny",
        "policy": "fixed:4",
        "verifier": "match",
        "lossless": True,
        "exactness": "bits",
    }
    again = client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=12, seed=about["seed"])
    assert again.choices[0].message.content == first.choices[0].message.content


def test_a_chats_next_turn_starts_from_the_last(client: openai.OpenAI) -> None:
    """Usage says how much of the prompt was known."""
    turn = [{"role": "user", "content": "Tell me about the Danube and the countries that it flows through."}]
    client.chat.completions.create(model=NAME, messages=turn, max_tokens=4)
    answer = client.chat.completions.create(model=NAME, messages=turn, max_tokens=4)
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_models(client: openai.OpenAI, ask: Ask) -> None:
    """What is served, and with what."""
    (model,) = client.models.list().data
    assert model == client.models.retrieve(NAME)
    assert (model.id, model.owned_by) == (NAME, "outrider")
    about = model.model_extra["outrider"]
    assert about["drafters"] == ["model:tiny", "lookup:3", "none"]
    assert (about["verifier"], about["policy"], about["context"]) == ("match", "fixed:4", 512)
    assert ask("/v1/models/another").status_code == 404


def test_a_stream_on_the_wire(ask: Ask) -> None:
    """Server-sent events that end with [DONE], as curl shows them."""
    body = {"model": NAME, "messages": CHAT, "max_tokens": 6, "stream": True}
    response = ask("/v1/chat/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last, nothing = response.text.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events)


def test_health_and_readiness(ask: Ask) -> None:
    """Both are public, and well."""
    assert (ask("/health").status_code, ask("/health").json()) == (200, {"status": "ok"})
    assert (ask("/ready").status_code, ask("/ready").json()) == (200, {"status": "ready"})
