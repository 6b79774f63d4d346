"""Two drafters in turn: who drafts when, what each is shown, and how specs are taken apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_engine import SAMPLED, TABLE, VOCABULARY, engine_with, requests, serve, top, written
from toy import Branching, Context, Likeliest, Sampled, Scripted, Table, ToyDrafter, ToyState, ToyTarget, signature

from outrider.drafters import DRAFTERS, Drafter, Setting, make_drafter
from outrider.drafters.cascade import Cascade
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.drafters.options import split_specs
from outrider.errors import BadOption
from outrider.noise import SeededNoise
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.types import UNBOUNDED, Budget, Draft, Noise, Scores


class Scored(Likeliest):
    """Drafts what its table thinks likeliest, and expects as much of it as it is told, round by round."""

    def __init__(self, table: Table, scores: Sequence[float], **options: Any) -> None:
        super().__init__(table, **options)
        self._scores = scores

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        return replace(super().draft(state, depth, noise), score=self._scores[state.rounds % len(self._scores)])


def guess(seed: int) -> Scored:
    """A first drafter of little knowledge whose confidence goes up and down."""
    return Scored(Table(VOCABULARY, seed), [0.4, 3.0, 0.0, 1.0, 9.0])


MAKERS: dict[str, Callable[[], Drafter]] = {
    "lookup, model": lambda: Cascade(Lookup(4), ModelDrafter(ToyTarget(Table(VOCABULARY, 3)), VOCABULARY)),
    "lookup, the target itself": lambda: Cascade(Lookup(4), ModelDrafter(ToyTarget(TABLE), VOCABULARY)),
    "guesses, sampled": lambda: Cascade(guess(60), Sampled(Table(VOCABULARY, 61))),
    "guesses, a tree": lambda: Cascade(guess(60), top(2)),
    "lookup, guesses, model": lambda: Cascade(
        Lookup(4), Cascade(guess(60), ModelDrafter(ToyTarget(TABLE), VOCABULARY))
    ),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("name", MAKERS)
def test_same_seed_same_tokens(name: str, sampling: Sampling, count: int) -> None:
    """Under `match` it writes what plain sampling writes, alone and in company."""
    asked = requests(sampling, length=25, count=count)
    rows, _ = serve(engine_with(MAKERS[name](), depth=3), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]


def test_who_drafts() -> None:
    """The first one where it expects at least what the second one's drafts have had so far, which begins with 1."""
    drafter = Cascade(Scored(Table(VOCABULARY, 70), [0.9, 1.0, 0.5, 2.0, 2.6, 2.4]), Likeliest(TABLE))
    state, noise = drafter.begin((0, 1), {}), SeededNoise.for_draft(0, 0, True)
    rounds = []
    for _ in range(6):
        expected = state.expected
        (draft,) = drafter.propose([state], [Budget(4)], [Sampling()], [noise])
        rounds.append((state.asked, expected, draft.score))
        kept = draft.tree.tokens[1:4].tolist()  # three of four are accepted, whoever drafted
        drafter.commit(state, [*kept, 0], Scores(torch.zeros(5, VOCABULARY)), (0, 1, 2, 3))
    means = [1, 4 / 2, 7 / 3, 10 / 4, 13 / 5, 13 / 5]
    asked = [1, 1, 1, 1, 0, 1]
    assert rounds == list(zip(asked, means, means, strict=True))


def test_a_draft_stands_where_the_other_one_has_nothing_to_say() -> None:
    """The second one may not have read the text yet: what it read is told, and the first one's draft is the row's."""
    target = ToyTarget(TABLE)
    drafter = Cascade(Scored(Table(VOCABULARY, 70), [0.5]), ModelDrafter(target, VOCABULARY))
    assert drafter.reads
    state, noise = drafter.begin((0, 1, 2, 3, 0, 1, 2, 3, 0, 1), {}), SeededNoise.for_draft(0, 0, True)
    seen = []
    for reading in (0, 4, UNBOUNDED, UNBOUNDED):
        (draft,) = drafter.propose([state], [Budget(3, reading=reading)], [Sampling()], [noise])
        seen.append((state.asked, draft.read, draft.score))
        drafter.commit(state, [0], Scores(torch.zeros(4, VOCABULARY)), (0,))
    assert seen == [(0, 0, 0.5), (0, 4, 0.5), (1, 7, 1.0), (0, 0, 0.5)]


