"""What the loop promises a drafter (the right states, budgets, refusals) and how drafters are named in specs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Branching, Context, Sampled, Scripted, Table, ToyDrafter, ToyState, ToyTarget, Wide, signature

from outrider.drafters import DRAFTERS, Drafter, Setting, make_drafter
from outrider.engine import Engine
from outrider.errors import BadOption, BadPrompt, NoProgress
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.tree import depths
from outrider.types import Budget, Draft, Noise, Tree
from outrider.verify import make_verifier

TABLE = Table(5, 21)
PROMPTS: list[Context] = [(3, 1, 4, 1, 0, 3, 1), (2,), (0, 1)]
LAYERS = (0, 2)


def tapped() -> dict[str, ToyDrafter]:
    """Drafters that look at two layers: one with chains, one with trees whose kept paths have gaps."""
    grow = lambda context: TABLE.law(context).topk(1 + len(context) % 2).indices.tolist()  # noqa: E731
    return {"chains": Sampled(Table(5, 22), taps=LAYERS), "trees": Branching(grow, taps=LAYERS)}


@pytest.mark.parametrize("kind", ["chains", "trees"])
@pytest.mark.parametrize("chunk", [2, 100])
def test_the_right_states_arrive(kind: str, chunk: int) -> None:
    """In `begin` those of the prompt but its last token, in `commit` those of every node, by layer, row by row."""
    engine = Engine(ToyTarget(TABLE), tapped()[kind], make_verifier("match"), lambda: Fixed(3), prefill_chunk=chunk)
    asked = [Request(prompt, Sampling(temperature=1.0), 50 + n, 10 + n) for n, prompt in enumerate(PROMPTS)]
    rows = [engine.add(request) for request in asked]
    while engine.active:
        engine.step()
    for row, request in zip(rows, asked, strict=True):
        state: ToyState = row.state
        assert set(state.begun) == (set(LAYERS) if len(request.prompt) > 1 else set())
        for layer, hidden in state.begun.items():
            contexts = [request.prompt[: end + 1] for end in range(len(request.prompt) - 1)]
            assert torch.equal(hidden, torch.stack([signature(context, layer) for context in contexts]))
        assert state.tokens == row.tokens
        assert_commits_are_right(state, request.prompt)


def assert_commits_are_right(state: ToyState, prompt: Context) -> None:
    """Row i of the states along the path belongs to the text before the i-th committed token."""
    before = prompt
    for tokens, scores, path in state.commits:
        assert len(path) == len(tokens)
        assert path[0] == 0
        along = scores.at(path)
        contexts = [(*before, *tokens[:place]) for place in range(len(tokens))]
        assert torch.equal(along.logits, torch.stack([TABLE.law(context).log() for context in contexts]))
        assert set(along.hidden) == set(LAYERS)
        for layer, hidden in along.hidden.items():
            assert torch.equal(hidden, torch.stack([signature(context, layer) for context in contexts]))
        before = (*before, *tokens)


def test_without_taps_nothing_is_shown() -> None:
    """States are not made for drafters that do not ask."""
    engine = Engine(ToyTarget(TABLE), Scripted([[0]]), make_verifier("match"), lambda: Fixed(1))
    row = engine.add(Request((1, 2, 3), Sampling(), 0, 4))
    engine.step()
    assert row.state.begun == {}
    assert row.state.commits[0][1].hidden == {}


class Watching(Scripted):
    """Writes down what `propose` was given."""

    def __init__(self) -> None:
        super().__init__([[0] * 50] * 50)
        self.seen: list[tuple[list[int], list[Sampling]]] = []
        self.budgets: list[Budget] = []

    def propose(
        self, states: Sequence[Any], budgets: Sequence[Budget], samplings: Sequence[Sampling], noises: Sequence[Noise]
    ) -> list[Draft]:
        """See `Drafter`."""
        self.seen.append(([budget.depth for budget in budgets], list(samplings)))
        self.budgets = list(budgets)
        return super().propose(states, budgets, samplings, noises)


def test_budgets_are_the_least_of_everything() -> None:
    """Policy, budget less one, context less one; row by row."""
    drafter = Watching()
    target = ToyTarget(TABLE, context=10)
    engine = Engine(target, drafter, make_verifier("match"), lambda: Fixed(4))
    samplings = [Sampling(temperature=1.0 + n) for n in range(3)]
    for prompt, length, sampling in zip(((1,), (1,) * 7, (1,)), (100, 100, 3), samplings, strict=True):
        engine.add(Request(prompt, sampling, 0, length))
    engine.step()
    assert drafter.seen[0] == ([4, 2, 2], samplings)


def test_a_chain_that_is_cut_stays_a_chain() -> None:
    """Nodes beyond the depth ask for a tree: a policy that wants none of it never does, one that wants it always."""
    for nodes, seen in ((4, [(2, 2), (2, 2)]), (9, [(2, 9), (2, 9)])):
        drafter = Watching()
        engine = Engine(ToyTarget(TABLE, context=10), drafter, make_verifier("match"), lambda n=nodes: Wide(4, n))
        for prompt, length in (((1,) * 7, 100), ((1,), 3)):
            engine.add(Request(prompt, Sampling(), 0, length))
        engine.step()
        assert [(budget.depth, budget.nodes) for budget in drafter.budgets] == seen
        engine.add(Request((1,), Sampling(), 0, 1))
        engine.step()
        assert (drafter.budgets[-1].depth, drafter.budgets[-1].nodes) == (0, 0)


@pytest.mark.parametrize("rule", ["block", "lenience:0.5"])
def test_a_tree_for_a_rule_that_serves_chains_is_refused(rule: str) -> None:
    """With the remedy, and without rows left behind; a tree without branches is a chain."""
    engine = Engine(ToyTarget(TABLE), Branching(lambda context: (0, 1)), make_verifier(rule), lambda: Fixed(2))
    request = Request((1, 2), Sampling(temperature=1.0), 0, 5)
    with pytest.raises(BadOption, match="use the verifier 'match'"):
        list(engine.run([request]))
    assert engine.active == []
    engine = Engine(ToyTarget(TABLE), Branching(lambda context: (0,)), make_verifier(rule), lambda: Fixed(2))
    assert len([token for _, round_ in engine.run([request]) for token in round_.tokens]) == 5


def test_requests_are_checked_before_any_work() -> None:
    """Nothing has run when a request is refused, and the others of the call leave no rows."""
    target = ToyTarget(TABLE, context=8)
    engine = Engine(target, Scripted([]), make_verifier("match"), lambda: Fixed(2))
    for bad, error in (
        (Request((1,) * 8, Sampling(), 0, 5), BadPrompt),
        (Request((5,), Sampling(), 0, 5), BadPrompt),
        (Request((1, 2), Sampling(), 0, 0), BadOption),
        (Request((1, 2), Sampling(), 0, 5, stop=("x",)), BadOption),
    ):
        with pytest.raises(error):
            engine.add(bad)
    assert target.passes == 0
    with pytest.raises(BadPrompt):
        list(engine.run([Request((1, 2), Sampling(), 0, 5), Request((), Sampling(), 0, 5)]))
    assert engine.active == []


def test_a_round_without_progress_stops_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should `extend` ever commit nothing, the loop raises instead of spinning."""
    engine = Engine(ToyTarget(TABLE), Scripted([]), make_verifier("match"), lambda: Fixed(1))
    monkeypatch.setattr("outrider.row.Row.extend", lambda self, tokens: ())
    with pytest.raises(NoProgress, match="Round 0 of request 0"):
        list(engine.run([Request((1, 2), Sampling(), 0, 5)]))


