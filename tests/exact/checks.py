"""The checks of losslessness, shared by the tests that have to pass and by those whose planted bugs have to fail.

Two kinds: `assert_exact` enumerates every outcome of the production engine over a few rounds and compares the joint law
of the first tokens with the target's own; `assert_samples_fit` compares counts from real noise with it by chi-square.
`assert_keeps_the_prefix` is the reference text's worked example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from scipy.stats import chi2
from toy import (
    Context,
    Exact,
    NoiseOf,
    Script,
    Scripted,
    ScriptedNoise,
    Stream,
    Table,
    ToyState,
    ToyTarget,
    Wide,
    outcomes,
)

from outrider import sampling as production
from outrider.drafters import Drafter
from outrider.engine import Engine
from outrider.noise import SeededNoise
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import History, Sampling
from outrider.tree import path_to
from outrider.types import Noise, Round, Tree
from outrider.verify import Verifier

ALPHA = 1e-6 / 50  # Bonferroni over the chi-square tests there are, with room for more
Law = dict[Context, float]
NextToken = Callable[[Context], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A target, a drafter and a rule whose output is examined.

    Attributes:
        table: the target's law.
        drafter, verifier: the parts under test.
        depth: tokens of a draft.
        horizon: tokens of the joint law; one more than the depth by default.
        eos: ids that end the output.
        sampling: how p is made from logits; in float64 by default.
        prompt: what comes before.
        rounds: rounds of the engine; what is missing to the horizon afterwards is drawn from the target's own law.
        nodes: of a draft, where the drafter makes trees.
        stop: where a draft ends; see `Budget`.
        expected: text -> the law of the next token that the output has to have, where it is not the target's own.
        beyond: tokens that the engine may write behind the horizon, so that its drafts are not cut short before it.
    """

    table: Table
    drafter: Drafter
    verifier: Verifier
    depth: int
    horizon: int = 0
    eos: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Exact)
    prompt: Context = (0, 1)
    rounds: int = 2
    nodes: int = 0
    stop: Callable[[torch.Tensor, int], bool] | None = None
    expected: NextToken | None = None
    beyond: int = 0

    @property
    def length(self) -> int:
        """Tokens of the joint law."""
        return self.horizon or self.depth + 1

    def next_token(self, context: Context) -> torch.Tensor:
        """[V] float64: the law of ordinary sampling after this context, one token at a time, or what is expected."""
        if self.expected is not None:
            return self.expected(context)
        history = History(list(context), len(self.prompt), self.eos)
        logits = self.table.law(context).log()[None]
        law = self.sampling.law(logits, Tree.chain(context[-1:]), history).probs[0].double()
        return law / law.sum()


def continued(start: Context, next_token: NextToken, prompt: Context, length: int, eos: tuple[int, ...]) -> Law:
    """The law of texts that begin with `start` and go on, token by token, to `length` or to the end of sequence."""
    law: Law = {}
    open_: Law = {start: 1.0}
    while open_:
        text, weight = open_.popitem()
        if len(text) >= length or (text and text[-1] in eos):
            law[text] = law.get(text, 0.0) + weight
            continue
        for token, chance in enumerate(next_token((*prompt, *text)).tolist()):
            if chance > 0:
                open_[(*text, token)] = weight * chance
    return law


def own_law(case: Case) -> Law:
    """What the target itself would write."""
    return continued((), case.next_token, case.prompt, case.length, case.eos)


def engine_law(case: Case) -> Law:
    """What the engine writes, by enumeration of everything drawn in its drafter and its verifier."""

    def run(script: Script) -> Context:
        patch.setattr("outrider.engine.SeededNoise", NoiseOf(script))
        policy = Wide(case.depth, case.nodes, case.stop)
        engine = Engine(ToyTarget(case.table, case.eos), case.drafter, case.verifier, lambda: policy)
        row = engine.add(Request(case.prompt, case.sampling, seed=0, max_new_tokens=case.length + case.beyond))
        for _ in range(case.rounds):
            engine.step()
        return tuple(row.output[: case.length])

    with pytest.MonkeyPatch.context() as patch:
        return completed(outcomes(run), case)


def completed(written: Law, case: Case) -> Law:
    """The law of whole texts, given that of how they begin."""
    law: Law = {}
    for text, weight in written.items():
        for whole, chance in continued(text, case.next_token, case.prompt, case.length, case.eos).items():
            law[whole] = law.get(whole, 0.0) + weight * chance
    return law


def rule_law(case: Case) -> Law:
    """What drafter and rule write in one round, by enumeration, without engine and cache: for drafts that are many."""

    def run(script: Script) -> Context:
        noise = ScriptedNoise(script)
        return judged_once(case, (), noise, noise)[: case.length]

    return completed(outcomes(run), case)


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of the differences."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()) / 2


def assert_exact(case: Case, tolerance: float = 1e-12) -> None:
    """The engine's joint law is the target's own."""
    distance = total_variation(engine_law(case), own_law(case))
    assert distance < tolerance, f"the output's law is off by TV {distance:.3g}"


