"""The cross product of a bench's lists, and what is refused before any work."""

from __future__ import annotations

import pytest

from outrider.errors import BadOption
from outrider.measure.cases import expand, promised
from outrider.measure.results import Case


def names(cases: tuple[Case, ...]) -> list[str]:
    """How tables call them."""
    return [case.name for case in cases]


def test_plain_decoding_is_always_there() -> None:
    assert names(expand("suffix")) == ["none", "suffix"]
    assert names(expand("none,suffix")) == ["none", "suffix"]
    assert names(expand("none")) == ["none"]


def test_cross_product() -> None:
    """Two drafters, two lengths, two batches, two temperatures, two widths of weights; plain once for each of eight."""
    cases = expand("lookup,none,suffix", k="1,3", batch="1,4", temperature="0,0.7", quantize="none,int8")
    assert len(cases) == 8 * (1 + 2 * 2) == len(set(cases))
    for case in cases:
        assert case.plain in cases
        assert case.k is None if case.drafter == "none" else case.policy == f"fixed:{case.k}"
    assert names(cases[:5]) == ["none", "lookup, k=1", "lookup, k=3", "suffix, k=1", "suffix, k=3"]
    assert names(cases[-2:]) == ["suffix, k=1, batch 4, T=0.7, int8", "suffix, k=3, batch 4, T=0.7, int8"]


def test_lengths_are_ranges_and_policies_stand_beside_them() -> None:
    assert [case.k for case in expand("suffix", k="1-3,8")[1:]] == [1, 2, 3, 8]
    both = expand("suffix", k="2", policies="goodput,fixed:2,fixed:3,9")
    assert [(case.k, case.policy) for case in both[1:]] == [(2, "fixed:2"), (None, "goodput"), (None, "fixed:3,9")]


def test_commas_inside_a_spec_are_its_own() -> None:
    cases = expand("suffix:factor=3,doubt=0,lookup:4", verifiers="typical:0.3,0.09,match")
    assert [(case.drafter, case.verifier) for case in cases[1:]] == [
        ("suffix:factor=3,doubt=0", "typical:0.3,0.09"),
        ("suffix:factor=3,doubt=0", "match"),
        ("lookup:4", "typical:0.3,0.09"),
        ("lookup:4", "match"),
    ]


def test_several_cascades_take_several_lists() -> None:
    cases = expand(["lookup,cascade:suffix,lookup", "cascade:lookup,suffix"])
    assert [case.drafter for case in cases[1:]] == ["lookup", "cascade:suffix,lookup", "cascade:lookup,suffix"]


def test_answers_are_promised_where_greedy_or_coupled() -> None:
    """`match` with any seed, other lossless rules at temperature 0, relaxed ones never."""
    rules = ("match", "token", "typical")
    found = {(rule, heat): promised(Case(drafter="suffix", verifier=rule, temperature=heat)) for rule in rules
             for heat in (0.0, 1.0)}  # fmt: skip
    assert [key for key, value in found.items() if value] == [("match", 0.0), ("match", 1.0), ("token", 0.0)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"drafters": "crystal-ball"}, "crystal-ball"),
        ({"drafters": ""}, "--drafters is empty"),
        ({"drafters": "reference"}, "'reference' needs the text"),
        ({"drafters": "suffix", "k": "0"}, "--k"),
        ({"drafters": "suffix", "k": "3-1"}, "--k"),
        ({"drafters": "suffix", "k": "1,two"}, "--k"),
        ({"drafters": "suffix", "batch": "0"}, "--batch"),
        ({"drafters": "suffix", "temperature": "-1"}, "--temperature"),
        ({"drafters": "suffix", "temperature": "warm"}, "--temperature"),
        ({"drafters": "suffix", "temperature": "nan"}, "--temperature"),
        ({"drafters": "suffix", "quantize": "int3"}, "--quantize"),
        ({"drafters": "suffix", "verifiers": "hope"}, "hope"),
        ({"drafters": "suffix", "verifiers": "ensemble"}, "mixes the drafter's probabilities"),
        ({"drafters": "suffix", "verifiers": "block", "policies": "fixed:2,6"}, "serves chains"),
        ({"drafters": "lookup", "policies": "fixed:2,6"}, "makes chains"),
        ({"drafters": "suffix", "policies": "entropy"}, "no probabilities"),
        ({"drafters": "suffix", "policies": "whim"}, "whim"),
        ({"drafters": "none", "k": "3"}, "would change nothing"),
        ({"drafters": "none", "verifiers": "token"}, "would change nothing"),
    ],
)
def test_refusals(arguments: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=says) as caught:
        expand(**arguments)
    assert str(caught.value).endswith(".")
