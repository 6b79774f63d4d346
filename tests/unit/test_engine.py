"""The loop on the toy target: the same tokens whatever the drafter, the company or the draft length.

The expected texts come from `written`, which knows the table, the noise and nothing of the engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from toy import (
    Branching,
    Context,
    Likeliest,
    Sampled,
    Scripted,
    Table,
    ToyDrafter,
    ToyEncoder,
    ToyState,
    ToyTarget,
    Wide,
)

from outrider.drafters import Drafter
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import BadOption, BadPrompt
from outrider.kv import BLOCK
from outrider.noise import SeededNoise
from outrider.policy import POLICIES, Fixed, Heuristic, Setting, make_policy
from outrider.row import Request, Row
from outrider.sampling import History, Sampling
from outrider.tree import is_chain
from outrider.types import Budget, Draft, Noise, Round, Source, Tree
from outrider.verify import VERIFIERS, make_verifier

VOCABULARY = 5
TABLE = Table(VOCABULARY, 1)
PROMPTS: list[Context] = [(0, 1), (2,), (3, 1, 4, 1, 0, 3, 1)]
SAMPLED = Sampling(temperature=1.0)
LOSSLESS = [name for name, kind in VERIFIERS.items() if kind.lossless]


def written(request: Request, eos: tuple[int, ...] = (), table: Table = TABLE) -> list[int]:
    """What plain decoding writes: one token after another, each with the noise of its position."""
    text: list[int] = []
    read = () if request.source is None else request.source.ids
    while len(text) < request.max_new_tokens and not (text and text[-1] in eos):
        context = (*request.prompt, *text)
        history = History(context, len(request.prompt), eos)
        law = request.sampling.law(table.law((*read, *context)).log()[None], Tree.chain(context[-1:]), history)
        text.append(law.draws(SeededNoise.for_verifier(request.seed, 0), [len(context)])[0])
    return text


def read_first(request: Request) -> Request:
    """The same for a target with an encoder, which reads all of the prompt but its last token."""
    return replace(request, prompt=request.prompt[-1:], source=Source(request.prompt[:-1], words=request.prompt[:-1]))


@dataclass(frozen=True)
class Kind:
    """Where a target has its prompt."""

    target: type[ToyTarget]
    put: Callable[[Request], Request]


KINDS = {"decoder": Kind(ToyTarget, lambda request: request), "encoder-decoder": Kind(ToyEncoder, read_first)}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def requests(
    sampling: Sampling = SAMPLED, length: int = 14, count: int = 3, kind: Kind = KINDS["decoder"]
) -> list[Request]:
    """Requests with prompts, seeds and lengths of their own."""
    return [kind.put(Request(PROMPTS[n % 3], sampling, 100 + n, length + n)) for n in range(count)]


def serve(engine: Engine, asked: Sequence[Request]) -> tuple[list[Row], list[Round]]:
    """Run to the end, with the loop's invariant looked at after every round."""
    rows = [engine.add(request) for request in asked]
    rounds = []
    while engine.active:
        under_way = list(engine._batch)  # rows that end in this round have to be in order too
        for row, round_ in engine.step():
            assert row.tokens[round_.start :] == list(round_.tokens)
            assert int(round_.tree.tokens[0]) == row.tokens[round_.start - 1], "node 0 is the pending token"
            rounds.append(round_)
        for row, seat in under_way:
            assert seat.length == len(row.tokens) - 1
    assert all(row.finish for row in rows)
    return rows, rounds


def engine_with(drafter: Drafter, depth: int = 4, target: ToyTarget | None = None, rule: str = "match") -> Engine:
    """An engine on the toy target."""
    return Engine(target or ToyTarget(TABLE), drafter, make_verifier(rule), lambda: Fixed(depth))


class Guessing(ToyDrafter):
    """Random chains of random lengths, right now and then."""

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        chance = random.Random(len(state.tokens))
        drafted = chance.choices(range(VOCABULARY), k=chance.randrange(depth + 1))
        return Draft(Tree.chain([state.tokens[-1], *drafted]))


