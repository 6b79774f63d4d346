"""How long to draft: the rules step by step, and specs that make them."""

from __future__ import annotations

import pytest

from outrider.errors import BadOption
from outrider.policy import DEFAULT, POLICIES, Fixed, Heuristic, Policy, make_policy
from outrider.types import Round, Tree


def told(policy: Policy, drafted: int, accepted: int) -> int:
    """The next depth after a round that kept so many of so many."""
    path = tuple(range(accepted + 1))
    policy.observe(Round(0, 0, 1, Tree.chain([0] * (drafted + 1)), path, (0,) * (accepted + 1), None, 0.0, 0.0))
    return policy.budget().depth


def test_fixed_learns_nothing() -> None:
    """The same depth whatever happens."""
    policy = Fixed(4)
    assert policy.budget().depth == 4
    assert [told(policy, 4, accepted) for accepted in (0, 4, 2)] == [4, 4, 4]


def test_heuristic_is_transformers_rule() -> None:
    """Starts at 5; two more after full acceptance, one less otherwise, never under 1; plain rounds say nothing."""
    policy = Heuristic()
    assert policy.budget().depth == 5
    assert told(policy, 5, 5) == 7
    assert told(policy, 7, 6) == 6
    assert told(policy, 0, 0) == 6
    assert told(policy, 2, 2) == 8, "a draft shorter than the budget counts as fully accepted"
    assert [told(policy, 8, 0) for _ in range(9)] == [7, 6, 5, 4, 3, 2, 1, 1, 1]
    assert told(policy, 1, 1) == 3


def test_specs() -> None:
    """Specs make the policy that they name."""
    assert make_policy("fixed:9")().budget().depth == 9
    assert isinstance(make_policy("heuristic")(), Heuristic)
    assert DEFAULT in POLICIES


def test_each_request_gets_a_policy_of_its_own() -> None:
    """What one request learns stays with it."""
    make = make_policy("heuristic")
    one, other = make(), make()
    told(one, 5, 5)
    assert (one.budget().depth, other.budget().depth) == (7, 5)


@pytest.mark.parametrize("spec", ["fixed", "fixed:", "fixed:0", "fixed:-3", "fixed:two", "fixed:2.5"])
def test_fixed_without_a_usable_length(spec: str) -> None:
    """The message says how to write it."""
    with pytest.raises(BadOption, match="write fixed:K"):
        make_policy(spec)


def test_unknown_policies_and_arguments() -> None:
    """The choices are named; an argument without effect is an error."""
    with pytest.raises(BadOption, match=r"no policy 'fixd': choose one of .*fixed"):
        make_policy("fixd:3")
    with pytest.raises(BadOption, match="takes no argument"):
        make_policy("heuristic:7")
