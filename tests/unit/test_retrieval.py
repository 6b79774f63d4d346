"""Drafters that need no training, in the loop: the same tokens with any of them, and nothing that stays behind.

The expected texts come from `written`, which knows the table, the noise and nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_engine import SAMPLED, TABLE, requests, serve, written
from toy import Context, Scripted, Stream, Table, ToyTarget, Wide

from outrider.drafters import Drafter
from outrider.drafters.lookahead import Lookahead
from outrider.drafters.recycle import Recycle
from outrider.drafters.reference import Reference
from outrider.drafters.suffix import Suffix
from outrider.engine import Engine
from outrider.errors import BadOption
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.tree import depths, is_chain
from outrider.types import Round
from outrider.verify import make_verifier

SHAPES = [(1, 1), (2, 2), (5, 5), (20, 20), (1, 4), (2, 9), (5, 24), (20, 40)]
MAKES: dict[str, Callable[[], Drafter]] = {
    "suffix": Suffix,
    "suffix, as in the paper": lambda: Suffix(factor=4, doubt=0),
    "recycle": Recycle,
    "recycle:2": lambda: Recycle(2),
    "lookahead": Lookahead,
    "lookahead, small": lambda: Lookahead(window=2, ngram=2),
    "reference, right": Reference,
    "reference, in part": Reference,
    "reference, wrong": Reference,
}


def asked_of(name: str, sampling: Sampling, count: int, length: int = 24) -> list[Request]:
    """Requests, with the predictions that the name of a drafter asks for."""
    asked = requests(sampling, length=length, count=count)
    if not name.startswith("reference"):
        return asked
    expected = [written(request) for request in asked]
    if "part" in name:
        expected = [[*text[:6], 0, *text[9:14], *text[16:]] for text in expected]
    if "wrong" in name:
        expected = [[(token + 1) % 5 for token in text] for text in expected]
    return [replace(request, prediction=tuple(text)) for request, text in zip(asked, expected, strict=True)]


def engine_with(drafter: Drafter, shape: tuple[int, int], table: Table = TABLE, rule: str = "match") -> Engine:
    """An engine on the toy target with budgets of one shape."""
    return Engine(ToyTarget(table), drafter, make_verifier(rule), lambda: Wide(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("name", MAKES)
def test_same_seed_same_tokens(name: str, sampling: Sampling, shape: tuple[int, int]) -> None:
    """Chains and trees of every size, alone and in a batch: what plain sampling writes, and no draft beyond budget."""
    for count in (1, 3):
        asked = asked_of(name, sampling, count)
        rows, rounds = serve(engine_with(MAKES[name](), shape), asked)
        assert [row.output for row in rows] == [written(request) for request in asked]
        for round_ in rounds:
            assert round_.drafted <= shape[1]
            assert int(depths(round_.tree.parents).max()) <= shape[0]
            if shape[0] == shape[1] and not name.startswith("lookahead"):
                assert is_chain(round_.tree.parents), "a budget without nodes to spare asks for a chain"


@pytest.mark.parametrize("name", ["suffix", "recycle", "reference, in part"])
def test_chains_under_a_rule_that_serves_no_trees(name: str) -> None:
    """To the very end, where the budget leaves less depth than the policy wants."""
    rows, rounds = serve(engine_with(MAKES[name](), (5, 5), rule="token"), asked_of(name, SAMPLED, 3))
    assert all(row.finish == "length" for row in rows)
    assert max(round_.drafted for round_ in rounds) > 1


def test_a_right_prediction_is_accepted_whole() -> None:
    """The loop's side of it: the whole text in as few passes as its drafts allow."""
    (row,), rounds = serve(engine_with(Reference(), (20, 20)), asked_of("reference, right", SAMPLED, 1, length=63))
    assert len(row.output) == 63
    assert len(rounds) == 3
    assert all(round_.accepted == round_.drafted == 20 for round_ in rounds)


def drafts_of(engine: Engine, request: Request, rounds: int = 99) -> list[list[int]]:
    """What is drafted for a request, round by round; it is broken off after so many."""
    run = engine.run([request])
    drafts: list[list[int]] = []
    for _ in range(rounds):
        served = next(run, None)
        if served is None:
            break
        drafts.append([*served[1].tree.tokens.tolist(), *served[1].tree.parents.tolist()])
    run.close()
    return drafts


@pytest.mark.parametrize("shape", [(4, 4), (4, 20)])
@pytest.mark.parametrize("name", [name for name in MAKES if not name.startswith("suffix")])
def test_requests_leave_no_trace(name: str, shape: tuple[int, int]) -> None:
    """A, B broken off, A in the company of B, A: the same drafts each time, not only the same tokens."""
    engine = engine_with(MAKES[name](), shape)
    first, second = asked_of(name, SAMPLED, 2)
    drafts = drafts_of(engine, first)
    drafts_of(engine, second, rounds=3)
    together = [round_ for row, round_ in engine.run([first, second]) if row.request is first]
    assert [[*round_.tree.tokens.tolist(), *round_.tree.parents.tolist()] for round_ in together] == drafts
    assert drafts_of(engine, first) == drafts


