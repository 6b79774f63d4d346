"""A whole bench: targets one after the other, every case's turns, and what is asked of the answers when the clocks have
stopped. Knows no terminal.

Ctrl-C ends it early and keeps what is done; a bundle with a folder can be gone on with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ..api import Output, Outrider
from ..errors import BadOption, BadPrompt
from ..row import Request
from ..sampling import Sampling
from ..sources import addressed
from ..text import Detokenizer, encode
from ..trace import as_json
from ..types import Origin, Round
from . import held
from .baseline import Transformers
from .bundle import Bundle, WholeRounds
from .costs import Plan as CostPlan
from .costs import measure as measure_costs
from .divergence import judge
from .endpoint import Endpoint
from .figures import compared, summarise
from .perplexity import perplexity
from .prompts import BenchPrompt
from .reference import transformers_again, transformers_logits
from .results import OWN, PLAIN, TRANSFORMERS, Case, Divergence, PassCost, Results, Sample, Trace, TracedRound
from .rounding import other_logits, plain_logits
from .runner import Key, Other, Plan, Turn, prepared, run, turns, warm_up

Load = Callable[[str | None], Outrider]
"""Loads the target with a quantization, or None; it must keep no prefixes (`prefix_memory=0`)."""

LoadModel = Callable[[], Any]
"""Loads the target once more as a `PreTrainedModel`, for cases of Transformers' own loop."""

