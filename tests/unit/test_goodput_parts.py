"""What `goodput` is made of: cost curves, acceptance, and the division of a pass among rows."""

from __future__ import annotations

import itertools
import random

import pytest
from simulation import Grown, chain
from torch import tensor

from outrider.policy.acceptance import DEEPEST, Branches, Chain, Slot
from outrider.policy.allocation import START, allocate
from outrider.policy.costs import Costs, Curve
from outrider.types import Budget, Round, Tree


def curve(points: dict[int, float], fixed: float = 24.0, times: int = 3) -> Curve:
    """A curve that has seen passes of these sizes."""
    known = Curve(fixed)
    for size, seconds in points.items():
        for _ in range(times):
            known.add(size, seconds)
    return known


def test_slow_passes_are_ignored() -> None:
    """One in three takes ten times as long: no estimate moves by more than the ordinary noise."""
    chance, known = random.Random(1), Curve(24.0)
    for _ in range(200):
        size = chance.choice([1, 2, 5, 12])
        slow = 10 if chance.random() < 0.3 else 1
        known.add(size, (1 + 0.1 * size) * slow * chance.uniform(0.98, 1.02))
    for size in (1, 2, 5, 12):
        assert known.at(size) == pytest.approx(1 + 0.1 * size, rel=0.1)


def test_one_slow_pass_proves_nothing() -> None:
    """It is believed half-way, and a second one if it is faster; without, the size is unknown again 32 passes later."""
    known = curve({1: 1.0, 3: 1.2})
    known.add(6, 10.0)
    assert known.at(6) == pytest.approx((10.0 * 1.5) ** 0.5)
    for _ in range(32):
        known.add(3, 1.2)
    assert known.at(6) == pytest.approx(1.5), "as steep as what is known"
    known.add(6, 1.4)
    assert known.at(6) == pytest.approx(1.4)


def test_the_first_pass_of_all_is_believed() -> None:
    """There is nothing else to go by."""
    known = Curve(24.0)
    assert not known
    known.add(6, 3.0)
    assert known
    assert known.at(6) == 3.0
    assert known.at(1) == pytest.approx(3.0 * 25 / 30)


def test_more_is_never_cheaper() -> None:
    """Sizes whose times contradict each other share the mean of their times, by the number of passes."""
    known = curve({1: 1.0, 2: 1.6, 3: 1.3, 4: 2.0})
    assert [known.at(size) for size in (1, 2, 3, 4)] == pytest.approx([1.0, 1.45, 1.45, 2.0])
    assert known.upto(64) == sorted(known.upto(64))


def test_between_and_beyond_what_is_known() -> None:
    """Up to half-way as cheap as the smaller; beyond, as steep as measured, and at least as assumed."""
    known = curve({4: 1.0, 8: 3.0})
    assert [known.at(size) for size in range(4, 9)] == pytest.approx([1.0, 1.0, 1.0, 2.5, 3.0])
    assert known.at(10) == pytest.approx(4.0)
    assert known.at(2) == pytest.approx(0.5), "never cheaper than in proportion"
    assert known.furthest == 8
    single = curve({6: 1.0})
    assert [single.at(size) for size in (1, 12)] == pytest.approx([25 / 30, 36 / 30]), "24 + size"
    drafting = curve({4: 0.4}, fixed=0.0)
    assert [drafting.at(size) for size in (0, 1, 4, 8)] == pytest.approx([0.0, 0.1, 0.4, 0.8])
    assert curve({0: 0.01}, fixed=0.0).at(5) == 0.01


def test_what_is_not_seen_again_is_forgotten() -> None:
    """A size that was once slow gets another chance after 512 passes; the smallest is always needed."""
    known = curve({1: 1.0, 6: 9.0})
    for _ in range(513):
        known.add(3, 1.1)
    assert known.at(6) < 2
    assert known.at(1) == 1.0


def test_costs_follow_the_machine() -> None:
    """When five of nine passes of known sizes take three times as long, all sizes do, and drafts too."""
    costs = Costs()
    for _ in range(5):
        for nodes in (1, 4, 8):
            costs.add(1, nodes, 1 + nodes / 10)
        costs.add_draft(1, 4, 0.2)
    for slow in range(9):
        expected = 1.8 if slow < 5 else 5.4
        assert costs.verify(1).at(8) == pytest.approx(expected), slow  # type: ignore[union-attr]
        costs.add(1, 4, 4.2)
    assert costs.verify(1).at(8) == pytest.approx(5.4)  # type: ignore[union-attr]
    assert costs.verify(1).at(1) == pytest.approx(3.3)  # type: ignore[union-attr]
    assert costs.draft(1).at(4) == pytest.approx(0.6)  # type: ignore[union-attr]