def test_the_global_structure_is_all_that_stays_of_a_request() -> None:
    """With it the second run of a request is drafted from the first and has fewer rounds; without it all is as before;
    the text is the same either way."""
    (request,) = asked_of("suffix", SAMPLED, 1, length=40)
    for keeps in (0, 1000):
        engine = engine_with(Suffix(global_tokens=keeps), (5, 5))
        (row,), rounds = serve(engine, [request])
        (again,), fewer = serve(engine, [request])
        assert row.output == again.output == written(request)
        assert len(fewer) <= len(rounds) // 2 if keeps else len(fewer) == len(rounds)
        drafts = [round_.tree.tokens.tolist() for round_ in rounds]
        assert ([round_.tree.tokens.tolist() for round_ in fewer] == drafts) == (keeps == 0)


class Noting(Scripted):
    """Writes down which states were begun, told what to expect, and ended."""

    def __init__(self) -> None:
        super().__init__([[0, 0]] * 50)
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.expected: list[tuple[int, ...]] = []

    def begin(self, prompt: Sequence[int], hidden: Any) -> Any:
        """See `Drafter`."""
        self.begun.append(super().begin(prompt, hidden))
        return self.begun[-1]

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """See `Drafter`; anything goes but a lone 4."""
        if tuple(prediction) == (4,):
            raise BadOption("Not that.")

    def expect(self, state: Any, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        assert state is self.begun[-1]
        self.expected.append(tuple(prediction))

    def end(self, state: Any) -> None:
        """See `Drafter`."""
        self.ended.append(state)


def test_every_state_ends_once() -> None:
    """When its row has finished, when it is removed (twice makes no difference), and when the caller leaves early."""
    drafter = Noting()
    engine = engine_with(drafter, (2, 2))
    rows = [engine.add(request) for request in requests(length=4, count=3)]
    assert drafter.ended == []
    engine.remove(rows[1])
    engine.remove(rows[1])
    assert [state is drafter.begun[1] for state in drafter.ended] == [True]
    while engine.active:
        engine.step()
    engine.remove(rows[0])
    assert sorted(map(id, drafter.ended)) == sorted(map(id, drafter.begun))
    run = engine.run(requests(length=30, count=2))
    next(run)
    assert len(drafter.ended) == 3
    run.close()
    assert sorted(map(id, drafter.ended)) == sorted(map(id, drafter.begun))
    assert len(drafter.ended) == 5


def test_a_state_ends_with_what_it_has_been_told() -> None:
    """After its last commit, so that a finished output is whole."""
    (request,) = requests(length=9, count=1)
    drafter = Noting()
    list(engine_with(drafter, (2, 2)).run([request]))
    assert drafter.ended[0].tokens == [*request.prompt, *written(request)]


def test_predictions_reach_their_own_request() -> None:
    """After `begin`, and only where there is one; what the drafter refuses is refused before any work."""
    drafter = Noting()
    target = ToyTarget(TABLE)
    engine = Engine(target, drafter, make_verifier("match"), lambda: Wide(2, 2))
    first, second, third = requests(count=3)
    with pytest.raises(BadOption, match="Not that"):
        engine.add(replace(first, prediction=(4,)))
    assert (target.passes, drafter.begun) == (0, [])
    for request in (replace(first, prediction=(1, 2)), second, replace(third, prediction=(3,))):
        engine.add(request)
    assert drafter.expected == [(1, 2), (3,)]


@pytest.mark.parametrize("make", [Suffix, Recycle, Lookahead, lambda: Scripted([])])
def test_drafters_without_use_for_a_prediction_refuse_it(make: Callable[[], Drafter]) -> None:
    """It would change nothing; and the drafter that needs one refuses to go without."""
    (request,) = requests(count=1)
    with pytest.raises(BadOption, match="take the drafter 'reference'"):
        engine_with(make(), (2, 2)).add(replace(request, prediction=(1,)))
    with pytest.raises(BadOption, match="pass prediction="):
        engine_with(Reference(), (2, 2)).add(request)
    with pytest.raises(BadOption, match="vocabulary of 5"):
        engine_with(Reference(), (2, 2)).add(replace(request, prediction=(1, 5)))


@pytest.mark.parametrize("name", ["suffix", "recycle"])
def test_a_text_that_repeats_itself_is_written_in_blocks(name: str) -> None:
    """A period of five, whatever the table says: both learn it within the second time round."""
    target: Context = (0, 1, 2, 3, 4)
    rounds: list[Round] = []
    for shape in ((5, 5), (5, 12)):
        engine = engine_with(MAKES[name](), shape, Stream(5, 2, target))
        rounds = [round_ for _, round_ in engine.run([Request((3, 4), Sampling(), 0, 60)])]
        assert len(rounds) <= 22
        assert all(round_.accepted >= 5 for round_ in rounds[-5:-1])
