"""What a measurement leaves behind: the schema of `results.json` and `samples.jsonl`. Knows no models and no clocks.

A `Case` is one configuration, a `Sample` one prompt answered once under it, a `Summary` what its samples amount to. A
sample holds the rounds themselves, in figures, so that everything else can be computed again from it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA = 1
PLAIN = "none"  # the drafter of plain decoding
OWN, ENDPOINT, TRANSFORMERS = "outrider", "endpoint", "transformers"  # systems
PROMPT_LOOKUP = "prompt lookup"  # Transformers' own drafter without a model
SERVED = "as served"  # in the place of a drafter: what a server does is its own affair


class Record(BaseModel):
    """Strict and immutable: a file with a key that is not known here is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Case(Record):
    """One configuration.

    Attributes:
        drafter, verifier, policy: specs; the drafter `none` is plain decoding.
        k: the draft length that was asked for (policy `fixed:k`); None where the policy decides.
        batch: prompts served together.
        temperature: of the sampling.
        quantize: of the target, or None.
        system: "outrider", or what answered instead ("endpoint", "transformers").
    """

    drafter: str
    verifier: str = "match"
    policy: str = "goodput"
    k: int | None = None
    batch: int = 1
    temperature: float = 0.0
    quantize: str | None = None
    system: str = OWN

    @property
    def plain(self) -> Case:
        """What this is to be compared with: plain decoding of the same target, batch and temperature."""
        return Case(drafter=PLAIN, batch=self.batch, temperature=self.temperature, quantize=self.quantize)

    @property
    def name(self) -> str:
        """For tables and plots; parts that are the usual ones are left out."""
        parts = [self.drafter if self.system == OWN else f"{self.drafter} ({self.system})"]
        parts += [self.verifier] * (self.verifier != "match")
        parts += [f"k={self.k}"] * (self.k is not None)
        parts += [self.policy] * (self.k is None and self.policy != "goodput" and self.drafter != PLAIN)
        parts += [f"batch {self.batch}"] * (self.batch != 1)
        parts += [f"T={self.temperature:g}"] * (self.temperature != 0)
        parts += [self.quantize] if self.quantize else []
        return ", ".join(parts)


class RoundFigures(Record):
    """One round of one row, in figures.

    Attributes:
        drafted: tokens proposed (nodes of the tree without the pending one).
        depth: tokens one after another in the draft.
        accepted: tokens proposed and kept.
        tokens: tokens committed, bonus or correction included.
        at: seconds from the request's start until these tokens were there.
        draft_seconds, verify_seconds: of the whole batch's draft and pass, as in `types.Round`.
        verdict_seconds: of this row's own law and verdict.
        rows, nodes, place: how many rows and nodes shared the pass, and which of the rows this was (see `types.Round`).
        tv, kl: under a relaxed verifier, the sums over the round's tokens of `types.Divergence`; a `kl` of None beside
            a `tv` that is there is infinite. Both None under a lossless one.
    """

    drafted: int
    depth: int
    accepted: int
    tokens: int
    at: float
    draft_seconds: float
    verify_seconds: float
    verdict_seconds: float
    rows: int = 1
    nodes: int = 0
    place: int = 0
    tv: float | None = None
    kl: float | None = None


class ServerCounters(Record):
    """What a server's own counters say of the time in which a group of requests was answered, and nothing else was.

    Attributes:
        drafts: rounds that had a draft; None where the server counts tokens alone.
        drafted, accepted: tokens.
        accepted_at: of the drafts, how many had their first, second, ... token accepted; empty where it is not counted.
    """

    drafts: int | None
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...] = ()


