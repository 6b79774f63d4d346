"""The search on costs and survivals whose optimum can be computed by hand."""

from __future__ import annotations

import pytest
from tuned import EXACT, chain, flat_to, of, passes, searched

from outrider import speed
from outrider.measure.recorded import Answer, Drafted, Recording
from outrider.measure.shapes import Shape
from outrider.tune.prices import Level, Prices, Timing
from outrider.tune.search import Recorded, Setting, best, contenders, front, predict


def test_by_hand() -> None:
    """Half of the rounds keep 3 tokens and half none. Three tokens are free to verify, and drafting costs 0.1 each.

    Round by round, k = 1 writes in four tokens of an easy stretch 2, 2: so 4 tokens in 2 rounds, and 1 in a hard round.
    """
    found = searched({"d": (chain([3, 0] * 50), 0.1)}, passes(flat_to(4)))
    three = of(found, "d", 3)
    assert three.behaviour.tokens == pytest.approx(5 / 2)
    assert three.behaviour.survival == pytest.approx((0.5, 0.5, 0.5))
    assert three.seconds == pytest.approx((1.0, 0.3, 0.0))
    assert three.speedup == three.per_user == pytest.approx(2.5 / 1.3)
    assert three.needed == pytest.approx(1.3)
    one = of(found, "d", 1)
    assert one.behaviour.tokens == pytest.approx(5 / 3)
    assert one.speedup == pytest.approx(5 / 3 / 1.1)
    assert best(found, "latency") is three, "a fourth token costs 0.35 and is never kept"
    assert of(found, "d", 4).seconds == pytest.approx((1.25, 0.4, 0.0))


def test_the_formulas_beside_it() -> None:
    """Fed with the acceptance rate 0.5, the one for equal chances says 1.875 tokens where there are 2.5."""
    three = of(searched({"d": (chain([3, 0] * 50), 0.1)}, passes(flat_to(4))), "d", 3)
    assert three.behaviour.rate == pytest.approx(0.5)
    assert three.equal_chances == pytest.approx(speed.acceptance_length_iid(0.5, 3) / 1.3)
    assert three.naive == speed.naive(three.behaviour.rate, 3) == pytest.approx(0.6)


def test_plain_decoding_can_be_best() -> None:
    """A token accepted in one of ten rounds, at a tenth of a pass: 1.1 tokens in 1.1 passes is no gain."""
    found = searched({"d": (chain([1] + [0] * 9, k=8), 0.1)}, passes(flat_to(9)))
    assert of(found, "d", 1).speedup == pytest.approx(1.0, abs=1e-9)
    assert best(found, "latency").setting.drafter == "none"
    assert best(found, "throughput").setting == Setting("none", None, 1)
    assert [one.setting.drafter for one in front(found)] == ["none"]


def test_latency_and_throughput_want_different_settings() -> None:
    """Passes are free to 8 tokens: alone that is a draft of 7, with four requests of one each.

    An easy stretch of 9 tokens takes two rounds with drafts of 4 as with drafts of 7, so 4 are best alone.
    """
    curve = passes(flat_to(8, slope=0.5), batches=(1, 4))
    found = searched({"d": (chain([8, 0, 0] * 20), 0.01)}, curve, (1, 4))
    fast, much = best(found, "latency"), best(found, "throughput")
    assert fast.setting.batch == 1 and much.setting.batch == 4
    assert fast.setting.shape is not None and fast.setting.shape.depth == 4
    assert fast.per_user > much.per_user and fast.throughput < much.throughput
    by_hand = {
        (k, batch): batch
        * of(found, "d", k, batch).behaviour.tokens
        / (1 + 0.01 * k + 0.5 * max(0, batch * (k + 1) - 8))
        for k in range(1, 9)
        for batch in (1, 4)
    }
    for (k, batch), tokens in by_hand.items():
        assert of(found, "d", k, batch).throughput == pytest.approx(tokens)
    assert much.throughput == pytest.approx(max(4.0, *by_hand.values()))
    assert {one.setting.batch for one in front(found)} == {1, 4}


def test_the_front_is_what_nothing_beats() -> None:
    curve = passes(flat_to(8), batches=(1, 2, 4))
    found = searched({"d": (chain([4, 1] * 20), 0.02), "e": (chain([1, 0] * 20), 0.3)}, curve, (1, 2, 4))
    kept = front(found)
    for one in found:
        beaten = [
            other
            for other in found
            if other.per_user >= one.per_user
            and other.throughput >= one.throughput
            and (other.per_user, other.throughput) != (one.per_user, one.throughput)
        ]
        assert (one in kept) == (not beaten)
    assert [one.per_user for one in kept] == sorted((one.per_user for one in kept), reverse=True)
    assert best(found, "latency") is kept[0] and best(found, "throughput") is kept[-1]


