"""Figures for Prometheus, counted from rounds as they happen. docs/serving.md lists them beside vLLM's names.

Knows rounds and requests by their numbers, never by their text. Each server has a registry of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from ..types import Round

_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All figures of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"outrider_{name}", text, registry=registry, buckets=buckets)

        self.http = counter("http_requests", "Answers given, by endpoint and status.", "endpoint", "status")
        self.finished = counter("request_success", "Rows that came to their end, by reason.", "finished_reason")
        self.failed = counter("request_failure", "Rows that ended in trouble of the server's.")
        self.cancelled = counter("request_cancelled", "Rows whose client went away.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.reused_tokens = counter("prompt_tokens_reused", "Tokens of prompts whose keys were known already.")
        self._tokens = counter("generation_tokens", "Tokens written.")
        self._passes = counter("passes", "Passes of the target that checked drafts, prefill apart.")
        self._rounds = counter("rounds", "Rounds: one row's share of a pass.")
        self._drafts = counter("spec_decode_num_drafts", "Rounds that had a draft.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Tokens drafted and kept.")
        self._by_place = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Rounds whose draft was kept to this place at least.", "position"
        )
        self._drafting = counter("draft_seconds", "Seconds of drafting.")
        self._verifying = counter("verify_seconds", "Seconds of the target's passes, prefill apart.")
        self.prefill = histogram("prefill_seconds", "Seconds of reading a prompt.", _LONG)
        self.queued = histogram(
            "request_queue_time_seconds", "Seconds between a request's arrival and its start.", _LONG
        )
        self.first = histogram("time_to_first_token_seconds", "Seconds between arrival and the first token.", _LONG)
        self.whole = histogram("e2e_request_latency_seconds", "Seconds between arrival and the last token.", _LONG)
        self._each = histogram(
            "inter_token_latency_seconds",
            "Seconds per token after the first, a round's time shared by its tokens.",
            _SHORT,
        )
        self._bursts = histogram("inter_round_latency_seconds", "Seconds between two arrivals of tokens.", _SHORT)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(f"outrider_{name}", text, registry=self._registry).set_function(value)

    def info(self, about: dict[str, str]) -> None:
        """What is in force."""
        Info("outrider", "Target, drafter, verifier and policy in force.", registry=self._registry).info(about)

    def round(self, round_: Round, wait: float | None) -> None:
        """Count a round.

        Args:
            round_: of any request.
            wait: seconds since its request's round before; None if it is the first.
        """
        if round_.place == 0:
            self._passes.inc()
            self._verifying.inc(round_.verify_seconds)
            self._drafting.inc(round_.draft_seconds)
        self._rounds.inc()
        self._tokens.inc(len(round_.tokens))
        if round_.drafted:
            self._drafts.inc()
            self._drafted.inc(round_.drafted)
            self._accepted.inc(round_.accepted)
            for place in range(round_.accepted):
                self._by_place.labels(str(place)).inc()
        if wait is not None:
            self._bursts.observe(wait)
            for _ in round_.tokens:
                self._each.observe(wait / len(round_.tokens))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