def top(width: int) -> Branching:
    """Trees of the target's own likeliest tokens."""
    return Branching(lambda context: TABLE.law(context).topk(width).indices.tolist())


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "guessing": Guessing,
    "lookup": lambda: Lookup(4),
    "likeliest": lambda: Likeliest(TABLE),
    "sampled, coupled": lambda: Sampled(TABLE),
    "sampled, another table": lambda: Sampled(Table(VOCABULARY, 2)),
    "tree": lambda: top(2),
    "lopsided tree": lambda: Branching(lambda context: range(len(context) % 3)),
    "tree of twins": lambda: Branching(lambda context: [int(TABLE.law(context).argmax())] * 2),
    "model, the target itself": lambda: ModelDrafter(ToyTarget(TABLE), VOCABULARY),
    "model, another one": lambda: ModelDrafter(ToyTarget(Table(VOCABULARY, 3)), VOCABULARY),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
@every_kind
def test_same_seed_same_tokens(kind: Kind, make: Callable[[], Drafter], sampling: Sampling, count: int) -> None:
    """Under `match` every drafter writes what plain sampling writes, alone and in company."""
    asked = requests(sampling, count=count, kind=kind)
    rows, _ = serve(engine_with(make(), depth=3, target=kind.target(TABLE)), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]


class Bushy(Branching):
    """A tree of the target's own likeliest tokens, level by level as far as the budget's nodes reach."""

    makes_trees = True

    def __init__(self) -> None:
        super().__init__(lambda context: TABLE.law(context).topk(2).indices.tolist())

    def propose(
        self, states: Sequence[Any], budgets: Sequence[Budget], samplings: Sequence[Sampling], noises: Sequence[Noise]
    ) -> list[Draft]:
        """See `Drafter`."""
        shallow = [replace(budget, depth=min(budget.depth, 4)) for budget in budgets]
        drafts = super().propose(states, shallow, samplings, noises)
        sizes = [budget.nodes + 1 for budget in budgets]
        trees = [Tree(d.tree.tokens[:size], d.tree.parents[:size]) for d, size in zip(drafts, sizes, strict=True)]
        return [Draft(tree) for tree in trees]