MODULE = """
from outrider.drafters import Drafter
from outrider.types import Draft, Tree

class Echo(Drafter):
    spec = "echo"
    def begin(self, prompt, hidden):
        return list(prompt)
    def propose(self, states, budgets, samplings, noises):
        return [Draft(Tree.chain([s[-1]] * (b.depth + 1))) for s, b in zip(states, budgets)]
    def commit(self, state, tokens, scores, path):
        state.extend(tokens)

class Stranger:
    pass
"""


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A setting on the toy target, and a package with somebody's own drafter on the path."""
    package = tmp_path / "somebodys"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Setting(ToyTarget(TABLE), None, lambda name: (ToyTarget(Table(5, 23)), None))


def test_a_drafter_of_ones_own(setting: Setting) -> None:
    """Named as package.module:Class, it drafts in the loop like any other."""
    drafter = make_drafter("somebodys.own:Echo", setting)
    assert isinstance(drafter, Drafter)
    engine = Engine(ToyTarget(TABLE), drafter, make_verifier("match"), lambda: Fixed(2))
    rounds = [round_ for _, round_ in engine.run([Request((1, 2), Sampling(temperature=1.0), 0, 8)])]
    assert sum(len(round_.tokens) for round_ in rounds) == 8
    assert rounds[0].tree.tokens.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("somebodys.own:Nobody", "cannot be imported"),
        ("somebodys.nothing:Echo", "cannot be imported"),
        ("somebodys.own:Stranger", "derive it from outrider.drafters.Drafter"),
        ("nosuch", "There is no drafter 'nosuch': choose one of "),
        ("nosuch:7", "There is no drafter 'nosuch': choose one of "),
        ("none:3", "takes no argument"),
        ("lookup:0", "no match length"),
        ("lookup:some", "no match length"),
        ("model", "needs a draft model"),
        ("reference:x", "takes no argument"),
        ("recycle:0", "no number of successors"),
        ("recycle:many", "no number of successors"),
        ("suffix:7", "'7' is no option"),
        ("suffix:factor=2,size=3", "'size' is no option"),
        ("suffix:factor=2,factor=3", "'factor' is given twice"),
        ("suffix:factor=0.5", "factor has to be a number of 1 or more"),
        ("suffix:factor=inf", "factor has to be a number of 1 or more"),
        ("suffix:longest=0", "longest has to be a whole number of 1 or more"),
        ("suffix:doubt=-1", "doubt has to be a number of 0 or more"),
        ("suffix:global=some", "global has to be a whole number of 0 or more"),
        ("suffix:corpus=", "corpus has to be a file"),
        ("lookahead:window=0", "window has to be a whole number of 1 or more"),
        ("lookahead:ngram=1", "ngram has to be a whole number of 2 or more"),
        ("lookahead:5", "'5' is no option"),
    ],
)
def test_specs_that_name_no_drafter(setting: Setting, spec: str, message: str) -> None:
    """Each says what to write instead."""
    with pytest.raises(BadOption, match=message):
        make_drafter(spec, setting)