_TRACES = 12  # cases whose first answer is shown round by round
_COST_WIDTHS = (1, 2, 4, 8, 16, 32)
_COST_REPEATS = 5
_COST_CONTEXT = 256  # tokens


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure.

    Attributes:
        cases: configurations; plain decoding among them is what the others are compared with.
        prompts: to be answered.
        plan: how.
        perplexity: ask how likely the target finds each answer.
        costs: measure what passes cost, too, without quantization if that is among the cases.
    """

    cases: Sequence[Case]
    prompts: Sequence[BenchPrompt]
    plan: Plan
    perplexity: bool = False
    costs: bool = False

    @property
    def steps(self) -> int:
        """How often `measure` reports progress."""
        answers = len(self.cases) * len(self.prompts) * self.plan.repeats
        return 2 * answers if self.perplexity else answers


def measure(
    wanted: Wanted,
    load: Load,
    bundle: Bundle,
    advance: Callable[[], None] = lambda: None,
    load_model: LoadModel | None = None,
) -> Results:
    """Measure what the bundle does not know yet, and say what all of it amounts to.

    Args:
        wanted: see there.
        load: see `Load`; a target is let go before the next is loaded.
        bundle: takes everything in as it comes.
        advance: is called `wanted.steps` times, for what is known already too.
        load_model: see `LoadModel`.

    Raises:
        BadOption, BadPrompt: as `load` and `Outrider.using` do; a prompt that does not fit.
    """
    bundle.samples.records = list(latest(bundle.samples.records).values())
    bundle.manifest["interrupted"] = False
    try:
        for quantize in dict.fromkeys(case.quantize for case in wanted.cases):
            own = {index: case for index, case in enumerate(wanted.cases) if case.quantize == quantize}
            _OneTarget(wanted, own, bundle, advance).measure(load, quantize, load_model)
    except KeyboardInterrupt:
        bundle.manifest["interrupted"] = True
    return finished(wanted, bundle)


def measure_endpoint(
    wanted: Wanted, endpoint: Endpoint, bundle: Bundle, advance: Callable[[], None] = lambda: None
) -> Results:
    """The same against a server, whose cases differ in batch and temperature alone.

    Raises:
        BadOption: the server refuses or goes away; what was answered before is in the bundle.
    """
    known = latest(bundle.samples.records)
    bundle.samples.records = list(known.values())
    bundle.manifest["interrupted"] = False
    for _ in known:
        advance()
    cases = dict(enumerate(wanted.cases))
    left = turns(cases, wanted.prompts, wanted.plan, frozenset(known))
    try:
        for sample in endpoint.run(cases, left, wanted.plan):
            bundle.samples.add(sample)
            advance()
    except KeyboardInterrupt:
        bundle.manifest["interrupted"] = True
    if endpoint.counting:
        bundle.manifest["tokens_per_event"] = sorted(endpoint.counting)
    return finished(wanted, bundle)


def finished(wanted: Wanted, bundle: Bundle) -> Results:
    """What is known amounts to; it is written too."""
    bundle.samples.replace(compared(wanted.cases, bundle.samples.records))
    memory = {int(index): size for index, size in bundle.manifest.get("drafter_memory", {}).items()}
    results = Results(
        manifest=bundle.manifest,
        cases=tuple(wanted.cases),
        summaries=summarise(wanted.cases, bundle.samples.records, memory),
        divergences=tuple(bundle.divergences.records),
        costs=tuple(PassCost.model_validate(cost) for cost in bundle.manifest.get("costs", ())),
        traces=tuple(bundle.traces.records),
    )
    bundle.save(results)
    return results


@dataclass(frozen=True, slots=True)
class _OneTarget:
    """The cases of one target."""

    wanted: Wanted
    own: dict[int, Case]
    bundle: Bundle
    advance: Callable[[], None]

    def measure(self, load: Load, quantize: str | None, load_model: LoadModel | None) -> None:
        """All that is not known yet: answers first, then what is asked of them."""
        known = self._samples()
        for _ in known:
            self.advance()
        left = turns(self.own, self.wanted.prompts, self.wanted.plan, frozenset(map(key_of, known)))
        unasked = self.wanted.perplexity and any(sample.perplexity is None for sample in known)
        if self.wanted.plan.keep_history and known and left:
            raise BadOption(
                "What the drafters had learned is gone, so a run with --keep-history cannot be gone on with: name a "
                "new folder."
            )
        if not any((left, unasked, self._diverged(), self._lacks_costs())):
            return
        llm = load(quantize)
        for prompt in self.wanted.prompts:
            self._check(llm, prompt)
        about = {key: llm.configuration[key] for key in ("dtype", "device", "build", "exactness")}
        template = getattr(llm.tokenizer, "chat_template", None)
        about["chat_template"] = hashlib.sha256(str(template).encode()).hexdigest() if template else "none"
        self.bundle.manifest["targets"][quantize or "none"] = about
        rival = self._rival(llm, load_model, left)
        if left:
            self._answer(llm, left, rival)
        for plain, other in self._diverged():
            self.bundle.divergences.add(self._divergence(llm, rival, plain, other))
        if self.wanted.perplexity:
            self._ask(llm)
        if self._lacks_costs():
            self.bundle.manifest["costs"] = [cost.model_dump() for cost in _costs(llm, self.wanted.cases)]

    def _check(self, llm: Outrider, prompt: BenchPrompt) -> None:
        """Refuse a prompt that does not fit, before any work."""
        try:
            request = self._request(llm, prompt, Sampling(), 0)
            request.check(llm.target.context, llm.target.vocabulary)
            theirs = any(case.system == TRANSFORMERS for case in self.own.values())
            count = len(request.prompt)
            if theirs and count + request.max_new_tokens > llm.target.context:
                raise BadPrompt(
                    f"It has {count} tokens and the context {llm.target.context}, where Outrider stops and "
                    "Transformers does not: lower --max-new-tokens."
                )
        except BadPrompt as error:
            raise BadPrompt(f"Prompt {prompt.id!r}: {error}") from error

    def _samples(self) -> list[Sample]:
        return [sample for sample in self.bundle.samples.records if sample.case in self.own]

    def _rival(self, llm: Outrider, load_model: LoadModel | None, left: Sequence[Turn]) -> Transformers | None:
        """Transformers' own loop, where it has turns or has answered otherwise."""
        theirs = {index for index, case in self.own.items() if case.system == TRANSFORMERS}
        busy = theirs & {*(turn.case for turn in left), *(sample.case for _, sample in self._diverged())}
        if load_model is None or not busy:
            return None

        def encoded(prompt: BenchPrompt) -> Sequence[int]:
            return encode(llm.tokenizer, prompt.fitted(llm.tokenizer))

        def decode(ids: Sequence[int]) -> str:
            return str(llm.tokenizer.decode(ids, skip_special_tokens=True))

        return Transformers(load_model(), llm.target.eos, encoded, decode)

    def _answer(self, llm: Outrider, left: Sequence[Turn], rival: Transformers | None) -> None:
        """Take the turns that are left."""
        cases = {turn.case: self.own[turn.case] for turn in left}
        llms = prepared(llm, {index: case for index, case in cases.items() if case.system == OWN})
        holders: dict[int, object] = {index: one.drafter for index, one in llms.items()}
        others: dict[int, Other] = {}
        if rival is not None:
            theirs = {index: case for index, case in cases.items() if case.system == TRANSFORMERS}
            others = {index: partial(_served_by, rival, case, self.wanted.plan) for index, case in theirs.items()}
            holders |= dict.fromkeys(theirs, rival.model)
        shares = held.shares(holders, llm.target)
        memory = self.bundle.manifest.setdefault("drafter_memory", {})
        memory.update({str(index): shares[index].own for index in llms})
        notes = {one.drafter.spec: one.drafter.note for one in llms.values() if one.drafter.note}
        if notes:
            self.bundle.manifest.setdefault("notes", {}).update(notes)
        self.bundle.save_manifest()
        warm_up(llms, self.own, self.wanted.prompts, self.wanted.plan)
        if rival is not None:
            for index in others:
                rival.warm_up(self.own[index], self.wanted.prompts, self.wanted.plan)
        again = {(turn.case, prompt.id, turn.repeat) for turn in left for prompt in turn.prompts}
        self.bundle.samples.records = [s for s in self.bundle.samples.records if key_of(s) not in again]
        unused = {index: share.others for index, share in shares.items()}

        def told(sample: Sample, output: Output) -> None:
            self._keep_rounds(sample, output, llm.tokenizer)

        for sample in run(llms, self.own, left, self.wanted.plan, told=told, unused=unused, others=others):
            self.bundle.samples.add(sample)
            self.advance()

    def _keep_rounds(self, sample: Sample, output: Output, tokenizer: Any) -> None:
        """Whole rounds for replays, and a few answers as coloured text."""
        whole = WholeRounds(
            case=sample.case,
            prompt=sample.prompt,
            repeat=sample.repeat,
            prompt_ids=output.prompt_ids,
            rounds=tuple(as_json(round_) for round_ in output.rounds),
        )
        self.bundle.rounds.add(whole)
        shown = sample.repeat == 0 and sample.prompt == self.wanted.prompts[0].id
        speculates = self.own[sample.case].drafter != PLAIN
        if shown and speculates and tokenizer is not None and len(self.bundle.traces.records) < _TRACES:
            self.bundle.traces.add(traced(sample, output.rounds, tokenizer))

    def _diverged(self) -> list[tuple[Sample, Sample]]:
        """Pairs of plain decoding's answer and one that differs, whose place is not known yet."""
        told = {(found.case, found.prompt, found.repeat) for found in self.bundle.divergences.records}
        samples = self._samples()
        where = {case: index for index, case in self.own.items()}
        plain = latest(sample for sample in samples if self.own[sample.case].drafter == PLAIN)
        return [
            (plain[where[self.own[sample.case].plain], sample.prompt, sample.repeat], sample)
            for sample in compared(self.wanted.cases, samples)
            if sample.identical is False and key_of(sample) not in told
        ]

    def _divergence(self, llm: Outrider, rival: Transformers | None, plain: Sample, other: Sample) -> Divergence:
        """Where an answer left plain decoding's, and whether rounding explains it, in the opinion of who wrote it."""
        sampling = Sampling(temperature=self.own[other.case].temperature)
        request = self._request(llm, self._prompt(other), sampling, plain.seed)
        target, exact = llm.target, llm.exactness == "bits"
        logits_of, again = plain_logits(target, request.source), other_logits(target, request.source)
        if self.own[other.case].system == TRANSFORMERS:
            assert rival is not None, "it was loaded for this"
            logits_of, again, exact = transformers_logits(rival.model), transformers_again(rival.model), False
        found = judge(request, plain.ids, other.ids, logits_of, target.dtype, again=again, eos=target.eos, exact=exact)
        assert found is not None and found.expected is not None and found.got is not None, "they differ at a token"
        assert found.expected_logit is not None and found.got_logit is not None, "so both have logits"
        return Divergence(
            case=other.case,
            prompt=other.prompt,
            repeat=other.repeat,
            place=found.place,
            plain=found.expected,
            other=found.got,
            plain_logit=found.expected_logit,
            other_logit=found.got_logit,
            gap=found.top2_gap,
            verdict=found.verdict,
        )

    def _prompt(self, sample: Sample) -> BenchPrompt:
        """That of a sample."""
        return next(prompt for prompt in self.wanted.prompts if prompt.id == sample.prompt)

    def _request(self, llm: Outrider, prompt: BenchPrompt, sampling: Sampling, seed: int) -> Request:
        """A prompt as the target sees it."""
        ids = tuple(encode(llm.tokenizer, prompt.fitted(llm.tokenizer)))
        return addressed(llm.target, Request(ids, sampling, seed, self.wanted.plan.max_new_tokens))

    def _ask(self, llm: Outrider) -> None:
        """How likely the target finds each answer; equal answers to one prompt are asked about once."""
        known: dict[tuple[str, tuple[int, ...]], float] = {}
        records = self.bundle.samples.records
        for place, sample in enumerate(records):
            if sample.case in self.own and sample.perplexity is None:
                key = (sample.prompt, sample.ids)
                if key not in known:
                    request = self._request(llm, self._prompt(sample), Sampling(), 0)
                    known[key] = perplexity(llm.target, request.prompt, sample.ids, request.source)
                records[place] = sample.model_copy(update={"perplexity": known[key]})
                self.advance()
            elif sample.case in self.own:
                self.advance()

    def _lacks_costs(self) -> bool:
        return self.wanted.costs and "costs" not in self.bundle.manifest


