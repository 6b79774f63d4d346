"""How long to draft: the rules step by step, and specs that make them."""

from __future__ import annotations

import pytest
import torch

from outrider.errors import BadOption
from outrider.policy import DEFAULT, Fixed, Goodput, Heuristic, Policy, Setting, make_policy
from outrider.types import Budget, Round, Tree

BLIND = Setting("lookup:16", has_law=False)


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
    assert make_policy("fixed:9")().budget() == Budget(9)
    assert make_policy("fixed:4,12")().budget() == Budget(4, 12)
    assert isinstance(make_policy("heuristic")(), Heuristic)
    assert isinstance(make_policy(DEFAULT)(), Goodput)


def test_each_request_gets_a_policy_of_its_own() -> None:
    """What one request learns stays with it."""
    make = make_policy("heuristic")
    one, other = make(), make()
    told(one, 5, 5)
    assert (one.budget().depth, other.budget().depth) == (7, 5)


def stops(spec: str, law: list[float], token: int) -> bool:
    """Whether a policy ends the draft behind this token of this law; it lets drafters go on for 20 otherwise."""
    budget = make_policy(spec)().budget()
    assert (budget.depth, budget.nodes) == (20, 20)
    assert budget.stop is not None
    return budget.stop(torch.tensor(law), token)


def test_confidence_looks_at_the_token() -> None:
    """Under 0.4, or what is asked for; the threshold itself is no doubt."""
    law = [0.375, 0.5, 0.125]
    assert [stops("confidence", law, token) for token in range(3)] == [True, False, True]
    assert [stops("confidence:0.375", law, token) for token in range(3)] == [False, False, True]
    assert [stops("confidence:1", [1.0, 0.0], token) for token in range(2)] == [False, True]


def test_entropy_looks_at_the_law() -> None:
    """sqrt(0.15 H) > 0.3 comes to more than 0.6 nats, whatever was drawn; impossible tokens count for nothing."""
    for token in (0, 1):
        assert stops("entropy", [0.5, 0.5, 0.0], token)  # 0.69 nats
        assert not stops("entropy", [0.9, 0.1, 0.0], token)  # 0.33 nats
        assert not stops("entropy", [1.0, 0.0, 0.0], token)
    edge = [0.7085, 0.2915]  # 0.6034 nats; 0.5981 with 0.7135
    assert (stops("entropy", edge, 0), stops("entropy", [0.7135, 0.2865], 0)) == (True, False)


def test_stopping_policies_do_not_learn() -> None:
    """The drafter's doubts are all there is to them."""
    for spec in ("confidence", "entropy"):
        policy = make_policy(spec)()
        assert told(policy, 20, 0) == told(policy, 3, 3) == 20


@pytest.mark.parametrize("spec", ["confidence", "confidence:0.5", "entropy"])
def test_drafters_without_a_law_are_refused(spec: str) -> None:
    """The policy would change nothing; the message says what would."""
    with pytest.raises(BadOption, match=r"'lookup:16' has no probabilities.*'goodput'"):
        make_policy(spec, BLIND)
    for other in ("fixed:3", "heuristic", "goodput"):
        assert make_policy(other, BLIND)().budget().depth > 0


@pytest.mark.parametrize(
    "spec", ["confidence:0", "confidence:1.1", "confidence:-1", "confidence:nan", "confidence:low"]
)
def test_thresholds_that_are_none(spec: str) -> None:
    """The message says how to write it."""
    with pytest.raises(BadOption, match=r"write confidence:t with 0 < t <= 1"):
        make_policy(spec)


@pytest.mark.parametrize("spec", ["fixed", "fixed:", "fixed:0", "fixed:-3", "fixed:two", "fixed:2.5", "fixed:,9"])
def test_fixed_without_a_usable_length(spec: str) -> None:
    """The message says how to write it."""
    with pytest.raises(BadOption, match="write fixed:K"):
        make_policy(spec)


def test_unknown_policies_and_arguments() -> None:
    """The choices are named; an argument without effect is an error."""
    with pytest.raises(BadOption, match=r"no policy 'fixd': choose one of .*fixed"):
        make_policy("fixd:3")
    for spec in ("heuristic:7", "entropy:0.3", "goodput:5"):
        with pytest.raises(BadOption, match="takes no argument"):
            make_policy(spec)