CHAINS = {name: make for name, make in DRAFTERS.items() if "tree" not in name}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("make", [*CHAINS.values(), Bushy], ids=[*CHAINS, "bushy"])
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_changes_a_token(name: str, make: Callable[[], Drafter], sampling: Sampling, count: int) -> None:
    """How long to draft, where to stop and how many branches to grow is all the same to what is written."""
    drafter, asked = make(), requests(sampling, count=count)
    setting = Setting(drafter.spec, drafter.has_law, drafter.makes_trees)
    spec = "fixed:2" if name == "fixed" else name
    if name in ("confidence", "entropy") and not drafter.has_law:
        with pytest.raises(BadOption, match="no probabilities"):
            make_policy(spec, setting)
        return
    engine = Engine(ToyTarget(TABLE), drafter, make_verifier("match"), make_policy(spec, setting))
    rows, rounds = serve(engine, asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    # Whether drafts pay on a toy is for the clock to say.
    assert name == "goodput" or isinstance(drafter, NoDrafter) or any(round_.drafted for round_ in rounds)


def test_a_round_knows_its_pass() -> None:
    """How many rows and nodes shared it, which row it is itself, and whole times for all but its own verdict."""
    _, rounds = serve(engine_with(top(2), depth=2), requests(count=3))
    passes: dict[int, list[Round]] = {}
    for round_ in rounds:
        passes.setdefault(round_.number, []).append(round_)
    assert {len(told) for told in passes.values()} >= {1, 2, 3}
    for told in passes.values():
        assert [round_.place for round_ in told] == list(range(len(told)))
        assert {round_.rows for round_ in told} == {len(told)}
        assert {round_.nodes for round_ in told} == {sum(len(round_.tree) for round_ in told)}
        assert len({(round_.draft_seconds, round_.verify_seconds) for round_ in told}) == 1
        assert all(round_.verdict_seconds > 0 for round_ in told)


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 13, 19, 20])
@pytest.mark.parametrize("count", [1, 3])
def test_the_target_as_its_own_drafter(depth: int, count: int) -> None:
    """Draft = target: everything is accepted, in blocks of every length, and nothing else changes."""
    asked = requests(length=41, count=count)
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    rows, rounds = serve(engine_with(drafter, depth), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    for round_ in rounds:
        assert round_.accepted == round_.drafted
        assert round_.drafted == depth or round_.number == max(r.number for r in rounds if r.request == round_.request)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("own", [True, False], ids=["the target itself", "another one"])
def test_a_draft_model_as_a_tree(own: bool, sampling: Sampling, count: int) -> None:
    """Under `match` its trees change nothing; drawn by the target itself, one path is right to its end."""
    asked = requests(sampling, length=20, count=count)
    drafter = ModelDrafter(ToyTarget(TABLE if own else Table(VOCABULARY, 3)), VOCABULARY)
    engine = Engine(ToyTarget(TABLE), drafter, make_verifier("match"), lambda: Wide(3, 9))
    rows, rounds = serve(engine, asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert any(not is_chain(round_.tree.parents) for round_ in rounds)
    for round_ in rounds:
        assert not own or sampling is not SAMPLED or round_.accepted == min(3, round_.drafted) or round_.finish


@pytest.mark.parametrize("rule", ["block", "lenience:0.5"])
def test_rules_for_chains_never_see_a_branch(rule: str) -> None:
    """A budget of more nodes than depth is cut to a chain's for them."""
    drafter = ModelDrafter(ToyTarget(Table(VOCABULARY, 3)), VOCABULARY)
    engine = Engine(ToyTarget(TABLE), drafter, make_verifier(rule), lambda: Wide(3, 9))
    _, rounds = serve(engine, requests())
    assert all(is_chain(round_.tree.parents) for round_ in rounds)
    assert {round_.drafted for round_ in rounds} >= {3}


@pytest.mark.parametrize("make", [DRAFTERS["tree"], DRAFTERS["model, another one"], DRAFTERS["lookup"]])
def test_penalties_and_truncation_change_nothing(make: Callable[[], Drafter]) -> None:
    """Processors see each node's own history: the seed still gives the tokens of plain sampling."""
    sampling = Sampling(
        temperature=1.2, top_k=4, top_p=0.95, repetition_penalty=1.4, frequency_penalty=0.3, min_new_tokens=5
    )
    asked = requests(sampling)
    rows, _ = serve(engine_with(make(), depth=3, target=ToyTarget(TABLE, eos=(4,))), asked)
    assert [row.output for row in rows] == [written(request, eos=(4,)) for request in asked]


def test_heuristic_policy_and_rows_that_join_later() -> None:
    """Lengths that change, and requests that come while others are under way."""
    asked = requests(length=20)
    engine = Engine(ToyTarget(TABLE), DRAFTERS["model, another one"](), make_verifier("match"), Heuristic)
    rows = [engine.add(asked[0])]
    engine.step()
    rows.append(engine.add(asked[1]))
    engine.step()
    rows.append(engine.add(asked[2]))
    while engine.active:
        engine.step()
    assert [row.output for row in rows] == [written(request) for request in asked]


def test_the_cache_grows_under_way() -> None:
    """Past the slots that were allocated, in a batch, with a drafter that has a cache too."""
    asked = [Request((n, *PROMPTS[2] * 80)[: BLOCK - 15 * n - 10], SAMPLED, n, 45) for n in range(2)]
    rows, _ = serve(engine_with(ModelDrafter(ToyTarget(TABLE), VOCABULARY), depth=20), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_prefill_in_chunks(chunk: int) -> None:
    """The prompt's end is the pending token; how the rest got in does not matter."""
    target = ToyTarget(TABLE)
    engine = Engine(target, NoDrafter(), make_verifier("match"), lambda: Fixed(1), prefill_chunk=chunk)
    asked = [Request(PROMPTS[2], SAMPLED, 1, 5)]
    rows, _ = serve(engine, asked)
    assert rows[0].output == written(asked[0])
    assert target.passes == -(-6 // chunk) + 5


@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@every_kind
def test_budget_is_exact_and_nothing_is_drafted_in_vain(kind: Kind, rule: str, length: int) -> None:
    """Exactly so many tokens; no draft reaches beyond the budget, whatever the policy wants."""
    engine = engine_with(Sampled(TABLE), 20, kind.target(TABLE), rule)
    rows, rounds = serve(engine, requests(length=length, count=1, kind=kind))
    assert (len(rows[0].output), rows[0].finish) == (length, "length")
    assert rounds[0].drafted == length - 1
    assert sum(len(round_.tokens) for round_ in rounds) == length


@every_kind
def test_context_is_exact(kind: Kind) -> None:
    """The toy target refuses any position beyond its context: none is asked for, and the context is filled."""
    asked = [kind.put(Request(PROMPTS[n], SAMPLED, 5 + n, 100)) for n in (2, 0)]
    rows, _ = serve(engine_with(Sampled(TABLE), 20, kind.target(TABLE, context=12)), asked)
    assert [len(row.tokens) for row in rows] == [12, 12]
    assert [row.finish for row in rows] == ["length", "length"]


def drafts(
    kind: Kind, rounds: Sequence[Sequence[int]], eos: tuple[int, ...], rule: str = "match"
) -> tuple[list[Row], list[Round]]:
    """Serve one greedy request with drafts of its own target's text, cut as told."""
    request = kind.put(Request((0, 1), Sampling(), 0, 12))
    return serve(engine_with(Scripted(rounds), 20, kind.target(TABLE, eos), rule), [request])


@pytest.mark.parametrize("rule", LOSSLESS)
@every_kind
def test_a_draft_behind_eos_is_cut(kind: Kind, rule: str) -> None:
    """An accepted EOS is the last token: the draft behind it is dropped and no bonus follows."""
    text = written(Request((0, 1), Sampling(), 0, 12))
    eos = text[4]
    end = text.index(eos) + 1
    rows, rounds = drafts(kind, [text], (eos,), rule)
    assert (rows[0].output, rows[0].finish) == (text[:end], "stop")
    assert (rounds[0].tokens, rounds[0].accepted, rounds[0].drafted) == (tuple(text[:end]), end, 11)
    assert rounds[0].origins == ("accepted",) * end
    (row,), (only,) = drafts(kind, [text[:end]], (eos,), rule)
    assert (row.output, only.origins) == (text[:end], ("accepted",) * end)


class Letters:
    """Token n is the n-th letter."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See `text.Tokenizer`."""
        return "".join("abcde"[token] for token in token_ids)


@pytest.mark.parametrize("depth", [1, 3, 20])
@pytest.mark.parametrize("end", range(2, 10))
@every_kind
def test_a_stop_string_anywhere_in_a_draft_that_is_right(kind: Kind, depth: int, end: int) -> None:
    """Tokens, text, counts and cache end with the token that completes it, wherever in a block that is."""
    text = written(Request((0, 1), Sampling(), 0, 12))
    letters = Letters().decode(text)
    stop = letters[end - 2 : end]
    first = letters.index(stop)
    drafter = Scripted([text[start : start + depth] for start in range(0, 12, depth + 1)])
    engine = Engine(kind.target(TABLE), drafter, make_verifier("match"), lambda: Fixed(depth), Letters())
    (row,), rounds = serve(engine, [kind.put(Request((0, 1), Sampling(), 0, 12, (stop,)))])
    assert (row.output, row.text, row.finish) == (text[: first + 2], letters[:first], "stop")
    assert sum(len(round_.tokens) for round_ in rounds) == first + 2
    assert all(round_.accepted == min(depth, len(round_.tokens)) for round_ in rounds)


def test_leaving_early_leaves_no_rows() -> None:
    """Closing the iterator drops its rows; the engine serves the next requests as if nothing had been."""
    engine = engine_with(ModelDrafter(ToyTarget(TABLE), VOCABULARY))
    asked = requests(length=30)
    run = engine.run(asked)
    next(run)
    assert engine.active
    run.close()
    assert engine.active == []
    assert engine.step() == []
    finished = {row.index: row for row, _ in engine.run(asked)}
    assert [row.output for row in finished.values()] == [written(request) for request in asked]


@every_kind
def test_removing_a_row_is_not_noticed_by_the_others(kind: Kind) -> None:
    """First, middle and last row of a batch, in mid-flight."""
    for gone in range(3):
        engine = engine_with(DRAFTERS["model, another one"](), target=kind.target(TABLE))
        asked = requests(length=20, kind=kind)
        rows = [engine.add(request) for request in asked]
        engine.step()
        engine.remove(rows[gone])
        while engine.active:
            engine.step()
        kept = [n for n in range(3) if n != gone]
        assert [rows[n].output for n in kept] == [written(asked[n]) for n in kept]
        assert rows[gone].finish is None


@pytest.mark.parametrize("name", ["model, another one", "tree", "lookup", "guessing"])
@every_kind
def test_requests_leave_no_trace(kind: Kind, name: str) -> None:
    """A, B, A, B, A on one engine, some of them broken off: A is always the same."""
    engine = engine_with(DRAFTERS[name](), target=kind.target(TABLE))
    first, second = requests(length=18, count=2, kind=kind)
    for request, rounds_served in ((first, 99), (second, 2), (first, 3), (second, 99), (first, 99)):
        run = engine.run([request])
        row: Row | None = None
        for _ in range(rounds_served):
            served = next(run, None)
            if served is None:
                break
            row = served[0]
        run.close()
        assert row is not None
        assert row.output == written(request)[: len(row.output)]
        assert rounds_served < 99 or row.finish == "length"


def test_a_drafter_without_room_gives_plain_steps() -> None:
    """A drafter whose context is full means target only, in the middle of a request, and for one row of several."""
    rows, rounds = serve(engine_with(Sampled(TABLE, limit=9)), requests(length=12))
    assert [row.output for row in rows] == [written(request) for request in requests(length=12)]
    for round_ in rounds:
        assert round_.drafted <= max(0, 9 - round_.start)
        assert (round_.origins == ("plain",)) == (round_.drafted == 0)
    assert {round_.drafted for round_ in rounds} >= {0, 2, 4}


@pytest.mark.parametrize("context", [1, 4, 8, 11])
def test_a_draft_model_with_a_smaller_context(context: int) -> None:
    """No position beyond its context is ever asked of the draft model, alone or riding along in a batch."""
    for count in (1, 3):
        asked = requests(length=12, count=count)
        drafter = ModelDrafter(ToyTarget(TABLE, context=context), VOCABULARY)
        rows, rounds = serve(engine_with(drafter), asked)
        assert [row.output for row in rows] == [written(request) for request in asked]
        assert any(round_.drafted == 0 for round_ in rounds)


def test_a_draft_model_with_a_smaller_vocabulary() -> None:
    """The target may write tokens that the draft model has no embedding for."""
    asked = requests(length=12)
    drafter = ModelDrafter(ToyTarget(Table(VOCABULARY - 2, 4)), VOCABULARY)
    rows, _ = serve(engine_with(drafter), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]


def test_a_draft_model_with_a_larger_vocabulary() -> None:
    """Padded logits beyond the target's vocabulary are never drafted."""
    asked = requests(length=12)
    drafter = ModelDrafter(ToyTarget(Table(VOCABULARY + 3, 4)), VOCABULARY)
    rows, rounds = serve(engine_with(drafter), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert all(int(round_.tree.tokens.max()) < VOCABULARY for round_ in rounds)


def test_a_source_goes_with_an_encoder() -> None:
    """A target that reads a source needs one, and one that does not takes none; nothing has been done."""
    request = Request((1,), SAMPLED, 0, 4)
    for kind, wrong in ((ToyEncoder, request), (ToyTarget, replace(request, source=Source((0,))))):
        engine = engine_with(NoDrafter(), target=kind(TABLE))
        with pytest.raises(BadPrompt, match="source"):
            engine.add(wrong)
        assert engine.active == []


def test_what_follows_on_a_finished_row() -> None:
    """The next request joins while others are under way, and writes what it would have written alone."""
    asked = requests(length=9)
    more = replace(asked[1], seed=77)
    engine = engine_with(DRAFTERS["model, another one"]())
    waiting = [more]
    served = {}
    for row, _ in engine.run(asked, lambda row: waiting.pop() if waiting else None):
        served[row.index] = row
    assert [served[index].output for index in range(4)] == [written(request) for request in (*asked, more)]
