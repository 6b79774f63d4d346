"""Figures from rounds, against values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from toy import Scripted, Stream, ToyTarget

from outrider.engine import Engine
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.stats import Stats
from outrider.types import FinishReason, Round, Tree
from outrider.verify.match import Match


def chain_round(drafted: int, accepted: int, tokens: int | None = None, finish: FinishReason | None = None) -> Round:
    """A round that drafted a chain and kept some of it, with the target's token behind unless told otherwise."""
    written = (1,) * (accepted + 1 if tokens is None else tokens)
    return Round(0, 0, 5, Tree.chain([9] * (drafted + 1)), tuple(range(accepted + 1)), written, finish, 0.25, 0.5)


def test_by_hand() -> None:
    """Four rounds with drafts, that kept 3, 0, 2 and 1 of 3, 3, 2 and 4 tokens, and one without."""
    rounds = [chain_round(3, 3), chain_round(3, 0), chain_round(2, 2), chain_round(4, 1), chain_round(0, 0)]
    stats = Stats.of(rounds)
    assert (stats.rounds, stats.drafted, stats.accepted, stats.tokens) == (5, 12, 6, 11)
    assert stats.acceptance_length == (4 + 1 + 3 + 2) / 4
    assert stats.acceptance_rate == 6 / 12
    assert stats.survival == (3 / 4, 2 / 4, 1 / 4)
    assert stats.conditional == (3 / 4, 2 / 3, 1 / 2)
    assert stats.tokens_per_pass == 11 / 5
    assert (stats.draft_seconds, stats.verify_seconds) == (1.25, 2.5)


def test_acceptance_length_is_one_and_the_sum_of_survival() -> None:
    """The identity of ALGORITHMS, which holds while no round is cut short."""
    rounds = [chain_round(5, kept) for kept in (0, 5, 2, 2, 3, 1, 4, 5)]
    stats = Stats.of(rounds)
    assert stats.acceptance_length == pytest.approx(1 + sum(stats.survival))


def test_nothing_drafted() -> None:
    """Plain decoding has no acceptance, rather than an acceptance of zero or one."""
    stats = Stats.of([chain_round(0, 0)] * 3)
    assert (stats.acceptance_length, stats.acceptance_rate, stats.survival, stats.conditional) == (None, None, (), ())
    assert stats.tokens_per_pass == 1


def test_nothing_accepted() -> None:
    """Drafts that were all refused: one token a round, and no survival at all."""
    stats = Stats.of([chain_round(3, 0)] * 2)
    assert (stats.acceptance_length, stats.acceptance_rate, stats.survival, stats.conditional) == (1, 0, (), ())


def test_no_rounds() -> None:
    """Nothing at all divides nothing by zero."""
    stats = Stats.of([])
    assert (stats.rounds, stats.tokens, stats.tokens_per_pass, stats.acceptance_length) == (0, 0, 0.0, None)


def test_json() -> None:
    """`as_dict` holds every figure and nothing that JSON cannot say."""
    figures = json.loads(json.dumps(Stats.of([chain_round(3, 2), chain_round(2, 2)]).as_dict()))
    assert set(figures) == set(Stats.__dataclass_fields__)
    assert figures["survival"] == [1.0, 1.0]


def test_origins() -> None:
    """Accepted tokens first; the last is the bonus at a leaf, the correction elsewhere, plain without a draft."""
    assert chain_round(3, 3).origins == ("accepted",) * 3 + ("bonus",)
    assert chain_round(3, 1).origins == ("accepted", "corrected")
    assert chain_round(3, 0).origins == ("corrected",)
    assert chain_round(0, 0).origins == ("plain",)
    assert chain_round(3, 2, tokens=2, finish="stop").origins == ("accepted", "accepted")


def test_origins_on_a_tree() -> None:
    """The bonus of a branch that ends before others do; the correction where a node has children of other tokens."""
    tree = Tree(torch.tensor([9, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]))
    assert Round(0, 0, 5, tree, (0, 2), (2, 7), None, 0, 0).origins == ("accepted", "bonus")
    assert Round(0, 0, 5, tree, (0, 1), (1, 7), None, 0, 0).origins == ("accepted", "corrected")
    assert Round(0, 0, 5, tree, (0, 1, 3), (1, 3, 7), None, 0, 0).origins == ("accepted", "accepted", "bonus")


