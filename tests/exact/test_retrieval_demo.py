"""Drafters that need no training, on the demo model: Transformers' own greedy tokens, chains and trees, alone and in
batches; the same seed, the same tokens; and predictions through the library's front door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from comparing import assert_equal
from prompts import PROMPTS
from toy import Wide

import outrider
from outrider import Sampling
from outrider.errors import BadOption
from outrider.text import encode

NEW = 22
NAMES = ["copy", "one token", "python"]
SPECS = ["suffix", "recycle", "lookahead", "reference"]
SHAPES = {"chain": (20, 20), "tree": (4, 16)}


@pytest.fixture(scope="module")
def expected(demo_writes: Any, demo_tokenizer: Any) -> dict[str, tuple[list[int], list[int]]]:
    """Name -> ids of the prompt, and what Transformers writes after it."""
    ids = {name: encode(demo_tokenizer, PROMPTS[name]) for name in NAMES}
    return {name: (prompt, demo_writes(prompt, NEW)) for name, prompt in ids.items()}


@pytest.fixture(scope="module")
def with_shape(demo: Any) -> Callable[[str, str], outrider.Outrider]:
    """An `Outrider` with a drafter of its own and budgets of one shape."""

    def make(spec: str, shape: str) -> outrider.Outrider:
        llm = demo("none").using(spec)
        llm._make_policy = lambda: Wide(*SHAPES[shape])
        return llm

    return make


def spoilt(ids: list[int]) -> list[int]:
    """A prediction that is right but for a token that is another, one that is missing and two that are too many."""
    return [*ids[:4], ids[0], *ids[5:9], *ids[10:14], 7, 8, *ids[14:]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spec", SPECS)
def test_greedy_as_transformers(with_shape: Any, demo_model: Any, expected: Any, spec: str, shape: str) -> None:
    """Three prompts together, then one alone, with whatever the first three have left behind."""
    llm = with_shape(spec, shape)
    prompts = [expected[name][0] for name in NAMES]
    options = {"prediction": [spoilt(expected[name][1]) for name in NAMES]} if spec == "reference" else {}
    outputs = llm.generate(prompts, max_new_tokens=NEW, **options)
    turn = (SPECS.index(spec) + list(SHAPES).index(shape)) % len(NAMES)
    options = {"prediction": expected[NAMES[turn]][1]} if options else {}
    outputs.append(llm.generate(prompts[turn], max_new_tokens=NEW, **options))
    for name, output in zip([*NAMES, NAMES[turn]], outputs, strict=True):
        assert_equal(demo_model, *expected[name], output.token_ids, f"{name!r} with {spec}, {shape}", llm.tokenizer)
    assert sum(output.stats.accepted for output in outputs) > 0
    if spec == "reference":
        assert all(round_.accepted == round_.drafted for round_ in outputs[-1].rounds), "the prediction was right"


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_tokens(with_shape: Any, demo: Any, spec: str) -> None:
    """Sampled, in trees, in company, with a penalty that looks at each node's own history."""
    sampling = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.2, seed=5)
    prompts = [PROMPTS[name] for name in NAMES[:2]]
    plain = demo("none").generate(prompts, sampling=sampling, max_new_tokens=NEW)
    options = {"prediction": [spoilt(output.token_ids) for output in plain]} if spec == "reference" else {}
    got = with_shape(spec, "tree").generate(prompts, sampling=sampling, max_new_tokens=NEW, **options)
    assert [output.token_ids for output in got] == [output.token_ids for output in plain]


def test_predictions_at_the_front_door(demo: Any, expected: Any) -> None:
    """As text or as ids, for one prompt, a batch and a stream; what does not go with the prompts is refused."""
    plain, llm = demo("none"), demo("none").using("reference", policy="fixed:8")
    prompt, ids = expected["copy"]
    text = plain.tokenizer.decode(ids)
    for prediction in (text, ids, tuple(ids)):
        output = llm.generate(prompt, max_new_tokens=NEW, prediction=prediction)
        assert output.token_ids == ids
        assert output.stats.accepted >= 14
    stream = llm.stream(prompt, max_new_tokens=NEW, prediction=text)
    assert [token for piece in stream for token in piece.round.tokens] == ids
    both = llm.generate([prompt, prompt], max_new_tokens=NEW, prediction=[text, "quite another thing"])
    assert [output.token_ids for output in both] == [ids, ids]
    assert both[0].stats.accepted > both[1].stats.accepted
    for prompts, prediction, message in (
        (prompt, None, "pass prediction="),
        ([prompt, prompt], None, "pass prediction="),
        (prompt, "", "prediction is empty"),
        (prompt, [], "prediction is empty"),
        (prompt, [text], "one text for one prompt"),
        ([prompt], text, "a list of as many"),
        ([prompt], ids, "a list of as many"),
        ([prompt, prompt], [text], "a list of as many"),
        (prompt, [10**6], "outside the vocabulary"),
    ):
        with pytest.raises(BadOption, match=message):
            llm.generate(prompts, prediction=prediction)
    with pytest.raises(BadOption, match="'none' has no use for a prediction"):
        plain.generate(prompt, prediction=text)


def test_a_second_answer_is_drafted_from_the_first(demo: Any, expected: Any) -> None:
    """The default drafter remembers what it has seen written; `using` makes one that has not."""
    llm = demo("none").using("suffix", policy="fixed:8")
    prompt, ids = expected["python"]
    rounds = [llm.generate(prompt, max_new_tokens=NEW).stats.rounds for _ in range(2)]
    assert rounds[1] <= rounds[0] / 2
    assert llm.using().generate(prompt, max_new_tokens=NEW).stats.rounds == rounds[0]
    assert llm.generate(prompt, max_new_tokens=NEW).token_ids == ids
