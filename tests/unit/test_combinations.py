"""docs/combinations.md, row by row: what works, what is refused, and with which words."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers
from toy import Wide

import outrider
from outrider import policy as policies
from outrider.combinations import check
from outrider.drafters import DRAFTERS, Drafter
from outrider.drafters.lookup import Lookup
from outrider.errors import BadOption
from outrider.types import Budget
from outrider.verify import VERIFIERS, Verifier, make_verifier

PAGE = (Path(__file__).parents[2] / "docs" / "combinations.md").read_text()
BUDGETS = {"chains": Budget(3), "trees": Budget(3, 9)}
ARGUMENTS = {"lenience": "lenience:0.5"}


def rows() -> dict[tuple[str, str, str], str]:
    """Drafter, verifier and policy -> the table's answer."""
    table: dict[tuple[str, str, str], str] = {}
    for line in re.findall(r"^\| `.*(?:works|refused).*\|$", PAGE, re.MULTILINE):
        drafters, verifiers, policies, answer = (cell.strip() for cell in line.strip("|").split("|"))
        names = (re.findall(r"`(\w+)`", drafters), re.findall(r"`(\w+)`", verifiers), policies.split(", "))
        for combination in product(*names):
            assert combination not in table, f"{combination} stands in two rows"
            table[combination] = answer
    return table


def test_no_combination_is_missing() -> None:
    """Each drafter with each rule, for chains and for trees."""
    assert set(rows()) == set(product(DRAFTERS, VERIFIERS, BUDGETS))


@pytest.mark.parametrize(("combination", "answer"), rows().items(), ids=lambda value: " ".join(value))
def test_a_row(combination: tuple[str, str, str], answer: str) -> None:
    """What the table says is what happens."""
    drafter, rule, policy = combination
    verifier = make_verifier(ARGUMENTS.get(rule, rule))
    if answer == "works":
        check(verifier, DRAFTERS[drafter], drafter, BUDGETS[policy])
        return
    with pytest.raises(BadOption) as caught:
        check(verifier, DRAFTERS[drafter], drafter, BUDGETS[policy])
    (words,) = re.findall(r'^refused: "(.*)"$', answer)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_traits_are_what_the_page_says() -> None:
    """The second table: which rules are lossless, and which serve chains only."""
    promised = re.findall(
        r"^\| `(\w+)[^|]*\| ([^|]*) \| (yes|no)[^|]* \| (?:yes|no) \| (yes|no) \|$", PAGE, re.MULTILINE
    )
    assert [name for name, *_ in promised] == list(VERIFIERS)
    for name, serves, lossless, coupled in promised:
        kind: type[Verifier] = VERIFIERS[name]
        assert (kind.lossless, kind.coupled) == (lossless == "yes", coupled == "yes")
        assert kind.chains_only == (serves == "chains")


def test_drafts_through_text() -> None:
    """The sentence names what became of the probabilities."""

    class Translated(Lookup):
        """Its drafts come from another vocabulary."""

        reencodes = True

    with pytest.raises(BadOption, match="pass through text"):
        check(make_verifier("ensemble"), Translated, "translated:x", Budget(3))
    check(make_verifier("match"), Translated, "translated:x", Budget(3))


def test_a_drafter_may_turn_out_to_do_less_than_its_kind() -> None:
    """The class allows it, the instance does not."""

    class Either(Lookup):
        """Has probabilities or not."""

        has_law = True

    drafter: Drafter = Either()
    check(make_verifier("ensemble"), Either, "either", Budget(3))
    drafter.has_law = False
    with pytest.raises(BadOption, match="'either' has none"):
        check(make_verifier("ensemble"), drafter, "either", Budget(3))


@pytest.fixture(scope="module")
def tiny() -> Any:
    """A model small enough to be made here."""
    options = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options, **heads)).eval()


def test_refused_when_the_parts_are_put_together(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `load` and by `using`, before a draft model is looked for."""
    llm = outrider.load(tiny, "lookup", fast=False)
    for refused in (
        lambda: outrider.load(tiny, "lookup", "ensemble", fast=False),
        lambda: llm.using(verifier="ensemble:0.5"),
    ):
        with pytest.raises(BadOption, match="'lookup' has none: use a draft model"):
            refused()
    monkeypatch.setitem(policies.POLICIES, "wide", lambda *_: lambda: Wide(3, 9))
    with pytest.raises(BadOption, match="serves chains and the policy asks for trees"):
        llm.using("model:/nowhere", "block", "wide")


def test_outputs_are_labelled(tiny: Any) -> None:
    """Each output says which rule wrote it and whether it kept the target's law."""
    llm = outrider.load(tiny, "lookup", fast=False)
    for rule, lossless in (("match", True), ("typical:0.1,0.5", False), ("lenience:0.5", False), ("block", True)):
        sampling = outrider.Sampling(temperature=1.0, seed=1)
        part = llm.using(verifier=rule)
        out = part.generate([1, 2, 1, 2, 1], sampling=sampling, max_new_tokens=12)
        assert (out.verifier, out.lossless) == (rule, lossless)
        assert part.configuration["verifier"] == rule
        assert (out.stats.mean_tv is None) == lossless
        stream = part.stream([1, 2, 1, 2, 1], sampling=sampling, max_new_tokens=3)
        list(stream)
        assert (stream.output.verifier, stream.output.lossless) == (rule, lossless)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("match:3", "takes no argument"),
        ("block:0.5", "takes no argument"),
        ("ensemble:1", "between 0 and 1"),
        ("ensemble:0", "between 0 and 1"),
        ("ensemble:much", "between 0 and 1"),
        ("lenience", "write lenience:l"),
        ("lenience:1", "between 0 and 1"),
        ("lenience:nan", "between 0 and 1"),
        ("typical:0.1", "typical:epsilon,delta"),
        ("typical:0.1,0.2,0.3", "typical:epsilon,delta"),
        ("typical:1,0.3", "typical:epsilon,delta"),
        ("typical:0.1,inf", "typical:epsilon,delta"),
    ],
)
def test_arguments_that_cannot_be_used(spec: str, message: str) -> None:
    """One sentence each."""
    with pytest.raises(BadOption, match=message):
        make_verifier(spec)


def test_defaults() -> None:
    """Those of the papers, and named in reports."""
    assert make_verifier("ensemble").spec == "ensemble:0.7"
    assert make_verifier("typical").spec == "typical:0.09,0.3"
    assert make_verifier("lenience:0.25").spec == "lenience:0.25"
