"""A replay of recorded answers has the very rounds that the engine had when it wrote them.

On toy targets, on tiny models of Transformers, and once on the demo model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from toy import Context, Likeliest, Table, ToyTarget

import outrider
from outrider.drafters import DRAFTERS, Drafter
from outrider.drafters.cascade import Cascade
from outrider.drafters.lookup import Lookup
from outrider.drafters.none import NoDrafter
from outrider.drafters.reference import Reference
from outrider.drafters.suffix import Suffix
from outrider.engine import Engine
from outrider.errors import BadOption
from outrider.measure.logs import Answer, read_log
from outrider.measure.replay import ReplayTarget, drafter_for, policy_for, replay
from outrider.row import Request, Row
from outrider.sampling import Sampling
from outrider.stats import Stats
from outrider.tune.traces import shorter
from outrider.types import Round, Tree
from outrider.verify.match import Match

VOCABULARY = 4
TABLE = Table(VOCABULARY, 7)
PROMPTS = [(0, 1, 2, 0, 1), (3,), (1, 2, 1, 2, 1, 2, 1), (0, 3, 0, 3, 0), (2, 2, 2)]
DRAFTS: dict[str, Callable[[], Drafter]] = {
    "suffix": lambda: Suffix(factor=4),
    "suffix, forgetful": lambda: Suffix(global_tokens=0),
    "lookup": Lookup,
    "cascade": lambda: Cascade(Suffix(), Lookup()),
}

CASES = [(name, policy) for name in DRAFTS for policy in ("fixed:1", "fixed:3", "fixed:20")]
CASES += [(name, "fixed:3,9") for name in DRAFTS if name != "lookup"]  # it makes chains


def figures(round_: Round) -> tuple[Any, ...]:
    """All of a round but its times and the number of its request."""
    tree = round_.tree
    about = (round_.number, round_.start, tree.tokens.tolist(), tree.parents.tolist(), round_.path, round_.tokens)
    return (*about, round_.finish, round_.rows, round_.nodes, round_.place)


def written(
    drafter: Drafter, policy: str, requests: Sequence[Request], together: int, eos: tuple[int, ...]
) -> tuple[list[Row], list[Round]]:
    """What the engine writes on the toy target, a batch after another."""
    rows, rounds = [], []
    for first in range(0, len(requests), together):
        engine = Engine(ToyTarget(TABLE, eos), drafter, Match(), policy_for(policy, drafter))
        rows += [engine.add(request) for request in requests[first : first + together]]
        while engine.active:
            rounds += [round_ for _, round_ in engine.step()]
    return rows, rounds


@pytest.mark.parametrize("eos", [(), (3,)], ids=["to the limit", "to the end of sequence"])
@pytest.mark.parametrize("together", [1, 2, 5])
@pytest.mark.parametrize(("name", "policy"), CASES)
def test_the_same_rounds(name: str, policy: str, together: int, eos: tuple[int, ...]) -> None:
    """Greedy and sampled answers, chains and trees, alone and together, cut by length or ended."""
    for temperature in (0.0, 1.0):
        requests = [
            Request(prompt, Sampling(temperature=temperature), 40 + n, 18 + 3 * n) for n, prompt in enumerate(PROMPTS)
        ]
        rows, rounds = written(DRAFTS[name](), policy, requests, together, eos)
        answers = [
            Answer(row.request.prompt, tuple(row.output), row.finish, row.request.max_new_tokens) for row in rows
        ]
        drafter = DRAFTS[name]()
        again = replay(answers, drafter, policy_for(policy, drafter), VOCABULARY, together=together)
        assert [figures(round_) for round_ in again] == [figures(round_) for round_ in rounds]
        assert Stats.of(again).acceptance_length == Stats.of(rounds).acceptance_length
        assert Stats.of(again).drafted > 0
        assert bool(eos) == any(row.finish == "stop" for row in rows)


class Alike(Table):
    """The target's own table after seven texts in ten, another one after the others."""

    def make(self, context: Context) -> Sequence[float]:
        """See `Table`."""
        return (TABLE if (31 * sum(context) + 7 * len(context)) % 10 < 7 else Table(VOCABULARY, 8)).make(context)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_trace_of_long_drafts_predicts_shorter_ones(k: int) -> None:
    """Rounds recorded with drafts of 6, against the engine's own with shorter ones."""
    drafter = Likeliest(Alike(VOCABULARY))
    requests = [Request(prompt, Sampling(), 0, 150) for prompt in PROMPTS]

    def rounds(policy: str) -> list[list[Round]]:
        return [written(drafter, policy, [request], 1, ())[1] for request in requests]

    measured = Stats.of(round_ for answer in rounds(f"fixed:{k}") for round_ in answer)
    (told,) = shorter(rounds("fixed:6"), (), [k])
    assert told.tokens_per_pass == pytest.approx(measured.tokens_per_pass, rel=0.05)
    assert told.acceptance_length == pytest.approx(measured.acceptance_length, rel=0.05)
    assert (measured.acceptance_length or 0) > 1.5


