"""From a request's body to rows of the loop; whatever cannot work is refused here, before any work. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..encoder_decoder import EncoderDecoderTarget
from ..errors import UsageError
from ..noise import fresh_seed
from ..row import Request
from ..sampling import Sampling
from ..sources import addressed, words
from ..text import Prompt, encode, encode_prediction
from .choices import Choice
from .faults import Fault, refused
from .schema import ChatRequest, CompletionRequest, Generation, plain
from .service import Model, Service


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows that a request asks for.

    Attributes:
        choice: how to draft for them.
        requests: one per answer: those of the first prompt, then those of the next.
        slots: of the cache, for each of them.
        per_slot: bytes of one.
        prompt_tokens: of all prompts together, each counted once.
    """

    choice: Choice
    requests: tuple[Request, ...]
    slots: tuple[int, ...]
    per_slot: int
    prompt_tokens: int


def plan(service: Service, model: Model, body: ChatRequest | CompletionRequest) -> Plan:
    """What a request asks for.

    Raises:
        Fault: it cannot be served; the message says why, and names the field.
    """
    if body.model != service.name:
        raise Fault(
            404, f"There is no model of that name here: it is {service.name!r}.", param="model", code="model_not_found"
        )
    extras, predicted = body.outrider, body.prediction is not None
    with about("outrider.policy" if extras.drafter is None else "outrider.drafter"):
        choice = model.choices.pick(extras.drafter, extras.policy, predicted=predicted)
    expected: tuple[int, ...] = ()
    if body.prediction is not None:
        with about("prediction"):
            expected = encode_prediction(model.tokenizer, plain(body.prediction.content), encoded=model.llm.encodes)
    with about("prediction"):
        choice.drafter.check_prediction(expected)
    schema = _schema(model, body)
    prompts = list(_prompts(model, body))
    rows = len(prompts) * body.n
    if rows > service.limits.max_batch + service.limits.max_queue:
        raise Fault(400, f"This asks for {rows} answers, more than the queue can ever hold.", param="n")
    requests = [
        request for ids, words in prompts for request in _requests(service, model, body, ids, words, expected, schema)
    ]
    slots, per_slot = seats(model, choice, requests)
    return Plan(choice, tuple(requests), slots, per_slot, sum(len(ids) for ids, _ in prompts))


def seats(model: Model, choice: Choice, requests: Sequence[Request]) -> tuple[tuple[int, ...], int]:
    """The slots that each request takes, and the bytes of one.

    Raises:
        Fault: one of them never fits.
    """
    room = model.worker.room
    slots = tuple(
        room.slots(len(request.prompt) + request.max_new_tokens) + room.source_slots(request.source)
        for request in requests
    )
    per_slot = room.per_slot(choice.token_bytes)
    if not room.fits([(max(slots), per_slot)]):
        raise Fault(
            400,
            f"A request of this length needs {room.needed([(max(slots), per_slot)]) >> 20} MiB for its keys and values "
            f"and this server has {room.budget >> 20}: ask for fewer tokens.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return slots, per_slot


@contextmanager
def about(param: str) -> Iterator[None]:
    """What the caller can put right is about this field."""
    try:
        yield
    except UsageError as error:
        raise refused(error, param) from None


def _prompts(model: Model, body: ChatRequest | CompletionRequest) -> Iterator[tuple[list[int], list[int]]]:
    """Ids of each prompt, and the same as an encoder-decoder model would write it."""
    if isinstance(body, ChatRequest):
        messages: Prompt = [{"role": turn.role, "content": plain(turn.content)} for turn in body.messages]
        with about("messages"):
            yield encode(model.tokenizer, messages), []
        return
    for prompt in body.prompts:
        with about("prompt"):
            yield encode(model.tokenizer, prompt), words(model.tokenizer, prompt) if model.llm.encodes else []


def _schema(model: Model, body: Generation) -> Any:
    """The compiled schema that the answers have to fit; None for text."""
    wanted = body.response_format
    if wanted.type == "text":
        return None
    if model.llm.encodes:
        reason = "An encoder-decoder model has first and last tokens of its own, which no schema knows."
        raise Fault(400, reason, param="response_format", code="unsupported")
    for name in ("min_tokens", "ignore_eos"):
        if getattr(body, name):
            raise Fault(400, "A JSON document ends where it is complete: leave this field out.", param=name)
    if model.llm.verifier.needs_probs:
        reason = (
            f"Under the verifier {model.llm.verifier.spec!r} tokens of the drafter's get in, whatever the schema says."
        )
        raise Fault(400, reason, param="response_format", code="unsupported")
    with about("response_format"):
        return model.grammars().compile(wanted.json_schema.schema_ if wanted.json_schema else {"type": "object"})


def _requests(
    service: Service,
    model: Model,
    body: Generation,
    ids: list[int],
    words: list[int],
    expected: tuple[int, ...],
    schema: Any,
) -> Iterator[Request]:
    """The answers to one prompt. Answer i of n has the seed `seed + i`, so that each can be had again alone."""
    target = model.llm.target
    length = _length(service, model, body, len(target.start) if isinstance(target, EncoderDecoderTarget) else len(ids))
    seed = fresh_seed() if body.seed is None else body.seed
    sampling = Sampling(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        min_new_tokens=body.min_tokens,
    )
    with about("logit_bias"):
        sampling.check(model.llm.target.vocabulary)
    for index in range(body.n):
        if schema is not None:  # which keeps its own state
            sampling = replace(sampling, processors=(model.grammars().start(schema, len(ids)),))
        request = Request(
            tuple(ids), sampling, seed + index, length, body.stops, expected, body.thoughts, body.ignore_eos
        )
        with about("messages" if isinstance(body, ChatRequest) else "prompt"):
            if model.llm.encodes:
                request = addressed(model.llm.target, request, words)
            request.check(model.llm.target.context, model.llm.target.vocabulary)
        yield request


def _length(service: Service, model: Model, body: Generation, prompt: int) -> int:
    """How many tokens the answer may have: as many as asked for; if nothing is said, as many as the server allows."""
    most, room = service.limits.max_tokens, model.llm.target.context - prompt
    if room < 1:
        return 1  # the prompt alone is too long, which is said elsewhere
    asked = body.limit
    if asked is not None and asked > most:
        raise Fault(400, f"This server writes at most {most} tokens and {asked} are asked for.", param="max_tokens")
    if asked is not None and asked > room:
        raise Fault(
            400,
            f"The context holds {model.llm.target.context} tokens, the prompt has {prompt} and the answer may have "
            f"{asked}: shorten one of them.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    length = min(most, room) if asked is None else asked
    if body.min_tokens > length:
        raise Fault(400, f"min_tokens is {body.min_tokens} and the answer has {length} at most.", param="min_tokens")
    return length
