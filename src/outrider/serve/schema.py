"""What a request may say: OpenAI's fields that mean something here, and a few more. Anything else is refused by name.

`null` is as good as nothing. Names and ranges are OpenAI's; `top_k`, `min_p`, `repetition_penalty`, `min_tokens` and
`ignore_eos` are those of vLLM's server. Knows no models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

LONGEST_POLICY = 64  # characters
MOST_CHOICES = 128
MOST_STOPS, LONGEST_STOP = 16, 1024
MOST_BIASES = 1024


def _unicode(text: str) -> str:
    """Text that can be written down: JSON can escape halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is no valid Unicode text") from None
    return text


def _wrong(field: str, reason: str) -> PydanticCustomError:
    """A field that does not go with the others."""
    return PydanticCustomError("value_error", "{reason}", {"param": field, "reason": reason})


Text = Annotated[str, AfterValidator(_unicode)]
Stop = Annotated[Text, Field(min_length=1, max_length=LONGEST_STOP)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Token = Annotated[int, Field(strict=False, ge=0, lt=1 << 31)]  # JSON's keys are strings


class Body(BaseModel):
    """Strict: a value of another type is refused, as is a field that is not known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Names with halves of characters are made readable, or pydantic could not say that they are unknown."""
        if not isinstance(data, dict):
            return data
        return {name.encode(errors="replace").decode(): value for name, value in data.items() if value is not None}


class TextPart(Body):
    """A piece of a message; other kinds of content are not supported."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(min_length=1)]


def plain(content: str | list[TextPart]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Content


class Prediction(Body):
    """Text that the caller expects in the answer."""

    type: Literal["content"]
    content: Content


class StreamOptions(Body):
    """What a stream tells besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Body):
    """A schema that the answer has to fit."""

    name: str = Field(default="", max_length=64)
    description: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = True


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _wrong("response_format", "'json_schema' goes with the type 'json_schema', and only with that")
        return self


class Extras(Body):
    """What only this server offers, under "outrider".

    Attributes:
        drafter: one that the server was started with, or "none" for plain decoding.
        policy: how long to draft, such as "fixed:4".
        trace: tell every round: what was drafted, what became of it.
        metrics: tell acceptance as vLLM does, under `metrics.speculative_decoding`.
        timings: tell times and drafts as llama-server does, under `timings`.
    """

    drafter: str | None = Field(default=None, max_length=1024)
    policy: str | None = Field(default=None, max_length=LONGEST_POLICY)
    trace: bool = False
    metrics: bool = False
    timings: bool = False


class Generation(Body):
    """What both endpoints share."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    logit_bias: dict[Token, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=MOST_BIASES
    )
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat = ResponseFormat(type="text")
    outrider: Extras = Extras()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.temperature < 0.01:
            raise _wrong("temperature", "between 0 and 0.01 it is past float's reach, take 0 for greedy decoding")
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options", "it needs 'stream': true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def limit(self) -> int | None:
        """How many tokens may be written, if the caller says."""
        return self.max_tokens

    @property
    def thoughts(self) -> int | None:
        """How many likely tokens are to be listed beside each; None for no log-probabilities at all."""
        raise NotImplementedError


class ChatRequest(Generation):
    """`/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise _wrong("top_logprobs", "it needs 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise _wrong("max_tokens", "it differs from 'max_completion_tokens', leave one of them out")
        return self

    @property
    def limit(self) -> int | None:
        """See `Generation`."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def thoughts(self) -> int | None:
        """See `Generation`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generation):
    """`/v1/completions`."""

    prompt: Text | Annotated[list[Text], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)]
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def thoughts(self) -> int | None:
        """See `Generation`."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class ErrorDetail(BaseModel):
    """What went wrong: OpenAI's fields, and the request's id."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class ErrorDocument(BaseModel):
    """What a client gets instead of an answer."""

    error: ErrorDetail
