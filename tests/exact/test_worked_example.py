"""The reference text's example, round by round: a target that writes A B C D F judges the drafts A B X Y and D E."""

from __future__ import annotations

import pytest
from checks import assert_nothing_kept_behind_a_mismatch, assert_worked_example

from outrider.verify import VERIFIERS, make_verifier

RULES = pytest.mark.parametrize("name", [name for name, kind in VERIFIERS.items() if kind.lossless])


@RULES
def test_worked_example(name: str) -> None:
    """Tokens, origins, places and paths of both rounds, under every lossless rule (the target is greedy)."""
    assert_worked_example(make_verifier(name))


@RULES
def test_nothing_is_kept_behind_a_mismatch(name: str) -> None:
    """Tokens that are right only if one ignores the wrong one before them are dropped."""
    assert_nothing_kept_behind_a_mismatch(make_verifier(name))