def assert_rule_exact(case: Case, tolerance: float = 1e-12) -> None:
    """One round's joint law is the target's own."""
    distance = total_variation(rule_law(case), own_law(case))
    assert distance < tolerance, f"the output's law is off by TV {distance:.3g}"


def assert_fits(counts: Counter[Context], law: Mapping[Context, float], alpha: float = ALPHA) -> None:
    """Counts agree with a law: chi-square over all cells, those that expect fewer than 5 pooled into one."""
    total = sum(counts.values())
    foreign = [text for text in counts if law.get(text, 0.0) <= 0]
    assert not foreign, f"texts that the target cannot write: {foreign[:3]}"
    cells: list[tuple[float, float]] = []
    pooled_count, pooled_expected = 0.0, 0.0
    for text, chance in law.items():
        if total * chance < 5:
            pooled_count, pooled_expected = pooled_count + counts[text], pooled_expected + total * chance
        else:
            cells.append((counts[text], total * chance))
    if pooled_expected >= 5:
        cells.append((pooled_count, pooled_expected))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    chance = float(chi2.sf(statistic, len(cells) - 1))
    assert chance > alpha, f"chi-square {statistic:.1f} over {len(cells)} cells has probability {chance:.2g}"


def judged_once(case: Case, text: Context, draft_noise: Noise, noise: Noise) -> Context:
    """What one round writes after prompt and text: a toy drafter and a rule, without engine and cache."""
    context = (*case.prompt, *text)
    depth = min(case.depth, case.length + case.beyond - len(text) - 1)
    draft = case.drafter.draft(ToyState(list(context), len(case.prompt), {}), depth, draft_noise)
    tokens, parents = draft.tree.tokens.tolist(), draft.tree.parents
    laws = [case.table.law((*context, *(tokens[n] for n in path_to(parents, node)[1:]))) for node in range(len(tokens))]
    verdict = case.verifier(production.Law(probs=torch.stack(laws)), draft, noise, len(context))
    return (*(tokens[node] for node in verdict.path[1:]), verdict.token)


def text_of(case: Case, seed: int, noise: type[SeededNoise] = SeededNoise) -> Context:
    """One text by real noise, drafter and rule in a tight loop without engine and cache."""
    text: Context = ()
    number = 0
    while len(text) < case.length:
        draft_noise = noise.for_draft(seed, number, case.verifier.coupled)
        text += judged_once(case, text, draft_noise, noise.for_verifier(seed, number))
        number += 1
    return text[: case.length]


def assert_samples_fit(case: Case, samples: int, noise: type[SeededNoise] = SeededNoise) -> None:
    """Texts written with the seeds 0, 1, 2, ... follow the target's own law."""
    assert_fits(Counter(text_of(case, seed, noise) for seed in range(samples)), own_law(case))


A, B, C, D, E, F, X, Y = range(8)
PROMPT = (Y, Y)
TEXT = (A, B, C, D, F)


def judged(verifier: Verifier, drafts: list[list[int]], length: int) -> Iterator[Round]:
    """The rounds in which a target that writes A B C D F, whatever stands before, judges these drafts."""
    target = ToyTarget(Stream(8, len(PROMPT), TEXT))
    engine = Engine(target, Scripted(drafts), verifier, lambda: Fixed(max(map(len, drafts))))
    request = Request(PROMPT, Sampling(), seed=0, max_new_tokens=length)
    return (round_ for _, round_ in engine.run([request]))


def assert_worked_example(verifier: Verifier) -> None:
    """The drafts are A B X Y, then D E: the first round keeps A B and writes C, the second keeps D and writes F."""
    rounds = judged(verifier, [[A, B, X, Y], [D, E]], length=6)
    first = next(rounds)
    assert (first.tokens, first.accepted, first.drafted) == ((A, B, C), 2, 4), f"kept {first.tokens}"
    second, third = rounds
    assert first.origins == ("accepted", "accepted", "corrected")
    assert (first.number, first.start, first.path, first.finish) == (0, len(PROMPT), (0, 1, 2), None)
    assert first.tree.tokens.tolist() == [PROMPT[-1], A, B, X, Y]
    assert (second.tokens, second.accepted, second.drafted) == ((D, F), 1, 2)
    assert second.origins == ("accepted", "corrected")
    assert (second.number, second.start, second.path, second.finish) == (1, len(PROMPT) + 3, (0, 1), None)
    assert second.tree.tokens.tolist() == [C, D, E]
    assert (third.tokens, third.origins, third.finish) == ((A,), ("plain",), "length")


def assert_nothing_kept_behind_a_mismatch(verifier: Verifier) -> None:
    """The negative probe: behind the wrong X stand D and F, just what the target writes there, and they must go."""
    rounds = judged(verifier, [[A, B, X, D, F], []], length=5)
    first = next(rounds)
    assert first.tokens == (A, B, C), f"kept {first.tokens}"
    assert (*first.tokens, *(token for round_ in rounds for token in round_.tokens)) == TEXT
