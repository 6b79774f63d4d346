"""Is speculation on this very model lossless? The checks, each with a negative control.

A check compares what speculation writes with what is right: plain decoding of the same target, alone and in batches;
plain sampling with the same seeds, where the rule promises the very tokens; the target's own law of short texts, where
it promises the law; and Transformers' `generate`. Then the same comparison is made of a rule that is broken on purpose.
If that passes too, the check could not have failed, and proves nothing. Knows no terminal and loads no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..api import Outrider
from ..row import Request
from ..sampling import Sampling
from ..stats import Stats
from ..verify import Verifier
from ..verify.match import Match
from .certificate import Bias, Check, Control, Found
from .chi_square import fit
from .control import AcceptsEverything, Spoilt
from .divergence import judge
from .reference import transformers_again, transformers_ids, transformers_logits
from .rounding import other_logits, plain_logits
from .short_texts import LENGTH, count, promising
from .trials import Parts, Written, wants_prediction

TEMPERATURE, TOP_P = 0.8, 0.95  # of the sampled ids
RELAXED_AT = 1.0  # the temperature at which the bias of relaxed rules is measured
_TOGETHER = 8  # rows of a batch
_WRONG_EVERY = 8  # tokens: a prediction that were right throughout would leave nothing to refuse


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried.

    Attributes:
        prompts: ids each.
        short: prompts of a few tokens for the law, in the order in which they are tried.
        max_new_tokens: of each output.
        policies: everything is compared under each of them.
        seeds: sampled texts per prompt.
        samples: short texts that are counted, under all policies together.
    """

    prompts: tuple[tuple[int, ...], ...]
    short: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    policies: tuple[str, ...]
    seeds: int
    samples: int

    def steps(self, verifier: Verifier, *, transformers: bool) -> int:
        """How often the `advance` of a `Prover` will be called; more often where a control has to be made twice."""
        every, ways = len(self.prompts), len(self.policies)
        if not verifier.lossless:
            return every * (2 + 2 * self.seeds)
        steps = every * (3 + 2 * ways + transformers)
        if verifier.coupled:
            return steps + every * (self.seeds * (1 + ways) + 1)
        return steps + 2 * ways * self.each

    @property
    def each(self) -> int:
        """Short texts under one policy."""
        return max(1, self.samples // len(self.policies))


@dataclass(slots=True)
class Outputs:
    """Greedy outputs, without the model that wrote them, so that it can make room for another.

    Attributes:
        requests: one per prompt.
        written: speculation's, each written alone; empty before they are.
        broken: what a broken rule wrote; empty where nothing could be broken.
        eos: ids that end the target's output.
        policy: under which they were drafted.
    """

    requests: list[Request]
    eos: tuple[int, ...]
    policy: str
    written: list[list[int]] = field(default_factory=list)
    broken: list[list[int]] = field(default_factory=list)


class Prover:
    """Makes the checks, one method each; `greedy` comes first.

    Args:
        llm: what is to be proved.
        plan: how much is tried.
        advance: called after each output.

    Raises:
        BadOption, BadPrompt: a policy or a prompt cannot be served.
    """

    def __init__(self, llm: Outrider, plan: Plan, advance: Callable[[], None] = lambda: None) -> None:
        self._plan, self._advance = plan, advance
        self._exact, self._target = llm.exactness == "bits", llm.target
        self._parts = [Parts.of(llm, policy) for policy in plan.policies]
        self._predicts = wants_prediction(llm.drafter)
        self._right: list[list[int]] = []  # plain decoding, alone
        self.outputs = Outputs(self._requests(Sampling()), llm.target.eos, plan.policies[0])
        for request in self.outputs.requests:
            request.check(llm.target.context, llm.target.vocabulary)

    def greedy(self) -> Check:
        """Speculation alone and in batches, and plain decoding in batches, against plain decoding alone."""
        plain, bare = self._parts[0].plain, self._requests(Sampling())
        self._right = [written.ids for written in plain.serve(bare, 1, self._advance)]
        found = self._compare(bare, self._right, plain.serve(bare, _TOGETHER, self._advance), "plain, together", "none")
        requests = self._requests(Sampling(), predict=True)
        speculated: list[Written] = []
        for parts in self._parts:
            for company, rows in (("alone", 1), ("together", _TOGETHER)):
                served = parts.serve(requests, rows, self._advance)
                found += self._compare(requests, self._right, served, company, parts.policy)
                speculated += served
        self.outputs.written = [written.ids for written in speculated[: len(requests)]]
        control = self._control(self._parts[0], lambda broken: self._breaks_greedy(broken, requests))
        compared = len(bare) + len(speculated)
        what = "greedy ids, alone and in batches, against plain decoding"
        return Check("greedy", what, compared, compared - len(found), _stats(speculated), tuple(found), None, control)

    def seeded(self) -> Check:
        """Sampled ids against plain sampling with the same seeds."""
        sampling = Sampling(temperature=TEMPERATURE, top_p=TOP_P)
        seeds = range(1, self._plan.seeds + 1)
        bare = [request for seed in seeds for request in self._requests(sampling, seed)]
        requests = [request for seed in seeds for request in self._requests(sampling, seed, predict=True)]
        right = [written.ids for written in self._parts[0].plain.serve(bare, _TOGETHER, self._advance)]
        found: list[Found] = []
        speculated: list[Written] = []
        for parts in self._parts:
            # In the opposite order, so that each request has other company than it had there.
            served = parts.serve(requests[::-1], _TOGETHER, self._advance)[::-1]
            found += self._compare(requests, right, served, "together", parts.policy)
            speculated += served
        control = self._control(self._parts[0], lambda broken: self._told(broken, requests, right) is not None)
        what = (
            f"sampled ids (temperature {TEMPERATURE:g}, top-p {TOP_P:g}, {self._plan.seeds} seeds per prompt) against "
            "plain sampling with the same seeds"
        )
        compared = len(speculated)
        same = compared - len(found)
        return Check("seeded", what, compared, same, _stats(speculated), tuple(found), None, control)

    def laws(self) -> Iterator[Check]:
        """Short texts against the target's own law of them, one check for each policy."""
        for parts in self._parts:
            yield self._law(parts)

    def _law(self, parts: Parts) -> Check:
        what = f"texts of {LENGTH} tokens ({parts.policy}) against the target's own law of them, by chi-square"
        texts = promising(parts, self._plan.short)
        if texts is None:
            return Check("law", what, 0, None, Stats.of(()))
        samples = self._plan.each
        counts, rounds = count(parts, texts, samples, self._advance)
        what += (
            f" (top-k {texts.sampling.top_k}, temperature {texts.sampling.temperature:g}, {len(texts.law)} texts, "
            f"prompt of {len(texts.prompt)} tokens)"
        )
        found = fit(counts, texts.law)
        control = self._control(
            parts, lambda broken: not fit(count(broken, texts, samples, self._advance)[0], texts.law).fits
        )
        return Check("law", what, found.samples, None, Stats.of(rounds), fit=found, control=control)

    def bias(self) -> Bias:
        """What a relaxed rule changes."""
        parts, bare = self._parts[0], self._requests(Sampling())
        self._right = [written.ids for written in parts.plain.serve(bare, _TOGETHER, self._advance)]
        greedy = parts.serve(self._requests(Sampling(), predict=True), _TOGETHER, self._advance)
        seeds = range(1, self._plan.seeds + 1)
        sampling = Sampling(temperature=RELAXED_AT)
        requests = [request for seed in seeds for request in self._requests(sampling, seed, predict=True)]
        relaxed = parts.serve(requests, _TOGETHER, self._advance)
        lossless = parts.with_verifier(Match()).serve(requests, _TOGETHER, self._advance)
        same = sum(written.ids == right for written, right in zip(greedy, self._right, strict=True))
        return Bias(_stats(relaxed), _stats(lossless), len(greedy), same, RELAXED_AT)

    def _requests(self, sampling: Sampling, seed: int = 0, *, predict: bool = False) -> list[Request]:
        """One per prompt. With a prediction where the drafter wants one: plain decoding's text, now and then wrong."""
        predicts = predict and self._predicts
        return [
            Request(
                prompt,
                sampling,
                seed,
                self._plan.max_new_tokens,
                prediction=self._nearly(self._right[place]) if predicts else (),
            )
            for place, prompt in enumerate(self._plan.prompts)
        ]

    def _nearly(self, ids: Sequence[int]) -> tuple[int, ...]:
        vocabulary = self._target.vocabulary
        return tuple((token + (place % _WRONG_EVERY == 0)) % vocabulary for place, token in enumerate(ids, 1))

    def _compare(
        self,
        requests: Sequence[Request],
        right: Sequence[Sequence[int]],
        served: Sequence[Written],
        company: str,
        policy: str,
    ) -> list[Found]:
        """The outputs that are not the same."""
        logits_of, again, found = plain_logits(self._target), other_logits(self._target), []
        for place, (request, expected, written) in enumerate(zip(requests, right, served, strict=True)):
            told = judge(
                request,
                expected,
                written.ids,
                logits_of,
                self._target.dtype,
                again=again,
                eos=self._target.eos,
                exact=self._exact,
            )
            if told is not None:
                seed = request.seed if request.sampling.temperature else None
                found.append(Found(place % len(self._plan.prompts), seed, company, policy, told))
        return found

    def _told(
        self, broken: Parts, requests: Sequence[Request], right: Sequence[Sequence[int]]
    ) -> list[list[int]] | None:
        """What a broken loop writes for one request per prompt, if that is found to be wrong."""
        requests = requests[: len(self._plan.prompts)]
        served = broken.serve(requests, _TOGETHER, self._advance)
        found = self._compare(requests, right[: len(requests)], served, "together", broken.policy)
        wrong = any(other.divergence.verdict == "fault" for other in found)
        return [written.ids for written in served] if wrong else None

    def _breaks_greedy(self, broken: Parts, requests: Sequence[Request]) -> bool:
        """Whether it is found to be wrong; what it wrote is kept, to be held against Transformers too."""
        self.outputs.broken = self._told(broken, requests, self._right) or []
        return bool(self.outputs.broken)

    def _control(self, parts: Parts, told: Callable[[Parts], bool]) -> Control:
        """Whether a comparison tells that the rule is broken; where it does not, for the drafts were right, with
        broken drafts too."""
        how = "a rule that accepts every draft token"
        broken = parts.with_verifier(AcceptsEverything(parts.verifier))
        if told(broken):
            return Control(how, True)
        how += ", and drafts whose every token was replaced, for the drafter's own were never wrong"
        return Control(how, told(replace(broken, drafter=Spoilt(parts.drafter, self._target.vocabulary))))


def against_transformers(outputs: Outputs, model: Any, advance: Callable[[], None] = lambda: None) -> Check:
    """Greedy outputs against Transformers' own `generate`.

    Args:
        outputs: of a `Prover` after `greedy`.
        model: a `PreTrainedModel` with the weights and the dtype of the target.
        advance: called after each output.
    """
    logits_of, again = transformers_logits(model), transformers_again(model)
    found: list[Found] = []
    caught = False
    for place, request in enumerate(outputs.requests):
        right = transformers_ids(model, request.prompt, request.max_new_tokens)
        told = judge(request, right, outputs.written[place], logits_of, model.dtype, again=again, eos=outputs.eos)
        if told is not None:
            found.append(Found(place, None, "alone", outputs.policy, told))
        if outputs.broken and not caught:
            other = judge(request, right, outputs.broken[place], logits_of, model.dtype, again=again, eos=outputs.eos)
            caught = other is not None and not other.allowed
        advance()
    compared = len(outputs.written)
    what = f"greedy ids against Transformers' generate in {str(model.dtype).removeprefix('torch.')}"
    control = Control("what the control of greedy wrote", caught)
    return Check("transformers", what, compared, compared - len(found), None, tuple(found), None, control)


def _stats(served: Sequence[Written]) -> Stats:
    return Stats.of(round_ for written in served for round_ in written.rounds)
