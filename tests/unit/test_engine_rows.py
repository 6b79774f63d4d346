"""Rows of one batch that differ: drafters and policies of their own, and trouble that is theirs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_engine import PROMPTS, SAMPLED, TABLE, VOCABULARY, engine_with, requests, serve, top, written
from torch import Tensor
from toy import Sampled, Table, ToyDrafter, ToyTarget

from outrider.drafters import Drafter
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.drafters.reference import Reference
from outrider.engine import Engine
from outrider.errors import BadOption
from outrider.policy import Fixed, Goodput, Setting, make_policy
from outrider.row import Request, Row
from outrider.sampling import Law, Sampling
from outrider.types import Budget, Draft, Noise, Round, Scores, Verdict
from outrider.verify import Verifier, make_verifier
from outrider.verify.match import Match


class Fault(Exception):
    """What the parts below raise."""


class Faulty(ToyDrafter):
    """Drafts from a table, and raises for requests whose prompt begins with one token, from their second round on.

    Args:
        where: "propose", "commit", "end" or "room".
        first: the token.
    """

    def __init__(self, where: str, first: int) -> None:
        super().__init__()
        self._where, self._first, self._inner = where, first, Sampled(TABLE)
        self.ended: list[int] = []

    def _trip(self, where: str, state: Any) -> None:
        if where == self._where and state.tokens[0] == self._first and state.rounds:
            raise Fault(where)

    def draft(self, state: Any, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        self._trip("propose", state)
        return self._inner.draft(state, depth, noise)

    def commit(self, state: Any, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        self._trip("commit", state)
        super().commit(state, tokens, scores, path)

    def room(self, state: Any) -> int:
        """See `Drafter`."""
        self._trip("room", state)
        return super().room(state)

    def end(self, state: Any) -> None:
        """See `Drafter`."""
        self.ended.append(state.tokens[0])
        self._trip("end", state)


class FaultyRule(Match):
    """`match`, but it raises at one position."""

    def __call__(self, law: Law, draft: Draft, noise: Noise, position: int) -> Verdict:
        """See `Verifier`."""
        if position == len(PROMPTS[1]):
            raise Fault("rule")
        return super().__call__(law, draft, noise, position)


class FaultyPolicy(Fixed):
    """Two tokens, until it raises."""

    def __init__(self, where: str) -> None:
        super().__init__(2)
        self._where, self._rounds = where, 0

    def budget(self) -> Budget:
        """See `Policy`."""
        if self._where == "budget" and self._rounds:
            raise Fault("budget")
        return super().budget()

    def observe(self, round_: Round) -> None:
        """See `Policy`."""
        self._rounds += 1
        if self._where == "observe":
            raise Fault("observe")


def faulty_processor(ids: Tensor, scores: Tensor) -> Tensor:
    """A caller's own processor that gives up after two tokens."""
    if ids.shape[1] > len(PROMPTS[1]) + 2:
        raise Fault("processor")
    return scores


def engine(drafter: Drafter, verifier: Verifier | None = None, make: Callable[[], Any] = lambda: Fixed(3)) -> Engine:
    """An engine on the toy target."""
    return Engine(ToyTarget(TABLE), drafter, verifier or make_verifier("match"), make)


def with_fault(where: str) -> tuple[Engine, list[Row]]:
    """Three rows under way; the middle one will run into trouble there."""
    drafter = Faulty(where, PROMPTS[1][0])
    loop = engine(drafter, FaultyRule() if where == "rule" else None)
    asked = requests(length=20)
    if where == "processor":
        asked[1] = Request(PROMPTS[1], Sampling(temperature=1.0, processors=(faulty_processor,)), 101, 20)
    policies = [FaultyPolicy(where) if n == 1 and where in ("budget", "observe") else None for n in range(3)]
    return loop, [loop.add(request, policy=policy) for request, policy in zip(asked, policies, strict=True)]


FAULTS = ["propose", "commit", "room", "end", "rule", "processor", "budget", "observe"]