def _served_by(rival: Transformers, case: Case, plan: Plan, turn: Turn, unused: int) -> list[Sample]:
    """As `runner.Other` has it."""
    return rival.serve(case, turn, plan, unused)


def key_of(sample: Sample) -> Key:
    """What tells a sample from the others of its bench: case, prompt and repeat."""
    return sample.case, sample.prompt, sample.repeat


def latest(samples: Iterable[Sample]) -> dict[Key, Sample]:
    """Samples by what tells them apart; of what was measured twice the last counts."""
    return {key_of(sample): sample for sample in samples}


def _costs(llm: Outrider, cases: Sequence[Case]) -> list[PassCost]:
    """What passes cost, as wide as the longest drafts and for every batch."""
    widest = max((case.k or 0 for case in cases if case.system == OWN), default=0) + 1
    widths = tuple(sorted({*(width for width in _COST_WIDTHS if width <= max(widest, 16)), widest}))
    context = min(_COST_CONTEXT, llm.target.context - max(widths))
    plan = CostPlan(widths, tuple(sorted({case.batch for case in cases})), (context,), _COST_REPEATS)
    return [
        PassCost(width=cost.width, batch=cost.batch, context=cost.context, seconds=cost.seconds)
        for cost in measure_costs(llm, plan).passes
    ]


_NAMES: dict[Origin, Literal["drafted", "corrected", "bonus"]] = {
    "accepted": "drafted",
    "corrected": "corrected",
    "bonus": "bonus",
    "plain": "bonus",
}


def traced(sample: Sample, rounds: Sequence[Round], tokenizer: Any) -> Trace:
    """An answer round by round, as text: a character that is not complete yet goes to the round that completes it."""
    words, found = Detokenizer(tokenizer), []
    for round_ in rounds:
        pieces = [
            (words.push(token), _NAMES[origin]) for token, origin in zip(round_.tokens, round_.origins, strict=True)
        ]
        if round_.finish:
            pieces.append((words.flush(), _NAMES[round_.origins[-1]]))
        kept = set(round_.path)
        refused = [token for node, token in enumerate(round_.tree.tokens.tolist()) if node not in kept]
        text = tokenizer.decode(refused, skip_special_tokens=False) if refused else ""
        found.append(TracedRound(pieces=tuple(piece for piece in pieces if piece[0]), rejected=text))
    return Trace(case=sample.case, prompt=sample.prompt, rounds=tuple(found))
