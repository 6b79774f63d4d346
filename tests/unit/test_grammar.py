"""Output that fits a schema, whatever is drafted; drafts without what cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import alphabets
import pytest
import torch
from toy import Forked, Sampled, Scripted, Table, ToyTarget

from outrider.drafters import Drafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import Engine
from outrider.errors import BadOption
from outrider.grammar import Grammars
from outrider.policy import Fixed
from outrider.row import Request, Row
from outrider.sampling import Sampling
from outrider.types import Draft, Round, Tree
from outrider.verify import make_verifier

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PROMPT = (50, 236)
EOS = 1
SAID = ['{"name": "Tom", "age": 7, "kind": "cat"}', '"dog"}', "bird"] * 4


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One that has some of a document's parts as tokens."""
    return alphabets.byte_level(400, texts=SAID)


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    """For that tokenizer."""
    pytest.importorskip("llguidance")
    return Grammars(tokenizer, len(tokenizer), (EOS,))


@pytest.fixture(scope="module")
def compiled(grammars: Grammars) -> Any:
    """The schema above."""
    return grammars.compile(SCHEMA)


def ids(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text."""
    return list(tokenizer(text)["input_ids"])


def test_what_may_follow(grammars: Grammars, compiled: Any, tokenizer: Any) -> None:
    """Asked in any order, node by node; nothing before the document, EOS after it and only then."""
    grammar = grammars.start(compiled, len(PROMPT))
    whole = ids(tokenizer, '{"name": "Tom", "age": 7, "kind": "cat"}')
    for length in (0, 5, 2, len(whole), 1, len(whole) - 1, 3):
        written = whole[:length]
        scores = grammar(torch.tensor([[*PROMPT, *written]]), torch.zeros(1, len(tokenizer)))
        allowed = set((scores[0] == 0).nonzero().squeeze(-1).tolist())
        assert allowed and (EOS in allowed) == (length == len(whole))
        assert length == len(whole) or whole[length] in allowed
        words = [tokenizer.decode([token]) for token in allowed]
        assert length or all(word.strip().startswith("{") or not word.strip() for word in words)


def test_pruning(grammars: Grammars, compiled: Any, tokenizer: Any) -> None:
    """Branches that cannot be written go, with all that is behind them; what can stays, EOS at the end included."""
    begun = ids(tokenizer, '{"name": "Tom", "age": 7, "kind": "')
    cat, dog, bird = (ids(tokenizer, word)[0] for word in ("cat", "dog", "bird"))
    end = ids(tokenizer, '"}')
    assert len(end) == 1
    tokens = torch.tensor([begun[-1], cat, bird, dog, end[0], end[0], EOS, EOS, cat])
    parents = torch.tensor([-1, 0, 0, 0, 1, 2, 4, 3, 6])
    grammar = grammars.start(compiled, len(PROMPT))
    draft = Draft(Tree(tokens, parents), probs=torch.arange(8.0)[:, None].expand(8, 4), drawn="point", started=object())
    kept = Sampling(processors=(grammar,)).fitting([*PROMPT, *begun], draft)
    assert kept.tree.tokens.tolist() == [begun[-1], cat, dog, end[0], EOS]
    assert kept.tree.parents.tolist() == [-1, 0, 0, 1, 3]
    assert kept.probs is not None and kept.probs[:, 0].tolist() == [0, 2, 3, 5]
    assert kept.started is None
    right = Draft(Tree.chain([begun[-1], cat, end[0]]))
    assert Sampling(processors=(grammar,)).fitting([*PROMPT, *begun], right) is right
    assert Sampling().fitting([*PROMPT, *begun], draft) is draft


class Broad(Table):
    """A law over all of the tokenizer's words, another one for every length: it would never write JSON of itself."""

    def law(self, context: tuple[int, ...]) -> torch.Tensor:
        """See `Table`."""
        generator = torch.Generator().manual_seed(7 * len(context) + context[-1] % 5)
        return torch.rand(self.vocabulary, generator=generator, dtype=torch.float64).pow(6) + 1e-9


def written(
    grammars: Grammars, compiled: Any, drafter: Drafter, rule: str, temperature: float, vocabulary: int
) -> tuple[Row, list[Round]]:
    """One answer."""
    loop = Engine(ToyTarget(Broad(vocabulary), eos=(EOS,)), drafter, make_verifier(rule), lambda: Fixed(4))
    grammar = grammars.start(compiled, len(PROMPT))
    row = loop.add(Request(PROMPT, Sampling(temperature=temperature, processors=(grammar,)), 5, 80))
    rounds = []
    while loop.active:
        rounds += [round_ for _, round_ in loop.step()]
    assert row.error is None
    return row, rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["match", "token", "traversal"])
def test_the_answer_fits_whatever_is_drafted(
    grammars: Grammars, compiled: Any, tokenizer: Any, rule: str, temperature: float
) -> None:
    """Every lossless rule; under `match` the tokens are those of plain decoding, and drafts hold nothing impossible."""
    vocabulary = len(tokenizer)
    law = Broad(vocabulary)
    plain, _ = written(grammars, compiled, Scripted([]), rule, temperature, vocabulary)
    document = '{"name": "Tom", "age": 7, "kind": "cat"}'
    makes: list[Callable[[], Drafter]] = [
        lambda: Scripted([ids(tokenizer, document)[n : n + 4] for n in range(80)]),
        lambda: ModelDrafter(ToyTarget(law), vocabulary),
    ]
    if rule == "token":
        makes.append(lambda: Sampled(law))
    if rule == "traversal":
        makes.append(lambda: Forked(law, {(): 2, (0,): 2}))
    for make in makes:
        row, rounds = written(grammars, compiled, make(), rule, temperature, vocabulary)
        text = tokenizer.decode(row.output, skip_special_tokens=True)
        found = json.loads(text)
        assert set(found) == {"name", "age", "kind"} and found["kind"] in ("cat", "dog") and 0 <= found["age"] <= 99
        assert row.finish == "stop"
        if rule != "match":
            continue
        assert row.output == plain.output
        judge = grammars.start(compiled, len(PROMPT))
        for round_ in rounds:
            assert judge.fitting(row.tokens[: round_.start], round_.tree) == list(range(len(round_.tree)))


SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "strin"}, "Invalid type"),
    ({"type": "object", "properties": 3}, "properties must be an object"),
    ({"$ref": "http://elsewhere/schema"}, "cannot be used"),
    ({"type": "string", "pattern": "("}, "regex"),
]


@pytest.mark.parametrize(("schema", "word"), SCHEMAS)
def test_schemas_that_cannot_be_kept(grammars: Grammars, schema: Any, word: str) -> None:
    """Refused with the reason, in one line; nothing is fetched."""
    with pytest.raises(BadOption, match=word) as caught:
        grammars.compile(schema)
    assert "\n" not in str(caught.value)


def test_a_model_without_an_end(tokenizer: Any) -> None:
    """Nothing could end the document."""
    pytest.importorskip("llguidance")
    with pytest.raises(BadOption, match="no token that ends"):
        Grammars(tokenizer, len(tokenizer), ())