SPECS = [
    "none",
    "lookup",
    "lookup:3",
    "suffix",
    "suffix:factor=3,longest=4,doubt=0,global=0",
    "reference",
    "recycle",
    "recycle:3",
    "lookahead",
    "lookahead:window=2,ngram=3",
    "model:anything",
]


@pytest.mark.parametrize("spec", SPECS)
def test_specs_of_the_house(setting: Setting, spec: str) -> None:
    """Each is made as named, and drafts no deeper than its budget on a row of its own."""
    drafter = make_drafter(spec, setting)
    assert isinstance(drafter, DRAFTERS[spec.partition(":")[0]])
    assert drafter.spec.startswith(spec)
    again = make_drafter(drafter.spec, setting)
    assert again.spec == drafter.spec, "what is echoed can be given again"
    prediction = (1, 2, 3) if spec == "reference" else ()
    engine = Engine(ToyTarget(TABLE), drafter, make_verifier("match"), lambda: Fixed(3))
    for _, round_ in engine.run([Request((1, 2, 1, 2), Sampling(temperature=1.0), 3, 9, prediction=prediction)]):
        tree: Tree = round_.tree
        assert int(depths(tree.parents).max()) <= 3


@pytest.mark.parametrize("name", ["nosuch", "nosuch:3", "Token"])
def test_specs_that_name_no_verifier(name: str) -> None:
    """The choices are listed."""
    with pytest.raises(BadOption, match=r"choose one of .*match.*token"):
        make_verifier(name)