@pytest.mark.parametrize("where", FAULTS)
def test_a_row_in_trouble_ends_alone(where: str) -> None:
    """The others write what they would have written, and nothing of the row stays behind."""
    loop, rows = with_fault(where)
    finished = []
    while loop.active:
        finished += [row for row, round_ in loop.step() if round_.finish]
    assert isinstance(rows[1].error, Fault) and str(rows[1].error) == where
    assert [row.error for row in (rows[0], rows[2])] == [None, None]
    asked = requests(length=20)
    assert [rows[n].output for n in (0, 2)] == [written(asked[n]) for n in (0, 2)]
    assert (rows[1] in finished) == (where == "end"), "what ends in trouble has not finished"
    assert sorted(loop.drafter.ended) == sorted(prompt[0] for prompt in PROMPTS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", FAULTS)
def test_rounds_of_a_pass_count_the_rows_that_had_one(where: str) -> None:
    """Places are from 0 without gaps whoever fails, so that a pass can be counted once."""
    loop, _ = with_fault(where)
    while loop.active:
        rounds = [round_ for _, round_ in loop.step()]
        assert [round_.place for round_ in rounds] == list(range(len(rounds)))
        assert {round_.rows for round_ in rounds} <= {len(rounds)}
        assert len({round_.began for round_ in rounds}) <= 1


@pytest.mark.parametrize("where", ["propose", "commit", "room", "end", "rule"])
def test_run_raises_what_went_wrong(where: str) -> None:
    """The library's callers get the error itself, and the engine is free again."""
    drafter = Faulty(where, PROMPTS[1][0])
    loop = engine(drafter, FaultyRule() if where == "rule" else None)
    with pytest.raises(Fault, match=where):
        list(loop.run(requests(length=20)))
    assert loop.active == []


def test_a_drafter_that_fails_on_batches_only_is_asked_row_by_row() -> None:
    """Nobody is to blame, so nobody ends."""

    class Shy(Sampled):
        def propose(self, states: Any, *others: Any) -> list[Draft]:
            if len(states) > 1:
                raise Fault("too many")
            return super().propose(states, *others)

    asked = requests(length=12)
    rows, rounds = serve(engine(Shy(TABLE)), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert any(round_.accepted for round_ in rounds)


def test_trouble_in_the_pass_leaves_everything_as_it_was() -> None:
    """The target's pass belongs to all rows; whoever drives the loop decides, and may simply go on."""
    target = ToyTarget(TABLE)
    loop = Engine(target, ModelDrafter(ToyTarget(TABLE), VOCABULARY), make_verifier("match"), lambda: Fixed(3))
    asked = requests(length=12)
    rows = [loop.add(request) for request in asked]
    loop.step()
    forward, target.forward = target.forward, lambda *_, **__: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        loop.step()
    target.forward = forward  # type: ignore[method-assign]
    while loop.active:
        loop.step()
    assert [row.output for row in rows] == [written(request) for request in asked]


def test_rows_with_drafters_and_policies_of_their_own() -> None:
    """Four drafters and four policies in one batch: the same tokens, each row's drafts from its own drafter."""
    asked = [Request(PROMPTS[n % 3], SAMPLED, 100 + n, 14) for n in range(5)]
    expected = tuple(written(asked[4]))
    asked[4] = Request(asked[4].prompt, SAMPLED, 104, 14, prediction=expected)
    loop = engine(Lookup(4))
    drafters: list[Drafter | None] = [
        None,
        Sampled(TABLE, taps=(1, 3)),
        ModelDrafter(ToyTarget(TABLE), VOCABULARY),
        top(2),
        Reference(),
    ]
    policies = [Fixed(0), Fixed(2), None, Fixed(1), Fixed(5)]
    rows = [loop.add(*parts) for parts in zip(asked, drafters, policies, strict=True)]
    rounds: dict[int, list[Round]] = {}
    while loop.active:
        for row, round_ in loop.step():
            rounds.setdefault(row.index, []).append(round_)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert [rounds[n][0].drafted for n in range(5)] == [0, 2, 3, 2, 5]
    assert all(not round_.drafted for round_ in rounds[0]), "budget 0 is plain decoding"
    assert all(round_.accepted == round_.drafted for round_ in rounds[4]), "it was told what would be written"
    tapped = rows[1].state.commits[0][1].hidden
    assert set(tapped) == {1, 3}


def test_goodput_beside_other_policies() -> None:
    """Rows of other policies do not confuse the company of a pass, whichever row comes first."""
    maker = make_policy("goodput", Setting("toy", True))
    for first in (Fixed(3), Fixed(0)):
        loop = engine(Sampled(TABLE), make=maker)
        asked = requests(length=60, count=4)
        order = [first, None, Fixed(1), None]
        rows = [loop.add(request, policy=policy) for request, policy in zip(asked, order, strict=True)]
        ours = [row.policy for row in rows if isinstance(row.policy, Goodput)]
        while loop.active:
            loop.step()
            for policy in ours:
                assert len(policy._company._members) <= len(ours)
        assert [row.output for row in rows] == [written(request) for request in asked]
    shared = ours[0]._shared
    assert shared.costs.verify(4) is not None, "passes were noted although their first row was another's"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("make", [lambda: top(2), lambda: Sampled(Table(VOCABULARY, 2))], ids=["tree", "chain"])
def test_logprobs_are_the_targets_at_the_nodes_that_were_kept(make: Callable[[], Drafter], count: int) -> None:
    """Of its own law, whatever penalties and temperature made of it, one per token, and as many others as asked."""
    sampling = Sampling(temperature=0.7, top_k=3, presence_penalty=0.5)
    asked = [Request(PROMPTS[n], sampling, n, 12, logprobs=2) for n in range(count)]
    rows, rounds = serve(engine_with(make(), depth=3), asked)
    for round_ in rounds:
        text = rows[round_.request].tokens
        assert len(round_.logprobs) == len(round_.tokens)
        for step, (token, thought) in enumerate(zip(round_.tokens, round_.logprobs, strict=True)):
            law = TABLE.law(tuple(text[: round_.start + step])).float().log()
            assert math.isclose(thought.own, float(law[token]), abs_tol=1e-5)
            best = law.topk(2)
            assert [index for index, _ in thought.top] == best.indices.tolist()
            assert torch.allclose(torch.tensor([value for _, value in thought.top]), best.values, atol=1e-5)


def test_logprobs_only_where_they_were_asked_for() -> None:
    """Nothing by default; the token's own alone with 0."""
    _, rounds = serve(engine_with(top(2)), [Request((0, 1), SAMPLED, 0, 5)])
    assert all(round_.logprobs == () for round_ in rounds)
    _, rounds = serve(engine_with(top(2)), [Request((0, 1), SAMPLED, 0, 5, logprobs=0)])
    assert all(thought.top == () for round_ in rounds for thought in round_.logprobs)
    with pytest.raises(BadOption, match="logprobs is 6"):
        engine_with(top(2)).add(Request((0, 1), SAMPLED, 0, 5, logprobs=VOCABULARY + 1))


def test_a_bias_for_a_token_that_there_is_not_is_refused_before_any_work() -> None:
    """Not in the middle of a batch."""
    loop = engine_with(top(2))
    with pytest.raises(BadOption, match="logit_bias names token 5"):
        loop.add(Request((0, 1), Sampling(logit_bias={5: 1.0}), 0, 5))
    assert loop.target.passes == 0  # type: ignore[attr-defined]


def test_eos_can_be_ignored() -> None:
    """Where a request says so, EOS is a token like any other."""
    request = Request((0, 1), SAMPLED, 3, 20)
    eos = (written(request)[2],)
    loop = engine_with(Sampled(TABLE), target=ToyTarget(TABLE, eos))
    (ends, runs), _ = serve(loop, [request, Request((0, 1), SAMPLED, 3, 20, ignore_eos=True)])
    assert (ends.output, ends.finish) == (written(request, eos), "stop")
    assert (runs.output, runs.finish) == (written(request), "length")