class Sample(Record):
    """One prompt, answered once under one case.

    Attributes:
        case: index into the cases.
        prompt, category: id and kind of the prompt.
        repeat: 0, 1, ... of the same prompt under the same case.
        prompt_tokens: length of the prompt; 0 where an endpoint does not tell it.
        seconds: wall time of the request, prefill included. Requests of a batch begin together.
        rounds: every round; empty where an endpoint tells none.
        arrivals: (seconds from the start, tokens that had come since the one before) for each event; of our own runs
            the rounds', of an endpoint those of its stream.
        ids, text: what was written; no ids from an endpoint.
        finish_reason: "stop", "length" or None.
        seed: of the sampling.
        identical: whether the ids equal plain decoding's of the same prompt and seed; None where that was not promised
            or not compared.
        perplexity: of the answer under the target that is named in the manifest, as it was loaded for this case; None
            where not asked for.
        group: prompts that were served together have the same one, within a case and a repeat; None for one alone.
        started: seconds since the epoch.
        peak_memory: bytes that the process (or the GPU) held at most while this was answered, less the weights of
            drafters that only other cases use; None where it cannot be measured.
        counters: of an endpoint, for the whole group and on the first sample of it; None where it has none.
    """

    case: int
    prompt: str
    category: str
    repeat: int
    prompt_tokens: int
    seconds: float
    rounds: tuple[RoundFigures, ...]
    arrivals: tuple[tuple[float, int], ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length"] | None
    seed: int
    identical: bool | None = None
    perplexity: float | None = None
    group: int | None = None
    started: float = 0.0
    peak_memory: int | None = None
    counters: ServerCounters | None = None


class Interval(Record):
    """A bootstrap interval over prompts."""

    low: float
    high: float
    level: float = 0.95


class Percentiles(Record):
    """Seconds, or None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


class CategoryFigures(Record):
    """A case on the prompts of one category; see `Summary` for the definitions."""

    prompts: int
    acceptance_rate: float | None
    acceptance_length: float | None
    tokens_per_second: float
    speedup: float | None
    speedup_interval: Interval | None


class Summary(Record):
    """What the samples of a case amount to.

    Prefill is the time before the first draft began; of an endpoint, which does not tell, the time to the first token,
    and the tokens that came then are not counted against the rest.

    Attributes:
        case: index into the cases.
        prompts, samples, rounds, drafted, accepted, tokens: counts.
        acceptance_rate: accepted / drafted, the bonus token not counted; None if nothing was drafted.
        acceptance_length: tokens committed per round that had a draft, bonus included; 1 at worst.
        survival: s_k, share of rounds with a draft in which tokens 1..k were all kept (vLLM's "per position").
        conditional: a_k = s_k / s_(k-1).
        tokens_per_pass: tokens per pass and row, rounds without a draft included.
        time_to_first: seconds until the first token, prefill included.
        between_tokens: seconds between two tokens as they arrive; those of one round arrive together, so the first of
            a round waits and the others come at 0.
        between_events: seconds between two arrivals, however many tokens each brings.
        per_token: seconds per token over a sliding window of 16 tokens, which bursts do not mislead; None where no
            answer is that long.
        tokens_per_second: the median over prompts of an answer's tokens / (seconds without prefill).
        throughput: all tokens of the case / the wall time that its batches took together, prefill included.
        speedup: the geometric mean over prompts of plain decoding's seconds per token / seconds per token, prefill
            included: paired by prompt, repeat and seed, the median over the repeats. Where the answers are the same, as
            under a lossless rule with the same seed, that is plain seconds / seconds. None for plain decoding.
        speedup_interval: of that, by bootstrap over prompts; those served together are drawn together. None for one.
        verdict: "faster", "slower", or "indistinguishable" where the interval holds 1 or there is none.
        draft_seconds, verify_seconds, verdict_seconds, other_seconds: per pass, the mean; other is the rest of the
            time between prefill and the last token.
        peak_memory: the most of any sample.
        drafter_memory: bytes of weights that the drafter adds.
        compared, identical: samples whose ids were compared with plain decoding's, and those that were the same.
        perplexity: of all answers together under the target.
        lossless: whether the verifier keeps the target's law; None where an endpoint does not tell its rule.
        mean_tv, mean_kl: under a relaxed verifier, as in `stats.Stats`.
        categories: by kind of prompt.
    """

    case: int
    prompts: int
    samples: int
    rounds: int
    drafted: int
    accepted: int
    tokens: int
    acceptance_rate: float | None
    acceptance_length: float | None
    survival: tuple[float, ...]
    conditional: tuple[float, ...]
    tokens_per_pass: float | None
    time_to_first: Percentiles
    between_tokens: Percentiles
    between_events: Percentiles
    per_token: Percentiles
    tokens_per_second: float
    throughput: float
    speedup: float | None
    speedup_interval: Interval | None
    verdict: Literal["faster", "slower", "indistinguishable"] | None
    draft_seconds: float | None
    verify_seconds: float | None
    verdict_seconds: float | None
    other_seconds: float | None
    peak_memory: int | None
    drafter_memory: int | None
    compared: int
    identical: int
    perplexity: float | None
    lossless: bool | None
    mean_tv: float | None
    mean_kl: float | None
    categories: dict[str, CategoryFigures]


class Divergence(Record):
    """A place where an answer left plain decoding's.

    Attributes:
        case, prompt, repeat: of the sample.
        place: index of the first token that differs.
        plain, other: the two tokens.
        plain_logit, other_logit: the target's logits of them there, in plain decoding.
        gap: between its two highest logits there.
        verdict: "tie" where rounding explains it, else "fault".
    """

    case: int
    prompt: str
    repeat: int
    place: int
    plain: int
    other: int
    plain_logit: float
    other_logit: float
    gap: float
    verdict: Literal["tie", "fault"]


class PassCost(Record):
    """What a pass of the target cost: `width` tokens per row, `batch` rows, `context` tokens before, in seconds."""

    width: int
    batch: int
    context: int
    seconds: float


class TracedRound(Record):
    """One round for the coloured text: pieces of text with the origin of each.

    Attributes:
        pieces: (text, "drafted", "corrected" or "bonus"); a token without any draft before it is a bonus too.
        rejected: the text of the drafted tokens that were not kept.
    """

    pieces: tuple[tuple[str, Literal["drafted", "corrected", "bonus"]], ...]
    rejected: str


class Trace(Record):
    """A few answers, round by round."""

    case: int
    prompt: str
    rounds: tuple[TracedRound, ...]


class Results(Record):
    """`results.json`.

    Attributes:
        schema_version: counts up when a name changes its meaning.
        manifest: what was run and where: argv, resolved configuration, git revision, hashes, versions, machine, seeds,
            warm-up, load average, what was left out.
        cases, summaries: one summary per case that has samples.
        divergences: from plain decoding.
        costs: of passes, where they were measured.
        traces: a few answers.
    """

    schema_version: int = SCHEMA
    manifest: dict[str, Any]
    cases: tuple[Case, ...]
    summaries: tuple[Summary, ...]
    divergences: tuple[Divergence, ...] = ()
    costs: tuple[PassCost, ...] = ()
    traces: tuple[Trace, ...] = ()