EOS = 7
TEXT = (0, 1, 2, 3, 4, EOS, 5, 5)


def serve(drafts: Sequence[Sequence[int]], prompts: int = 1, length: int = 20, depth: int = 6) -> list[Round]:
    """All rounds of requests whose target writes TEXT, EOS included, wherever a draft has led it."""
    engine = Engine(ToyTarget(Stream(8, 1, TEXT), (EOS,)), Scripted(drafts), Match(), lambda: Fixed(depth))
    requests = [Request((6,), Sampling(), 0, length) for _ in range(prompts)]
    return [round_ for _, round_ in engine.run(requests)]


def test_end_of_sequence_inside_a_block() -> None:
    """The drafted EOS was accepted and is the last token: what stood behind it counts as drafted, not as kept."""
    first, second = rounds = serve([[0, 1, 3], [3, 4, EOS, 5, 5]])
    assert (first.tokens, first.accepted) == ((0, 1, 2), 2)
    assert (second.tokens, second.accepted, second.finish) == ((3, 4, EOS), 3, "stop")
    assert second.origins == ("accepted",) * 3
    stats = Stats.of(rounds)
    assert (stats.rounds, stats.drafted, stats.accepted, stats.tokens) == (2, 8, 5, 6)
    assert stats.survival == (1, 1, 1 / 2)
    assert stats.conditional == (1, 1, 1 / 2)
    assert stats.acceptance_length == 3
    assert stats.acceptance_rate == 5 / 8


def test_end_of_sequence_as_the_targets_own_token() -> None:
    """EOS written by the target is a correction or a bonus, and nothing is lost from the count."""
    *_, corrected = serve([[0, 1, 2, 3, 4, 5]])
    assert (corrected.accepted, corrected.origins[-1], corrected.tokens[-1]) == (5, "corrected", EOS)
    *_, bonus = serve([[0, 1, 2, 3, 4]])
    assert (bonus.accepted, bonus.origins[-1], bonus.tokens[-1]) == (5, "bonus", EOS)


def test_ragged_batch() -> None:
    """Rows that draft, accept and end differently; figures are sums over all of their rounds."""
    engine = Engine(ToyTarget(Stream(8, 1, TEXT), (EOS,)), Ragged(), Match(), lambda: Fixed(6))
    requests = [Request((first,), Sampling(), 0, length) for first, length in ((0, 20), (1, 3), (2, 20))]
    rounds: dict[int, list[Round]] = {0: [], 1: [], 2: []}
    for row, round_ in engine.run(requests):
        rounds[row.index].append(round_)
    assert [[(r.drafted, r.accepted, len(r.tokens)) for r in rounds[index]] for index in range(3)] == [
        [(6, 6, 6)],  # all six, EOS the last of them
        [(2, 0, 1), (1, 0, 1), (0, 0, 1)],  # nothing right, and the budget leaves ever less room
        [(0, 0, 1)] * 6,  # no drafts
    ]
    stats = Stats.of([round_ for of_row in rounds.values() for round_ in of_row])
    assert (stats.rounds, stats.drafted, stats.accepted, stats.tokens) == (10, 9, 6, 15)
    assert stats.survival == (1 / 3,) * 6
    assert stats.conditional == (1 / 3, 1, 1, 1, 1, 1)
    assert stats.acceptance_length == (6 + 1 + 1) / 3
    assert stats.tokens_per_pass == 15 / 10


class Ragged(Scripted):
    """Drafts the whole text for a prompt of 0, wrong tokens for 1, nothing for 2."""

    def __init__(self) -> None:
        super().__init__([])

    def draft(self, state, depth, noise):  # type: ignore[no-untyped-def]
        """See `ToyDrafter`."""
        self._rounds = {0: [TEXT], 1: [[6] * 6] * 9, 2: []}[state.tokens[0]]
        return super().draft(state, depth, noise)