def test_batches_have_costs_of_their_own() -> None:
    """Rows count by powers of two, and go by the nearest that is known."""
    costs = Costs()
    assert costs.verify(1) is None
    assert costs.draft(4) is None
    costs.add(1, 1, 1.0)
    assert costs.verify(7) is costs.verify(1)
    costs.add(6, 6, 2.0)
    assert costs.verify(7) is costs.verify(4) is not costs.verify(1)
    assert costs.verify(2) is costs.verify(1)
    costs.add_draft(6, 3, 0.5)
    assert costs.draft(1) is costs.draft(6)


def test_a_drafter_with_other_work_tells_what_drafting_costs_at_most() -> None:
    """After a pause it has to catch up first: a long time says nothing, a short one says something."""
    costs = Costs()
    costs.add_draft(1, 2, 9.0, at_most=True)
    assert costs.draft(1) is None
    costs.add_draft(1, 2, 0.4)
    for seconds, expected in ((9.0, 0.4), (0.3, 0.3)):
        costs.add_draft(1, 2, seconds, at_most=True)
        assert costs.draft(1).at(2) == expected  # type: ignore[union-attr]


def test_plain_passes_are_called_for() -> None:
    """Every second until there are three; then rarely, and more often while it is a close call."""

    def due(drafted: int, gain: float) -> list[int]:
        costs, found = Costs(), []
        for number in range(drafted):
            plain = costs.plain_is_due(1, gain)
            costs.add(1, 1 if plain else 5, 1.0)
            found += [number] if plain else []
        return found

    assert due(300, 3.0) == [1, 3, 5, 134, 263]
    assert due(40, 1.1) == [1, 3, 5, 14, 23, 32]
    assert len(due(400, 1.1)) == 15 + 2


def told(known: Chain | Branches, tree: Tree, path: tuple[int, ...], asked: int, depth: int) -> None:
    """A round of this draft."""
    known.observe(Round(0, 0, 1, tree, path, path, None, 0.0, 1.0), asked, depth)


def test_acceptance_is_learned_by_position() -> None:
    """From the positions that were reached; those behind go like the last one that was."""
    known, chance = Chain(), random.Random(2)
    rates = (0.9, 0.5, 0.8)
    for _ in range(3000):
        kept = 0
        while kept < 3 and chance.random() < rates[kept]:
            kept += 1
        told(known, chain(3), tuple(range(kept + 1)), 3, 3)
    slots = known.slots()
    gains = [1.0, *(slot.gain for slot in slots)]
    conditional = [after / before for before, after in itertools.pairwise(gains)]
    for place, rate in enumerate(rates):
        assert conditional[place] == pytest.approx(rate, abs=0.25)
    assert conditional[3:6] == pytest.approx([conditional[2]] * 3)
    assert {round(slot.offered, 6) for slot in slots} == {1.0}
    assert [slot.depth for slot in slots] == list(range(1, len(slots) + 1))


def test_a_new_request_is_neither_sure_nor_hopeless() -> None:
    """Before anything is known: three in five."""
    slots = Chain().slots()
    assert [slot.gain for slot in slots[:3]] == pytest.approx([0.6, 0.36, 0.216])
    assert len(slots) < DEEPEST, "what hardly ever happens is no slot"


def test_absent_drafts_lower_gain_and_cost_alike() -> None:
    """Acceptance given that there is a draft stays what it was."""
    known = Chain()
    for _ in range(50):
        told(known, chain(2), (0, 1, 2), 2, 2)
    before = known.slots()[:2]
    for _ in range(50):
        told(known, chain(0), (0,), 2, 0)
    after = known.slots()[:2]
    for one, other in zip(before, after, strict=True):
        assert other.offered < 0.25 < 0.9 < one.offered
        assert other.gain / other.offered == pytest.approx(one.gain / one.offered)


def test_short_drafts_lower_what_is_offered() -> None:
    """Asked for four, drafted two, all kept: the third is seldom offered, and no less likely to be right."""
    known = Chain()
    for _ in range(60):
        told(known, chain(2), (0, 1, 2), 4, 2)
    second, third = known.slots()[1:3]
    assert second.offered == pytest.approx(1)
    assert third.offered < 0.1
    assert third.gain / third.offered == pytest.approx(second.gain / second.offered, rel=0.1)


def test_the_past_fades() -> None:
    """After `fade` one round weighs as much as all before it; what is fresh already is left alone."""
    for known, tree in ((Chain(), chain(1)), (Branches(), chain(1))):
        for _ in range(50):
            told(known, tree, (0,), 1, 1)
        assert known.slots()[0].gain < 0.1
        known.fade(1.0)
        told(known, tree, (0, 1), 1, 1)
        gain = known.slots()[0].gain
        assert gain > 0.5
        known.fade(10.0)
        assert known.slots()[0].gain == gain


