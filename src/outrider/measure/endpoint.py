"""The same measurement against a server: any that speaks OpenAI's streamed chat completions. Knows no models.

What came with an event is counted in tokens: by the usage that the event itself carries where the server does that
(vLLM and ours do: `continuous_usage_stats`), else by sharing the usage of the whole answer out over the events by the
length of their text, which is an estimate, else as one token an event.

A server's speculation is seen through its counters: those of vLLM at `/metrics`
(https://docs.vllm.ai/en/stable/design/metrics/), read before and after each batch, which has the server to itself only
if nobody else asks it; or llama.cpp's `timings.draft_n` and `timings.draft_n_accepted` of each answer.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from ..errors import BadOption
from .prompts import BenchPrompt
from .results import Case, Sample, ServerCounters
from .runner import WARM_UP, Plan, Turn

if TYPE_CHECKING:
    import httpx2

_PREFIX = "spec_decode_num_"
_CONNECT, _SILENCE = 10.0, 600.0  # seconds to wait for a connection, and between two events
Counting = Literal["told", "shared", "events"]


@dataclass(slots=True)
class Stream:
    """One answer as it came.

    Attributes:
        arrivals: (seconds from the start, tokens) for each event with text.
        texts: of these events.
        counting: how tokens were counted; see the module.
        prompt_tokens: as the server counts them; 0 if it does not tell.
        finish: its reason to stop.
        timings: llama.cpp's, if it is that.
        seconds: until the last event.
    """

    arrivals: list[tuple[float, int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counting: Counting = "events"
    prompt_tokens: int = 0
    finish: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Endpoint:
    """A server.

    Args:
        url: of the server or of its API ("http://host:8000" or "http://host:8000/v1").
        model: its name there; by default the first one that the server lists.
        key_variable: the environment variable that holds the key, if it wants one.

    Attributes:
        url: of the API, without anything secret.
        model: see above.
        counting: how tokens were counted so far, for the manifest.

    Raises:
        BadOption: the server cannot be reached, refuses, or a package is missing; in one sentence.
    """

    def __init__(self, url: str, model: str | None = None, key_variable: str | None = None) -> None:
        for package in ("httpx2", "prometheus_client"):
            if importlib.util.find_spec(package) is None:
                raise BadOption("--endpoint takes an extra that is not installed: pip install 'outrider[endpoint]'.")
        import httpx2

        parts = urlsplit(url)
        if parts.username or parts.password:
            raise BadOption("--endpoint has a name or password in it: give a key with --api-key-env.")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOption(f"--endpoint {url} is no address: write it like http://localhost:8000.")
        root = parts.path.rstrip("/").removesuffix("/v1")
        self._root = urlunsplit((parts.scheme, parts.netloc, root, "", ""))
        self.url = f"{self._root}/v1"
        headers = {"Authorization": f"Bearer {_key(key_variable)}"} if key_variable else {}
        timeout = httpx2.Timeout(_SILENCE, connect=_CONNECT)
        self._client = httpx2.Client(headers=headers, timeout=timeout, limits=httpx2.Limits(max_connections=None))
        self._options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
        self.counting: set[Counting] = set()
        self.model = model or self._first_model()

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def run(self, cases: Mapping[int, Case], turns: Sequence[Turn], plan: Plan) -> Iterator[Sample]:
        """Take these turns, in their order, after a few tokens for each case that do not count.

        Args:
            cases: by their indices; batch and temperature are what an endpoint can be told.
            turns: see `runner.turns`.
            plan: how.

        Raises:
            BadOption: the server refuses, or goes away.
        """
        for case in {turn.case: turn for turn in turns}.values():
            self._batch(case.prompts, cases[case.case], min(WARM_UP, plan.max_new_tokens), plan.seed)
        for turn in turns:
            before, began = self._counters(), time()
            seed = plan.seed + turn.repeat
            streams = self._batch(turn.prompts, cases[turn.case], plan.max_new_tokens, seed)
            counters = _difference(before, self._counters()) or _llama_counters(streams)
            for place, (prompt, stream) in enumerate(zip(turn.prompts, streams, strict=True)):
                self.counting.add(stream.counting)
                yield Sample(
                    case=turn.case,
                    prompt=prompt.id,
                    category=prompt.category,
                    repeat=turn.repeat,
                    prompt_tokens=stream.prompt_tokens,
                    seconds=stream.seconds,
                    rounds=(),
                    arrivals=tuple(stream.arrivals),
                    ids=(),
                    text="".join(stream.texts),
                    finish_reason={"stop": "stop", "length": "length"}.get(stream.finish or ""),  # type: ignore[arg-type]
                    seed=seed,
                    group=turn.group if len(turn.prompts) > 1 else None,
                    started=began,
                    counters=counters if place == 0 else None,
                )

    def _batch(self, prompts: Sequence[BenchPrompt], case: Case, tokens: int, seed: int) -> list[Stream]:
        """Ask several at once."""
        bodies = [
            {
                "model": self.model,
                "messages": _messages(prompt),
                "max_tokens": tokens,
                "temperature": case.temperature,
                "seed": seed,
                "stream": True,
            }
            for prompt in prompts
        ]
        if len(bodies) == 1:  # no thread between the clock and the socket
            return [self._ask(bodies[0])]
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self._ask, bodies))

    def _ask(self, body: dict[str, Any]) -> Stream:
        """One streamed answer. A server that does not know our options is asked again without them."""
        import httpx2

        while True:
            started = perf_counter()
            try:
                asked = {**body, "stream_options": self._options}
                with self._client.stream("POST", f"{self.url}/chat/completions", json=asked) as response:
                    if response.status_code in (400, 422) and "continuous_usage_stats" in self._options:
                        self._options = {"include_usage": True}
                        continue
                    self._refuse(response)
                    return _read(httpx2.EventSource(response), started)
            except httpx2.HTTPError as error:
                raise self._gone(error) from error

    def _first_model(self) -> str:
        import httpx2

        try:
            response = self._client.get(f"{self.url}/models")
        except httpx2.HTTPError as error:
            raise self._gone(error) from error
        self._refuse(response)
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise BadOption(f"{self.url} lists no models: name one with --model.") from error

    def _counters(self) -> dict[tuple[str, str], float]:
        """(name, position) -> count; empty where the server counts no speculation."""
        import httpx2
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[tuple[str, str], float] = {}
        try:
            response = self._client.get(f"{self._root}/metrics")
            families = list(text_string_to_metric_families(response.text)) if response.status_code == 200 else []
        except (httpx2.HTTPError, ValueError):
            return found
        for sample in (sample for family in families for sample in family.samples):
            name = sample.name.removesuffix("_total").partition(_PREFIX)[2]
            if name and not sample.name.endswith("_created"):
                key = (name, sample.labels.get("position", ""))
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def _refuse(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            response.read()
            try:
                said = response.json()["error"]
                reason = str(said["message"] if isinstance(said, dict) else said)
            except (ValueError, KeyError, TypeError):
                reason = response.reason_phrase
            first = (reason.strip().splitlines() or [""])[0].rstrip(".")[:200]
            raise BadOption(
                f"{self.url} answers {response.status_code} ({first}): check --model, --api-key-env and the prompts."
            )

    def _gone(self, error: Exception) -> BadOption:
        return BadOption(
            f"{self.url} cannot be reached ({error or type(error).__name__}): start the server, or check the address."
        )


def _key(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise BadOption(f"--api-key-env names {variable}, which is not set: set it, or leave the option out.")
    return value


def _messages(prompt: BenchPrompt) -> list[Any]:
    if isinstance(prompt.prompt, str):
        return [{"role": "user", "content": prompt.prompt}]
    return list(prompt.prompt)


def _read(events: Any, started: float) -> Stream:
    """An answer from its events; their tokens are counted when it is whole."""
    found, told, whole, seen = Stream(), [], 0, 0
    for event in events:
        now = perf_counter() - started
        if event.data.strip() == "[DONE]":
            break
        chunk = _chunk(event.data)
        usage = chunk.get("usage") or {}
        whole = int(usage.get("completion_tokens") or whole)
        found.prompt_tokens = int(usage.get("prompt_tokens") or found.prompt_tokens)
        found.timings = chunk.get("timings") or found.timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            found.finish = choice.get("finish_reason") or found.finish
            if text:
                found.texts.append(text)
                found.arrivals.append((now, 0))
                told.append(whole - seen if usage else None)
                seen = whole
                found.seconds = now
    found.counting, counts = _counted(found.texts, told, whole)
    found.arrivals = [(at, count) for (at, _), count in zip(found.arrivals, counts, strict=True)]
    return found


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise BadOption(
            "The server's stream holds an event that is no JSON: check that it speaks OpenAI's API."
        ) from error
    if not isinstance(chunk, dict) or "error" in chunk:
        raise BadOption("The server broke an answer off with an error: look at its log.")
    return chunk


def _counted(texts: Sequence[str], told: Sequence[int | None], whole: int) -> tuple[Counting, list[int]]:
    """Tokens of each event; see the module. Those without text, such as the end of the answer, go to the last event."""
    if texts and all(count is not None for count in told):
        counts = [count or 0 for count in told]
        counts[-1] += max(0, whole - sum(counts))
        return "told", counts
    if whole and texts:
        return "shared", _shared(whole, [len(text) for text in texts])
    return "events", [1] * len(texts)


def _shared(whole: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that sum up to `whole`, in proportion to the weights, each boundary rounded by itself."""
    total, ends, seen = sum(weights), [0], 0
    for weight in weights:
        seen += weight
        ends.append(round(whole * seen / total))
    return [now - before for before, now in pairwise(ends)]


def _difference(
    before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float]
) -> ServerCounters | None:
    """What was counted in between; None where nothing is counted at all."""
    if ("drafts", "") not in after and ("draft_tokens", "") not in after:
        return None
    grown = {key: int(value - before.get(key, 0.0)) for key, value in after.items()}
    places = sorted(
        (int(place), count)
        for (name, place), count in grown.items()
        if name == "accepted_tokens_per_pos" and place.isdecimal()
    )
    return ServerCounters(
        drafts=grown.get(("drafts", "")),
        drafted=grown.get(("draft_tokens", ""), 0),
        accepted=grown.get(("accepted_tokens", ""), 0),
        accepted_at=tuple(count for _, count in places),
    )


def _llama_counters(streams: Sequence[Stream]) -> ServerCounters | None:
    told = [stream.timings for stream in streams if "draft_n" in stream.timings]
    if not told:
        return None
    drafted = sum(int(timings["draft_n"]) for timings in told)
    accepted = sum(int(timings.get("draft_n_accepted", 0)) for timings in told)
    return ServerCounters(drafts=None, drafted=drafted, accepted=accepted)
