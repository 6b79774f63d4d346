"""From rounds to what clients read: whole answers and pieces of streams, in OpenAI's shapes. Knows no models.

Everything that is counted comes from the rounds (`stats.Stats`), so usage, traces and metrics cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

from ..api import Outrider
from ..stats import Stats
from ..trace import Painter, as_json
from ..types import FinishReason, Logprob, Round
from .prepare import Plan
from .schema import ChatRequest, CompletionRequest
from .tokens import TokenTexts
from .worker import Job, Wrote

_LEAST = -9999.0  # a log-probability of minus infinity, which JSON does not know
Json = dict[str, Any]


@dataclass(slots=True)
class _Written:
    """One of the answers so far."""

    text: str = ""
    rounds: list[Round] = field(default_factory=list)
    told: list[Json] = field(default_factory=list)  # rounds as the trace has them
    finish: FinishReason | None = None
    last: float = 0.0
    opened: bool = False  # a stream has said whose words these are


class Answer:
    """What a request has got so far.

    Args:
        body: what was asked.
        plan: the rows that it came to.
        jobs: those rows, in the same order.
        llm: the model in force.
        name: of the model, as clients say it.
        tokens: what tokens look like.
        ident: of the request.
        report: tell acceptance and timings whether asked or not.
    """

    def __init__(
        self,
        body: ChatRequest | CompletionRequest,
        plan: Plan,
        jobs: Sequence[Job],
        llm: Outrider,
        name: str,
        tokens: TokenTexts,
        ident: str,
        *,
        report: bool = False,
    ) -> None:
        self._body, self._plan, self._jobs, self._llm, self._tokens = body, plan, jobs, llm, tokens
        self._chat = isinstance(body, ChatRequest)
        self._written = [_Written() for _ in jobs]
        self._painters = [Painter(llm.tokenizer) for _ in jobs] if body.outrider.trace else []
        self._metrics, self._timings = report or body.outrider.metrics, report or body.outrider.timings
        prefix, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self._about: Json = {"id": f"{prefix}-{ident.removeprefix('req-')}", "created": int(time()), "model": name}
        self._kinds = (kind, f"{kind}.chunk" if self._chat else kind)

    @property
    def done(self) -> bool:
        """Whether every answer has ended."""
        return all(written.finish is not None for written in self._written)

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return sum(len(round_.tokens) for written in self._written for round_ in written.rounds)

    def take(self, index: int, event: Wrote) -> Json | None:
        """Take note of a round; what a stream says of it, or None where that is nothing yet."""
        written, round_ = self._written[index], event.round
        before = len(written.text)
        written.text += event.text
        written.rounds.append(round_)
        written.finish, written.last = event.finish, event.at
        traced = self._trace(index, event) if self._painters else None
        if not self._body.stream:
            return None
        if not (event.text or event.finish or traced or round_.logprobs):
            return None
        choice = self._piece(index, event, before)
        if traced is not None:
            choice["outrider"] = {"round": traced}
        chunk = self._chunk([choice])
        options = self._body.stream_options
        if options is not None and options.include_usage:
            chunk["usage"] = self.usage() if options.continuous_usage_stats else None
        elif self.done:
            chunk |= self._extras()
        return chunk

    def closing(self) -> list[Json]:
        """What a stream ends with: the usage, where it was asked for."""
        options = self._body.stream_options
        if options is None or not options.include_usage:
            return []
        return [{**self._chunk([]), "usage": self.usage(), **self._extras()}]

    def whole(self) -> Json:
        """The answer of a request without a stream."""
        choices = []
        for index, written in enumerate(self._written):
            thoughts = [thought for round_ in written.rounds for thought in round_.logprobs]
            ids = [token for round_ in written.rounds for token in round_.tokens]
            choice: Json = {"index": index, "finish_reason": written.finish}
            if self._chat:
                choice["message"] = {"role": "assistant", "content": written.text, "refusal": None}
            else:
                choice["text"] = written.text
            choice["logprobs"] = self._logprobs(ids, thoughts, 0)
            if self._painters:
                choice["outrider"] = {"rounds": written.told, "stats": Stats.of(written.rounds).as_dict()}
            choices.append(choice)
        return {**self._about, "object": self._kinds[0], "choices": choices, "usage": self.usage(), **self._extras()}

    def usage(self) -> Json:
        """Tokens read and written. Drafts count as a prediction's where there was one: its drafter follows nothing
        else."""
        rounds = [round_ for written in self._written for round_ in written.rounds]
        stats = Stats.of(rounds if self._body.prediction is not None else [])
        reused = max((job.reused for job in self._jobs), default=0) if len(self._jobs) == self._body.n else 0
        return {
            "prompt_tokens": self._plan.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self._plan.prompt_tokens + self.tokens,
            "prompt_tokens_details": {"cached_tokens": reused},
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.drafted - stats.accepted,
            },
        }

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._about, "object": self._kinds[1], "choices": choices}

    def _piece(self, index: int, event: Wrote, before: int) -> Json:
        """One choice of a chunk; `before` characters of it have been told."""
        written = self._written[index]
        thoughts = self._logprobs(event.round.tokens, event.round.logprobs, before)
        choice: Json = {"index": index, "logprobs": thoughts, "finish_reason": event.finish}
        if not self._chat:
            return {**choice, "text": event.text}
        opening = {} if written.opened else {"role": "assistant", "content": ""}
        written.opened = True
        return {**choice, "delta": {**opening, "content": event.text} if event.text else opening}

    def _extras(self) -> Json:
        """What is told once, with the last that is said: how this was made, and what was asked for besides."""
        told: Json = {
            "outrider": {
                "seed": self._plan.requests[0].seed,
                "drafter": self._plan.choice.name,
                "policy": self._plan.choice.policy,
                "verifier": self._llm.verifier.spec,
                "lossless": self._llm.verifier.lossless,
                "exactness": self._llm.exactness,
            }
        }
        if len(self._jobs) > 1:
            told["outrider"]["seeds"] = [request.seed for request in self._plan.requests]
        if self._painters and self._body.stream:
            told["outrider"]["stats"] = [Stats.of(written.rounds).as_dict() for written in self._written]
        if not self._llm.verifier.lossless:
            stats = Stats.of([round_ for written in self._written for round_ in written.rounds]).as_dict()
            told["outrider"] |= {"mean_tv": stats["mean_tv"], "mean_kl": stats["mean_kl"]}
        if self._metrics:
            told["metrics"] = {
                "speculative_decoding": acceptance(self._written[0].rounds) if len(self._jobs) == 1 else None
            }
        if self._timings and len(self._jobs) == 1:
            told["timings"] = self._timing(self._jobs[0], self._written[0])
        return told

    @staticmethod
    def _timing(job: Job, written: _Written) -> Json:
        """Names and units are llama-server's."""
        stats = Stats.of(written.rounds)
        read = len(job.request.prompt) - job.reused
        reading, writing = job.ready - job.started, written.last - job.ready
        return {
            "cache_n": job.reused,
            "prompt_n": read,
            "prompt_ms": reading * 1e3,
            "prompt_per_second": read / reading if reading else None,
            "predicted_n": stats.tokens,
            "predicted_ms": writing * 1e3,
            "predicted_per_token_ms": writing * 1e3 / stats.tokens,
            "predicted_per_second": stats.tokens / writing if writing else None,
            "draft_n": stats.drafted,
            "draft_n_accepted": stats.accepted,
        }

    def _trace(self, index: int, event: Wrote) -> Json:
        """A round as the trace has it: with its text by origin, and the text of every drafted token."""
        round_ = event.round
        spans = self._painters[index].paint(event.text, round_)
        drafted = [self._tokens.text(token) for token in round_.tree.tokens[1:].tolist()]
        told = {**as_json(round_), "request": index, "spans": spans, "draft_texts": drafted}
        if not self._body.stream:
            self._written[index].told.append(told)
        return told

    def _logprobs(self, ids: Sequence[int], thoughts: Sequence[Logprob], before: int) -> Json | None:
        if self._body.thoughts is None:
            return None
        pairs = list(zip(ids, thoughts, strict=True))
        if self._chat:
            return {"content": [self._thought(token, thought) for token, thought in pairs], "refusal": None}
        texts = [self._tokens.text(token) for token in ids]
        tops = [{self._tokens.text(token): _finite(value) for token, value in thought.top} for thought in thoughts]
        return {
            "tokens": texts,
            "token_logprobs": [_finite(thought.own) for thought in thoughts],
            "top_logprobs": tops if self._body.thoughts else None,
            "text_offset": [before + sum(map(len, texts[:place])) for place in range(len(texts))],
        }

    def _thought(self, token: int, thought: Logprob) -> Json:
        top = [self._named(likely, value) for likely, value in thought.top]
        return {**self._named(token, thought.own), "top_logprobs": top}

    def _named(self, token: int, value: float) -> Json:
        return {"token": self._tokens.text(token), "logprob": _finite(value), "bytes": self._tokens.bytes(token)}


def acceptance(rounds: Sequence[Round]) -> Json:
    """One request's acceptance in the names of vLLM's `metrics.speculative_decoding`; `num_spec_tokens` is the longest
    draft, for there is no fixed length."""
    stats = Stats.of(rounds)
    lengths = Counter(round_.accepted for round_ in rounds if round_.drafted)
    return {
        "mean_acceptance_length": stats.acceptance_length,
        "draft_acceptance_rate": stats.acceptance_rate,
        "acceptance_histogram": [lengths[length] for length in range(max(lengths, default=-1) + 1)],
        "num_spec_steps": lengths.total(),
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": max((round_.drafted for round_ in rounds), default=0),
    }


def _finite(value: float) -> float:
    return max(value, _LEAST)