def test_rows_draft_for_themselves() -> None:
    """A drafter that drafts 3 tokens in every second round: in a batch of two 0, 3 or 6 tokens come together."""
    with_draft = Drafted((-1, 0, 1, 2), (0, 1, 2, 3), 4, (0, 1, 2, 3))
    without = Drafted((-1,), (0,), 1, (0,))
    recording = Recording(Shape.chain(8), (Answer((with_draft, without) * 10, cut=False),))
    curve = passes(lambda nodes, context: float(nodes**2), batches=(2,))  # straight between 2, 4, 6 and 8 nodes
    found = searched({"d": (recording, 0.0)}, curve, (2,))
    between = (16 + 36) / 2
    assert of(found, "d", 8, 2).seconds.verify == pytest.approx(4 / 4 + between / 2 + 64 / 4)


def test_contexts_are_interpolated() -> None:
    curve = passes(lambda nodes, context: nodes + context / 100, contexts=(100, 300))
    assert curve.seconds(2.5, 1, 150) == pytest.approx(2.5 + 1.5)
    assert curve.seconds(1, 1, 1000) == pytest.approx(4.0), "nothing is made up beyond what was measured"


def test_levels_come_from_the_loop() -> None:
    """Passes took a fifth longer than measured apart, and 3 ms went elsewhere."""
    curve = passes(flat_to(4, base=0.1, slope=0.01))
    timings = [Timing(4, 100, 0.020, 0.12, 0.003), Timing(1, 100, 0.010, 0.12, 0.003)]
    assert Level.of(timings, curve) == pytest.approx((1.2, 0.015, 0.003))
    level = Level.of(timings, curve)
    prices = Prices(curve, {("d", Shape.chain(2), 1): 0.2, ("d", Shape.chain(8), 1): 0.8}, 100)
    behaviour = chain([2, 0] * 20).behaviour(Shape.chain(2))
    seconds = prices.speculative(level, "d", Shape.chain(8), Shape.chain(2), behaviour, 1)
    assert seconds == pytest.approx((0.12, 0.015 / 4, 0.003))
    assert prices.plain(level, 1) == pytest.approx((0.12, 0.015, 0.003))


def test_contenders_are_the_best_of_each_kind_first() -> None:
    found = searched(
        {"a": (chain([4] * 9), 0.0), "b": (chain([3] * 9), 0.0), "c": (chain([0] * 9), 0.1)}, passes(flat_to(9))
    )
    three = contenders(found, "latency", 3)
    assert [one.setting.drafter for one in three] == ["a", "b", "c"]
    four = contenders(found, "latency", 4)
    assert [one.setting.drafter for one in four].count("a") == 2 and set(map(id, three)) < set(map(id, four))
    assert contenders(found, "latency", 0) == []
    only = contenders(searched({}, passes(flat_to(9))), "latency", 3)
    assert only == [], "plain decoding is there anyway"


def test_trees_are_predicted_from_trees() -> None:
    """A chain's recording says nothing of a tree and the other way round, nor a small one of a larger one."""
    tree = Drafted((-1, 0, 0, 1), (0, 2), 2, (0, 1, 1, 2))
    recording = Recording(Shape(2, 3), (Answer((tree,) * 10, cut=False),))
    drafts = {("t", shape, 1): 1.0 for shape in (Shape(2, 3), Shape(1, 2))}
    prices = Prices(passes(flat_to(9)), drafts, 100)
    shapes = [Shape.chain(1), Shape(1, 2), Shape(2, 3), Shape(3, 9)]
    found = predict(EXACT, [Recorded("t", recording, EXACT)], prices, shapes, (1,))
    assert [one.setting.shape for one in found] == [None, Shape(1, 2), Shape(2, 3)]
    small = found[1]
    assert small.behaviour.tokens == 2 and small.naive is None
    assert small.equal_chances == pytest.approx(speed.tree_length((-1, 0, 0), (0.0, 1.0)))


def test_what_the_runner_is_told() -> None:
    """The spec of a policy is one that there is."""
    case = Setting("d", Shape(4, 8), 2).case("match", 0.5)
    assert (case.policy, case.k, case.batch, case.temperature) == ("fixed:4,8", None, 2, 0.5)
    assert Setting("d", Shape.chain(3), 1).case("match", 0.0).k == 3
    assert Setting("none", None, 4).case("token", 0.0) == Setting("d", Shape.chain(3), 4).case("token", 0.0).plain