def test_rows_of_a_batch_choose_for_themselves() -> None:
    """Only rows that are left over are shown to the second drafter, with their own budgets, samplings and noises."""
    second = Watching()
    drafter = Cascade(Scored(TABLE, [0.5, 5.0]), second)
    states = [drafter.begin((n,), {}) for n in range(3)]
    drafter.commit(states[1], [2], Scores(torch.zeros(1, VOCABULARY)), (0,))
    samplings = [Sampling(temperature=float(n)) for n in range(3)]
    budgets = [Budget(2 + n) for n in range(3)]
    noises = [SeededNoise.for_draft(n, 0, True) for n in range(3)]
    drafts = drafter.propose(states, budgets, samplings, noises)
    ((asked, theirs, settings, random),) = second.seen
    assert asked == [states[0].parts[1], states[2].parts[1]]
    assert [budget.depth for budget in theirs] == [2, 4]
    assert (settings, random) == ([samplings[0], samplings[2]], [noises[0], noises[2]])
    assert [int(draft.tree.tokens[0]) for draft in drafts] == [0, 2, 2]
    assert [len(draft.tree) for draft in drafts] == [3, 4, 5], "the first one's, as the second one drafted nothing"


class Watching(Scripted):
    """Drafts nothing and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__([])
        self.seen: list[Any] = []

    def propose(self, states: Any, budgets: Any, samplings: Any, noises: Any) -> list[Draft]:
        """See `Drafter`."""
        self.seen.append((list(states), list(budgets), list(samplings), list(noises)))
        return super().propose(states, budgets, samplings, noises)


@pytest.mark.parametrize("confident", [0.0, 9.0])
def test_both_see_every_commit(confident: float) -> None:
    """Each with the layers it asked for; one that did not draft sees a chain of what was kept."""
    first = Scored(Table(VOCABULARY, 71), [confident], taps=(0,))
    second = Branching(lambda context: TABLE.law(context).topk(2).indices.tolist(), taps=(0, 2))
    drafter = Cascade(first, second)
    assert drafter.taps == (0, 2)
    engine = engine_with(drafter, depth=3)
    rows, rounds = serve(engine, requests(length=20, count=2))
    for row in rows:
        prompt = list(row.request.prompt)
        for part, layers, used in zip(row.state.parts, ((0,), (0, 2)), (confident > 0, confident == 0), strict=True):
            assert part.tokens == row.tokens
            assert set(part.begun) == (set(layers) if len(prompt) > 1 else set())
            before = tuple(prompt)
            for tokens, scores, path in part.commits:
                assert set(scores.hidden) == set(layers)
                along = scores.at(path)
                contexts = [(*before, *tokens[:place]) for place in range(len(tokens))]
                for layer in layers:
                    assert torch.equal(along.hidden[layer], torch.stack([signature(c, layer) for c in contexts]))
                assert used or path == tuple(range(len(tokens)))
                before = (*before, *tokens)
    assert any(round_.drafted for round_ in rounds)


@pytest.mark.parametrize("name", ["lookup, model", "lookup, guesses, model"])
def test_rounds_in_which_the_other_one_drafts(name: str) -> None:
    """The draft model was not asked, for several rounds: its next draft is that of a fresh state."""
    asked = [Request((0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3), Sampling(), 0, 30)]
    drafter = MAKERS[name]()
    engine = engine_with(drafter, depth=3)
    row = engine.add(asked[0])
    engine.step()
    while engine.active:
        own: Any = drafter
        state = row.state
        while isinstance(own, Cascade):
            own, state = own._parts[1], state.parts[1]
        assert state.tokens == row.tokens
        noise = SeededNoise.for_draft(0, 0, True)
        fresh = own.begin(tuple(row.tokens), {})
        twins = [own.propose([one], [Budget(4)], [Sampling()], [noise])[0] for one in (fresh, copy.deepcopy(state))]
        assert torch.equal(twins[0].tree.tokens, twins[1].tree.tokens)
        engine.step()
    assert row.output == written(asked[0])


def test_room_is_that_of_the_roomier_one() -> None:
    """The one whose context is full is asked for nothing; the other one goes on, however little it expects."""
    for first, second in ((6, 1 << 20), (1 << 20, 6)):
        drafter = Cascade(Scored(TABLE, [0.1] if second == 6 else [9.0], limit=first), Likeliest(TABLE, limit=second))
        asked = requests(Sampling(), length=20)
        rows, rounds = serve(engine_with(drafter, depth=3), asked)
        assert [row.output for row in rows] == [written(request) for request in asked]
        assert all(round_.drafted for round_ in rounds if len(round_.tokens) > 1)
        assert sum(round_.accepted for round_ in rounds) > 40


def test_a_first_drafter_without_a_score_is_refused() -> None:
    """At its first draft, with the remedy; so is one that draws at random, which the choice would bias."""
    target = ToyTarget(Table(VOCABULARY, 3))
    for first, why in (
        (ModelDrafter(target, VOCABULARY), "does not say how many"),
        (Drawn(Table(VOCABULARY, 4)), "draws its tokens at random"),
    ):
        engine = engine_with(Cascade(first, Lookup(4)))
        with pytest.raises(BadOption, match=f"{why}.*: put suffix or another"):
            list(engine.run(requests(Sampling() if "say" in why else SAMPLED)))


class Drawn(Sampled):
    """Draws its tokens and scores them."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        return replace(super().draft(state, depth, noise), score=5.0)