def test_branches_are_learned_by_rank() -> None:
    """The slots of a tree are its nodes, best first on the product of the ranks' chances."""
    known, chance, ranks = Branches(), random.Random(3), (0.6, 0.25, 0.1)
    grown = Grown.of(ranks, Budget(4, 24))
    for _ in range(1500):
        told(known, grown.tree, grown.walk(ranks, chance), 4, 4)
    slots = known.slots()
    gains = [slot.gain for slot in slots]
    assert gains == sorted(gains, reverse=True)
    assert gains[:3] == pytest.approx([0.6, 0.36, 0.25], abs=0.15)
    assert [slot.depth for slot in slots] == sorted(slot.depth for slot in slots)
    assert slots[0].depth == 1 < slots[-1].depth
    assert all(slot.offered == pytest.approx(1) for slot in slots)


def test_a_node_without_children_says_nothing_of_them() -> None:
    """Ranks are counted where they were offered."""
    known = Branches()
    tree = Tree(tensor([0, 0, 0]), tensor([-1, 0, 0]))
    for _ in range(60):
        told(known, tree, (0, 2), 1, 1)
    first, second = known.slots()[:2]
    assert first.gain < 0.1 < 0.9 < second.gain, "the second child was right every time"


def rows_of(chance: random.Random, rows: int) -> list[list[Slot]]:
    """Chains of random acceptance, four tokens each."""
    found = []
    for _ in range(rows):
        gains = list(itertools.accumulate((chance.random() for _ in range(4)), lambda one, other: one * other))
        found.append([Slot(gain, 1.0, depth) for depth, gain in enumerate(gains, 1)])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_division_is_the_best_there_is(seed: int) -> None:
    """Against every other, for rows with drafts of random worth and passes of random costs."""
    chance = random.Random(seed)
    rows = rows_of(chance, 3)
    seconds = list(itertools.accumulate(chance.choice([0.0, 0.05, 0.6]) for _ in range(16)))
    verify = curve({size: 1 + seconds[size] for size in range(1, 16)})

    def value(counts: tuple[int, ...]) -> float:
        tokens = 3 + sum(slot.gain for slots, count in zip(rows, counts, strict=True) for slot in slots[:count])
        return tokens / verify.at(3 + sum(counts))

    best = max(itertools.product(range(5), repeat=3), key=value)
    counts, gain = allocate(rows, verify, None)
    if value(best) > 1.02 * value((0, 0, 0)):
        assert value(tuple(counts)) == pytest.approx(value(best))
        assert gain == pytest.approx(value(best) / value((0, 0, 0)))
    else:
        assert (counts, gain) == ([0, 0, 0], 1.0)


def test_drafting_is_paid_once_for_all_rows() -> None:
    """A step of the draft model costs as much for four rows as for one, and is worth it for four only."""
    verify, draft = curve({1: 1.0, 40: 1.0}), curve({1: 0.5, 2: 1.0, 3: 1.5}, fixed=0.0)
    slots = [Slot(0.4, 1.0, 1), Slot(0.16, 1.0, 2)]
    assert allocate([slots], verify, draft)[0] == [0]
    verify.add(4, 1.0)
    verify.add(4, 1.0)
    assert allocate([slots, [], [], []], verify, draft)[0] == [0] * 4
    better = [Slot(0.7, 1.0, 1), Slot(0.16, 1.0, 2)]
    assert allocate([better] * 4, verify, draft)[0] == [1] * 4


def test_unknown_sizes_are_approached_step_by_step() -> None:
    """However good the drafts, a pass is at most half as large again as any before, or as a first one."""
    sure = [Slot(1.0, 1.0, depth) for depth in range(1, 33)]
    assert allocate([sure], curve({1: 1.0, 12: 1.0}), None)[0] == [17]
    assert allocate([sure], curve({1: 1.0, 2: 1.0}), None)[0] == [START]
    assert sum(allocate([sure, sure], curve({1: 1.0, 20: 1.0}), None)[0]) == 28


def test_rare_drafts_are_weighed_when_they_come() -> None:
    """A pass is only larger when there is a draft; with plain passes around it time is worth less, so it is longer."""
    verify = curve({1: 1.0, 2: 1.3, 3: 1.6, 4: 1.9})
    for exists, best in ((1.0, 1), (0.2, 2), (0.001, 2)):
        slots = [Slot(exists * gain, exists, depth) for depth, gain in enumerate((0.9, 0.4, 0.2), 1)]
        assert allocate([slots], verify, None)[0] == [best]
        assert allocate([[Slot(exists * 0.31, exists, 1)]], verify, None)[0] == [0], "too close a call"