def test_predictions_are_replayed() -> None:
    prediction = tuple(int(token) for token in torch.randint(0, VOCABULARY, (30,)))
    output = (*prediction[:9], (prediction[9] + 1) % VOCABULARY, *prediction[10:20])
    answer = Answer((0, 1), output, "length", prediction=prediction)
    rounds = replay([answer], Reference(), policy_for("fixed:4", Reference()), VOCABULARY)
    assert [token for round_ in rounds for token in round_.tokens] == list(output)
    assert Stats.of(rounds).accepted >= 12
    with pytest.raises(BadOption, match="--prediction"):
        replay([Answer((0,), (1, 2))], Reference(), policy_for("fixed:4", Reference()), VOCABULARY)
    with pytest.raises(BadOption, match="no use for a prediction"):
        replay([answer], Lookup(), policy_for("fixed:4", Lookup()), VOCABULARY)


def test_what_a_drafter_raises_is_told() -> None:
    """A row on whose account something goes wrong ends alone in the loop; of a replay nothing would be left."""

    class Breaks(Lookup):
        def commit(self, *_: Any) -> None:
            raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        replay([Answer((0, 1), (2, 3))], Breaks(), policy_for("fixed:2", Breaks()), VOCABULARY)


def test_an_answer_without_an_end_ends_where_it_does() -> None:
    """A stop string's last token may stand elsewhere too: then length is what ends it."""
    answer = Answer((0,), (1, 2, 1, 3, 1), "stop", limit=50)
    assert answer.ends == ()
    rounds = replay([answer], NoDrafter(), policy_for("fixed:2", NoDrafter()), VOCABULARY)
    assert [token for round_ in rounds for token in round_.tokens] == [1, 2, 1, 3, 1]
    assert Answer((0,), (1, 2, 3), "stop", limit=50).ends == (3,)
    assert Answer((0,), (1, 2, 3), "length", limit=3).ends == ()


def test_the_target_says_what_was_recorded() -> None:
    target = ReplayTarget(6)
    target.follow([Answer((0, 1), (2, 3, 4)), Answer((5,), (4, 3))])
    cache = target.new_cache(2)
    cache.lengths = [1, 0]
    tree = Tree(torch.tensor([1, 0, 0, 0]), torch.tensor([-1, 0, 0, 1]))
    first, second = target.forward([tree, Tree.chain([5])], cache)
    assert first.logits.argmax(-1).tolist() == [2, 3, 3, 4]
    assert second.logits.argmax(-1).tolist() == [4]


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafters_that_need_more_than_text_are_refused_by_their_trait(name: str) -> None:
    spec = {"model": "model:x", "cascade": "cascade:suffix,recycle", "early_exit": "early_exit:1"}.get(name, name)
    if DRAFTERS[name].from_text and name != "cascade":
        assert drafter_for(spec, VOCABULARY).from_text
        return
    with pytest.raises(BadOption, match="more than the text"):
        drafter_for(spec, VOCABULARY)


def test_a_cascade_drafts_from_text_if_both_its_drafters_do() -> None:
    assert drafter_for("cascade:suffix,lookup", VOCABULARY).from_text
    for spec in ("cascade:suffix,model:x", "cascade:lookup,lookahead"):
        with pytest.raises(BadOption, match="more than the text"):
            drafter_for(spec, VOCABULARY)


@pytest.mark.parametrize(("drafter", "policy"), [("suffix", "fixed:5"), ("lookup", "fixed:3"), ("suffix", "fixed:3,9")])
def test_a_tiny_model(drafter: str, policy: str) -> None:
    llm = outrider.load(families.make("llama"), drafter, policy=policy)
    outputs = llm.generate(families.prompts(24, 40, 3), max_new_tokens=40)
    answers = [Answer(output.prompt_ids, tuple(output.token_ids), output.finish_reason, 40) for output in outputs]
    fresh = drafter_for(drafter, families.VOCABULARY)
    rounds = replay(answers, fresh, policy_for(policy, fresh), families.VOCABULARY, together=3)
    expected = Stats.of(round_ for output in outputs for round_ in output.rounds)
    assert Stats.of(rounds).acceptance_length == expected.acceptance_length
    assert Stats.of(rounds).survival == expected.survival
    assert expected.accepted > 0


def test_the_demo_model(demo: Any, demo_tokenizer: Any, tmp_path: Path) -> None:
    """Of real answers too the replay has the acceptance length that was measured, to the last digit."""
    prompts = [
        "Copy: red green blue, red green blue, red green",
        [{"role": "user", "content": "Write the numbers from one to twelve, then once more."}],
    ]
    llm = demo("none").using("suffix", policy="fixed:4")
    outputs = [llm.generate(prompt, max_new_tokens=48) for prompt in prompts]
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "prompt_ids": list(output.prompt_ids),
                    "output_ids": output.token_ids,
                    "finish_reason": output.finish_reason,
                    "max_new_tokens": 48,
                }
            )
            for output in outputs
        )
    )
    drafter = drafter_for("suffix", len(demo_tokenizer))
    rounds = replay(read_log(path).answers, drafter, policy_for("fixed:4", drafter), len(demo_tokenizer))
    expected = Stats.of(round_ for output in outputs for round_ in output.rounds)
    assert (expected.acceptance_length or 0) > 1.5
    assert Stats.of(rounds).acceptance_length == expected.acceptance_length
    assert Stats.of(rounds).survival == expected.survival