@pytest.mark.parametrize(
    ("argument", "specs"),
    [
        ("lookup,model:./small", ["lookup", "model:./small"]),
        ("lookup:4,translated:slem:org/name", ["lookup:4", "translated:slem:org/name"]),
        ("lookup,model:./a,b", ["lookup", "model:./a,b"]),
        ("lookup,model:./lookups,or,models", ["lookup", "model:./lookups,or,models"]),
        ("lookup,early_exit:4,mtp", ["lookup", "early_exit:4", "mtp"]),
        ("lookup,cascade:lookup:2,model:x", ["lookup", "cascade:lookup:2,model:x"]),
        ("my.own:Drafter,other.thing:Class", ["my.own:Drafter", "other.thing:Class"]),
        ("model:C,my.own:Drafter", ["model:C", "my.own:Drafter"]),
        ("lookup", ["lookup"]),
        ("lookup,", ["lookup,"]),
        ("", []),
    ],
)
def test_specs_are_split_where_a_drafter_begins(argument: str, specs: list[str]) -> None:
    """Paths keep their commas."""
    assert split_specs(argument, DRAFTERS) == specs


@pytest.fixture
def setting() -> Setting:
    """A setting on the toy target."""
    return Setting(ToyTarget(TABLE), None, lambda name: (ToyTarget(Table(VOCABULARY, 23)), None))


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("cascade:lookup,model:x", "cascade:lookup:16,model:x"),
        ("cascade:lookup:2,lookup:3,model:x", "cascade:lookup:2,cascade:lookup:3,model:x"),
        ("cascade:lookup:2,cascade:lookup:3,model:x", "cascade:lookup:2,cascade:lookup:3,model:x"),
    ],
)
def test_specs(setting: Setting, spec: str, name: str) -> None:
    """More than two nest to the right; its own name makes the same again."""
    drafter = make_drafter(spec, setting)
    assert drafter.spec == name
    assert make_drafter(name, setting).spec == name
    request = Request((1, 2, 1, 2), SAMPLED, 3, 12)
    rows, _ = serve(engine_with(drafter), [request])
    assert rows[0].output == written(request)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cascade", "fewer than two drafters: write cascade:A,B"),
        ("cascade:lookup", "fewer than two drafters"),
        ("cascade:lookup,", "no match length|fewer than two"),
        ("cascade:none,lookup", "name that one"),
        ("cascade:lookup,none", "name that one"),
        ("cascade:lookup,crystal", "fewer than two"),
        ("cascade:lookup,model", "needs a draft model"),
        ("cascade:lookup:0,model:x", "no match length"),
    ],
)
def test_refusals(setting: Setting, spec: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make_drafter(spec, setting)


class Reading(Likeliest):
    """Has a use for a prediction, or cannot do without."""

    def __init__(self, needs: bool = False) -> None:
        super().__init__(TABLE)
        self._needs = needs

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        if self._needs and not prediction:
            raise BadOption("It is needed.")

    def expect(self, state: Any, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        state.expected = list(prediction)


def test_predictions_go_to_who_has_a_use_for_them() -> None:
    """To either of the two; none at all is refused, and so is one that is missing."""
    for place, parts in enumerate(((Reading(), Likeliest(TABLE)), (Likeliest(TABLE), Reading()))):
        drafter = Cascade(*parts)
        drafter.check_prediction([1, 2])
        drafter.check_prediction([])
        state = drafter.begin((0, 1), {})
        drafter.expect(state, [1, 2])
        assert state.parts[place].expected == [1, 2]
        assert not hasattr(state.parts[1 - place], "expected")
    with pytest.raises(BadOption, match="no use for a prediction"):
        Cascade(Likeliest(TABLE), Lookup(4)).check_prediction([1])
    with pytest.raises(BadOption, match="It is needed"):
        Cascade(Lookup(4), Reading(needs=True)).check_prediction([])


def test_both_states_end() -> None:
    """Once each, when the request is done."""
    ended = []

    class Ending(ToyDrafter):
        """Remembers whose end it was."""

        def draft(self, state: Any, depth: int, noise: Noise) -> Draft:
            """See `ToyDrafter`."""
            return replace(Scripted([]).draft(state, depth, noise), score=0.0)

        def end(self, state: Any) -> None:
            """See `Drafter`."""
            ended.append(state)

    rows, _ = serve(engine_with(Cascade(Ending(), Ending())), requests(length=4, count=2))
    assert all(sum(part is state for state in ended) == 1 for row in rows for part in row.state.parts)
    assert len(ended) == 4


def test_traits_are_those_of_the_two() -> None:
    """Trees if either makes them, always if either always does; no law, since the first one has none."""
    plain, tree, always = Lookup(4), ModelDrafter(ToyTarget(TABLE), VOCABULARY), Likeliest(TABLE)
    always.makes_trees = always.always_branches = True
    assert not Cascade(plain, plain).makes_trees
    assert Cascade(plain, tree).makes_trees
    assert not Cascade(plain, tree).always_branches
    assert Cascade(always, tree).always_branches
    assert not Cascade(plain, tree).has_law


def test_both_forget() -> None:
    """It learns if one of the two does, and what it forgets is what they do."""
    forgotten: list[int] = []

    class Forgetful(Lookup):
        """Counts how often it has to forget."""

        learns = True

        def forget(self) -> None:
            """See `Drafter`."""
            forgotten.append(1)

    assert Cascade(Lookup(2), Forgetful(2)).learns and not Cascade(Lookup(2), Lookup(3)).learns
    Cascade(Forgetful(2), Forgetful(2)).forget()
    assert forgotten == [1, 1]


def test_notes_are_joined() -> None:
    """Whatever either has to say."""
    one, other = Lookup(4), Likeliest(TABLE)
    assert Cascade(one, other).note == ""
    one.note, other.note = "First.", "Second."
    assert Cascade(one, other).note == "First. Second."


def test_both_are_told_where_the_request_sits() -> None:
    """For drafters that run the target's own layers."""

    class Sitting(ToyDrafter):
        """Remembers its seat."""

        def seated(self, state: Any, seat: Any) -> None:
            """See `Drafter`."""
            state.seat = seat

        def draft(self, state: Any, depth: int, noise: Noise) -> Draft:
            """See `ToyDrafter`."""
            assert state.seat.length == len(state.tokens) - 1
            return replace(Scripted([]).draft(state, depth, noise), score=0.0)

    drafter = Cascade(Sitting(), Sitting())
    rows, _ = serve(engine_with(drafter), requests(length=4))
    assert all(part.seat is not None for row in rows for part in row.state.parts)


def test_lookup_says_what_it_expects() -> None:
    """More of longer matches and of longer drafts, never more than it drafts, nothing without a match."""
    drafter, noise = Lookup(16), SeededNoise.for_draft(0, 0, True)

    def score(text: Context, depth: int) -> float:
        (draft,) = drafter.propose([drafter.begin(text, {})], [Budget(depth)], [Sampling()], [noise])
        assert draft.score is not None
        assert draft.score <= len(draft.tree) - 1
        return draft.score

    assert score((1, 2, 3), 5) == 0
    assert score((1, 2, 1), 5) == pytest.approx(1 / 2 + 1 / 4)
    longer = (*range(10, 20), 5, 6, 7, 8, *range(10, 20))
    assert score(longer, 1) == pytest.approx(10 / 11)
    assert score(longer, 4) > score(longer, 2) > score((1, 2, 1), 5)
