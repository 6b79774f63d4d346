"""Logs in every form they come in, traces cut down, and speeds reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.errors import BadOption
from outrider.measure.logs import Answer, read_log, read_rounds
from outrider.measure.results import PassCost
from outrider.measure.simulation import predict, read_costs
from outrider.stats import Stats
from outrider.trace import as_json
from outrider.tune.traces import shorter
from outrider.types import Round, Tree

ANSWER = Answer((1, 2), (3, 4, 5), "length", 3)


class Words:
    """A tokenizer of words that are numbers."""

    chat_template = None

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        """See `Tokenizer`."""
        return {"input_ids": [int(word) for word in text.split()]}


def logged(folder: Path, text: str, name: str = "log.jsonl") -> Path:
    """A file with that text."""
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt_ids": [1, 2], "output_ids": [3]}, Answer((1, 2), (3,))),
        ({"prompt_ids": [1, 2], "ids": [3], "finish_reason": "stop"}, Answer((1, 2), (3,), "stop")),
        ({"prompt_ids": [1], "token_ids": [3], "max_new_tokens": 9}, Answer((1,), (3,), None, 9)),
        ({"prompt": "1 2", "output": "3 4"}, Answer((1, 2), (3, 4))),
        ({"prompt": "1 2", "output_ids": [3], "prediction": "3 4"}, Answer((1, 2), (3,), prediction=(3, 4))),
        (
            {"prompt": "p1", "prompt_ids": [1], "rounds": [{"tokens": [2, 3]}, {"tokens": [4], "finish": "length"}]},
            Answer((1,), (2, 3, 4), "length"),
        ),
    ],
)
def test_a_line(tmp_path: Path, record: dict[str, Any], expected: Answer) -> None:
    path = logged(tmp_path, json.dumps(record))
    assert read_log(path, Words()).answers == (expected,)


def test_a_line_twice_is_one_answer(tmp_path: Path) -> None:
    """A bench has the same answer from every drafter."""
    line = json.dumps({"case": 0, "prompt": "p", "prompt_ids": [1], "rounds": [{"tokens": [2], "finish": "length"}]})
    (tmp_path / "rounds.jsonl").write_text(f"{line}\n{line}\n\n{line.replace('[2]', '[3]')}\n")
    assert [answer.output for answer in read_log(tmp_path).answers] == [(2,), (3,)]
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"case": 1, "prom')  # broken off while it was written
    (tmp_path / "manifest.json").write_text('{"plan": {"max_new_tokens": 7}}')
    assert {answer.limit for answer in read_log(tmp_path).answers} == {7}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_of_generate(tmp_path: Path, indent: int | None) -> None:
    """Equal answers count as often as they were written, and the batch is that of the document."""
    output = {"prompt_ids": [1, 2], "token_ids": [3, 4, 5], "finish_reason": "length"}
    document = {"outputs": [output, output], "max_new_tokens": 3, "batch": 2}
    log = read_log(logged(tmp_path, json.dumps(document, indent=indent), "answers.json"))
    assert log.answers == (ANSWER, ANSWER)
    assert log.together == 2
    assert log.vocabulary == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "line 1 is no JSON"),
        ("", "no answers"),
        ("[1]", "line 1 is no object"),
        ('{"output_ids": [1]}', "no prompt"),
        ('{"prompt_ids": [1]}', "no output"),
        ('{"prompt_ids": [1], "output": "2"}', "--tokenizer"),
        ('{"prompt": "1", "output_ids": [2]}', "--tokenizer"),
        ('{"case": 1, "prompt": 7, "ids": [2]}', "no prompt"),
        ('{"outputs": 3}', '"outputs"'),
        ('{"outputs": []}', "no answers"),
        ('{"prompt_ids": [1], "output_ids": [2]}\n{', "line 2 is no JSON"),
    ],
)
def test_a_log_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        read_log(logged(tmp_path, text))


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(BadOption, match="no file"):
            read_log(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(BadOption, match="UTF-8"):
        read_log(tmp_path / "bytes")


def round_(drafted: int, accepted: int, start: int = 10, seconds: float = 0.0, parents: Any = None) -> Round:
    """A round with a chain, or a tree whose first branch is kept."""
    tree = (
        Tree.chain([0] * (drafted + 1)) if parents is None else Tree(torch.zeros(len(parents)), torch.tensor(parents))
    )
    return Round(0, 0, start, tree, tuple(range(accepted + 1)), (0,) * (accepted + 1), None, seconds, 1.0)


CURVE = [PassCost(width=w, batch=1, context=c, seconds=s) for c in (0, 100) for w, s in ((1, 1.0 + c / 100), (5, 3.0))]


def test_without_costs_speed_is_tokens_per_pass() -> None:
    rounds = [round_(4, 4), round_(4, 0), round_(0, 0)]
    assert predict(rounds, ()).speedup == pytest.approx(7 / 3)
    assert predict(rounds, ()).tokens_per_second is None


def test_speed_from_a_curve_by_hand() -> None:
    """Passes at context 10 cost 1 s for one token, 3 s for five, and 2 s between; drafting half a second once."""
    rounds = [round_(4, 4, seconds=0.5), round_(2, 0), round_(0, 0)]
    told = predict(rounds, CURVE)
    assert told.verify_seconds == pytest.approx((3 + 2 + 1) / 3)
    assert told.draft_seconds == pytest.approx(0.5 / 3)
    assert told.tokens_per_second == pytest.approx(7 / 6.5)
    assert told.speedup == pytest.approx((7 * 1.0) / 6.5)
    late = predict([round_(4, 4, start=90)], CURVE)
    assert late.speedup == pytest.approx(5 * 2.0 / 3.0), "the nearest context counts"
    with pytest.raises(BadOption, match="wider"):
        predict([round_(8, 1)], CURVE)


def test_a_trace_cut_down_by_hand() -> None:
    """Rounds with drafts of 4 that kept 4 and 1, and one without a draft, gone through with drafts of 2.

    The first recorded round has 5 tokens. A draft of 2 keeps 2, and the next begins 3 tokens in, where 1 token is left
    that was kept and nothing is known behind it: it is kept on with the chance that a token is, once one before it was:
    3 of 4 times here. Then it goes on like the next recorded draft, of which a token is kept.
    """
    rounds = [round_(4, 4, seconds=0.4), round_(4, 1, start=15, seconds=0.4), round_(0, 0, start=17)]
    whole = shorter([rounds], ())
    assert [case.k for case in whole] == [1, 2, 3, 4]
    assert whole[-1].acceptance_length == pytest.approx(Stats.of(rounds).acceptance_length)
    assert whole[-1].tokens_per_pass == pytest.approx(Stats.of(rounds).tokens_per_pass)
    assert whole[-1].survival == pytest.approx((*Stats.of(rounds).survival,))
    lengths = [case.acceptance_length for case in whole]
    assert lengths == sorted(lengths)
    assert all(1 < case.tokens_per_pass < case.acceptance_length for case in whole)
    assert [case.speed.speedup for case in whole] == pytest.approx([case.tokens_per_pass for case in whole])
    (two,) = shorter([rounds], CURVE, [2])
    assert two.acceptance_length == whole[1].acceptance_length
    # Passes over 1 and 3 tokens cost 1 s and 2 s, a drafted token a tenth.
    assert two.speed.verify_seconds is not None and two.speed.draft_seconds is not None
    busy = two.speed.verify_seconds - 1
    assert 0 < busy < 1
    assert two.speed.draft_seconds == pytest.approx(0.2 * busy)
    assert two.speed.speedup == pytest.approx(
        two.tokens_per_pass / (two.speed.verify_seconds + two.speed.draft_seconds)
    )


def test_a_tree_is_cut_by_depth() -> None:
    """Node 0 with two children, the first of which has two: five nodes, three of them no deeper than 1."""
    rounds = [[round_(4, 2, parents=[-1, 0, 1, 1, 0])]] * 3
    _, two = shorter(rounds, [PassCost(width=w, batch=1, context=0, seconds=float(w)) for w in (1, 3, 5)])
    assert two.speed.verify_seconds == pytest.approx(5.0)
    assert two.acceptance_length == pytest.approx(3.0)


def test_what_a_trace_cannot_say() -> None:
    with pytest.raises(BadOption, match="Nothing was drafted"):
        shorter([[round_(0, 0)]], ())
    with pytest.raises(BadOption, match="k = 5"):
        shorter([[round_(4, 1)]], (), [2, 5])


def test_rounds_survive_their_document(tmp_path: Path) -> None:
    rounds = [round_(4, 2, seconds=0.25), round_(3, 1, parents=[-1, 0, 0, 1])]
    document = {"outputs": [{"rounds": [as_json(item)]} for item in rounds]}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document, indent=1))
    again = [item for answer in read_rounds(path) for item in answer]
    assert Stats.of(again) == Stats.of(rounds)
    assert [item.tree.parents.tolist() for item in again] == [item.tree.parents.tolist() for item in rounds]


@pytest.mark.parametrize("text", ['{"outputs": []}', '{"outputs": [{"rounds": 3}]}', '{"outputs": [{}]}', "x"])
def test_a_trace_without_rounds(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadOption, match="has no rounds"):
        read_rounds(logged(tmp_path, text, "trace.json"))


def test_a_round_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="a round that is none"):
        read_rounds(logged(tmp_path, '{"outputs": [{"rounds": [{"tokens": [1]}]}]}', "trace.json"))


def test_costs_are_those_of_the_document(tmp_path: Path) -> None:
    extra = {"samples": [1.0], "ratio": 1.0}
    passes = [{**cost.model_dump(), **extra} for cost in CURVE] + [{**CURVE[0].model_dump(), "batch": 4}]
    path = logged(tmp_path, json.dumps({"passes": passes}), "costs.json")
    assert read_costs(path) == tuple(CURVE)
    with pytest.raises(BadOption, match="in a batch of 2"):
        read_costs(path, 2)
    for text in ("{}", "x", '{"passes": [{"width": 1}]}', '{"passes": [3]}', "[]"):
        with pytest.raises(BadOption, match="no document of outrider costs"):
            read_costs(logged(tmp_path, text, "other.json"))
    with pytest.raises(BadOption, match="no file"):
        read_costs(tmp_path / "nowhere.json")
