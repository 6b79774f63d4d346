"""Tier 2: with the real noise, texts occur as often as the target's own law says, by chi-square on whole short texts.

What enumeration cannot see is the noise itself: its streams, its keys, and what drafter and rule share of it. Seeds are
fixed: a failure is no accident. 10,000 texts show a deviation of TV 0.06 over 81 cells, 4,000 over 27.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from checks import Case, assert_fits, assert_samples_fit, own_law, text_of, total_variation
from toy import Context, Forked, Sampled, Scripted, Table, ToyTarget

from outrider.drafters.model import ModelDrafter
from outrider.engine import Engine
from outrider.noise import SeededNoise
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.types import Drawn
from outrider.verify import Verifier
from outrider.verify.block import Block
from outrider.verify.match import Match
from outrider.verify.rejection import TokenRejection
from outrider.verify.traversal import Traversal

RULES = pytest.mark.parametrize("verifier", [Match(), TokenRejection()], ids=["match", "token"])


def table(seed: int) -> Table:
    """Three tokens, in float32 as models have them."""
    return Table(3, seed, dtype=torch.float32)


def test_plain_sampling() -> None:
    """The noise of four positions, drawn for one token after another: 81 cells."""
    law, prompt = table(1), (0, 1)

    def text(seed: int) -> Context:
        written: Context = ()
        for number in range(4):
            noise = SeededNoise.for_verifier(seed, number)
            written += (noise.draws(law.law(prompt + written)[None], [len(prompt) + number])[0],)
        return written

    assert_fits(Counter(map(text, range(10_000))), own_law(Case(law, Scripted([]), Match(), depth=0, horizon=4)))


def test_match_with_a_coupled_drafter() -> None:
    """The drafter draws with the target's own noise, which `match` allows, for positions that come again later."""
    assert_samples_fit(Case(table(2), Sampled(table(3)), Match(), depth=2), samples=4000)


@pytest.mark.parametrize("rule", [TokenRejection(), Block(), Traversal()], ids=["token", "block", "traversal"])
def test_chains(rule: Verifier) -> None:
    """Draft, acceptance and residual have noise of their own."""
    assert_samples_fit(Case(table(4), Sampled(table(5)), rule, depth=2), samples=4000)


@pytest.mark.parametrize("drawn", ["iid", "without_replacement"])
@pytest.mark.parametrize("rule", [TokenRejection(), Traversal()], ids=["token", "traversal"])
def test_trees(rule: Verifier, drawn: Drawn) -> None:
    """Siblings too, over the rounds that three tokens take."""
    drafter = Forked(table(13), {(): 2, (0,): 2, (1,): 1}, drawn)
    assert_samples_fit(Case(table(12), drafter, rule, depth=2), samples=4000)


def test_match_with_a_coupled_tree() -> None:
    """Children are the first, second, ... of the target's own race, at positions that come again later."""
    assert_samples_fit(Case(table(14), Forked(table(15), {(): 2, (0,): 2}), Match(), depth=2), samples=4000)


@RULES
def test_engine(verifier: Verifier) -> None:
    """The whole loop with a model as drafter, twenty requests in a batch, each with a seed of its own: 9 cells."""
    case = Case(table(6), ModelDrafter(ToyTarget(table(7)), 3), verifier, depth=1, sampling=Sampling(temperature=1.0))
    counts: Counter[Context] = Counter()
    for first in range(0, 1600, 20):
        engine = Engine(ToyTarget(case.table), case.drafter, verifier, lambda: Fixed(case.depth))
        requests = [Request(case.prompt, case.sampling, first + place, case.length) for place in range(20)]
        rows = {row.index: row for row, _ in engine.run(requests)}
        counts.update(tuple(row.output) for row in rows.values())
    assert sum(counts.values()) == 1600
    assert_fits(counts, own_law(case))


def test_coupling_raises_agreement() -> None:
    """With the target's own noise a draft token is kept at least (1 - TV) / (1 + TV) of the time (Daliri et al.)."""
    p, q = table(8), table(11)
    prompt = (0, 1)
    distance = float((p.law(prompt) - q.law(prompt)).abs().sum()) / 2
    case = Case(p, Sampled(q), Match(), depth=1, prompt=prompt)
    kept = [_first_is_kept(case, seed) for seed in range(1500)]
    bound = (1 - distance) / (1 + distance)
    assert 0.1 < bound < 0.9, "tables that say something"
    assert sum(kept) / len(kept) > bound - 4 * (0.25 / len(kept)) ** 0.5
    assert sum(kept) / len(kept) > float((p.law(prompt) * q.law(prompt)).sum()) + 0.05, "more than chance alone"


def _first_is_kept(case: Case, seed: int) -> bool:
    """Whether the target's first token with this seed is the drafter's with the same noise."""
    draft = case.drafter.draft(case.drafter.begin(case.prompt, {}), 1, SeededNoise.for_draft(seed, 0, True))
    return bool(draft.tree.tokens[1] == text_of(case, seed)[0])


def test_the_checker_sees_a_difference() -> None:
    """Samples of a law that is off by TV 0.05 do not pass."""
    case = Case(table(10), Scripted([]), Match(), depth=0, horizon=2)
    law = own_law(case)
    texts = sorted(law)
    step = min(0.05, law[texts[0]] / 2)
    wrong = {**law, texts[0]: law[texts[0]] - step, texts[1]: law[texts[1]] + step}
    assert 0.01 < total_variation(law, wrong) <= 0.05
    counts = Counter({text: round(15_000 * chance) for text, chance in wrong.items()})
    assert_fits(counts, wrong)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_fits(counts, law)
