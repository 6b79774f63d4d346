"""The policy `goodput` in worlds where the best answer is known: it finds it, and never costs what it does not gain."""

from __future__ import annotations

import random
from statistics import fmean, median

import pytest
from simulation import Grown, World, always, flat, live, nothing, rising

from outrider.policy import Policy, Setting, make_policy
from outrider.policy.allocation import START
from outrider.types import Budget, Round, Tree

Options = dict[str, object]


def fresh(rows: int = 1, setting: Setting | None = None) -> list[Policy]:
    """Policies of one maker that has seen nothing."""
    make = make_policy("goodput", setting)
    return [make() for _ in range(rows)]


# what -> (the world, the best depth)
STATIONARY: dict[str, tuple[Options, range]] = {
    "free verification": ({"rate": always(0.8)}, range(12, 33)),
    "free verification, copying": ({"rate": always(0.97)}, range(28, 33)),
    "decaying acceptance": ({"rate": always(0.95, 0.85), "verify": rising(0.05)}, range(4, 7)),
    "rising costs": ({"rate": always(0.8), "verify": rising(0.1)}, range(5, 8)),
    "steep costs": ({"rate": always(0.7), "verify": rising(0.36)}, range(1, 3)),
    "a knee": ({"rate": always(0.9), "verify": rising(0.5, free=8)}, range(7, 8)),
    "an early knee": ({"rate": always(0.97, 0.95), "verify": rising(0.5, free=4)}, range(3, 4)),
    "a draft model": ({"rate": always(0.8), "draft": lambda depth: 0.1 * depth}, range(5, 8)),
    "a dear draft model": ({"rate": always(0.9), "draft": lambda depth: 0.4 * depth}, range(3, 6)),
    "a draft that starts slowly": ({"rate": always(0.8), "draft": lambda depth: (depth > 0) * 0.5}, range(12, 33)),
    "little to gain": ({"rate": always(0.3), "draft": lambda depth: 0.05 * depth}, range(1, 3)),
}


@pytest.mark.parametrize("name", STATIONARY)
def test_the_best_depth_is_found(name: str) -> None:
    """Within a twentieth of the best fixed depth, costs of learning included; on average over four worlds of luck."""
    options, best = STATIONARY[name]
    worlds = [World(**options, seed=seed) for seed in range(4)]  # type: ignore[arg-type]
    assert max(range(33), key=worlds[0].fixed) in best, "the world is as the table says"
    runs = [live(world, fresh(), 400) for world in worlds]
    assert fmean(run.goodput() / world.best() for run, world in zip(runs, worlds, strict=True)) > 0.95


HOPELESS: dict[str, Options] = {
    "nothing is right": {"rate": always(0.0), "verify": rising(0.1)},
    "passes grow as fast as drafts": {"rate": always(0.8), "verify": rising(1.0)},
    "the drafter is as slow as the target": {"rate": always(0.9), "draft": float},
    "steep costs, bad drafts": {"rate": always(0.2), "verify": rising(0.36), "draft": lambda depth: 0.3 * depth},
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_does_not_pay_is_turned_off(name: str) -> None:
    """Nothing is asked for but a token now and then: learning that costs little, and later less than a hundredth."""
    world = World(**HOPELESS[name])  # type: ignore[arg-type]
    run = live(world, fresh(), 1200)
    assert run.goodput(0, 400) > 0.97
    assert run.goodput(400) > 0.99
    asked = sum(depth > 0 for depth in run.depths()[400:])
    # A drafter that is right but too slow answers a probe well, so it is asked again, four times at most.
    assert asked < (0.05 if world.rate(0, 0, 1) > 0.5 else 0.01) * 800


def test_never_much_slower_than_plain() -> None:
    """In worlds of any acceptance, costs, noise and change: 0.97 of plain decoding at least, learning included."""
    chance = random.Random(5)
    for seed in range(36):
        rates = chance.choices([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97], k=2)
        decay, change = chance.choice([1, 1, 0.9]), chance.choice([60, 150, 10**6])
        slope, free = chance.choice([(0, 1), (0.02, 1), (0.05, 1), (0.15, 1), (0.36, 1), (0.3, 8)])
        token, empty = chance.choice([0, 0, 0.02, 0.1, 0.3, 0.6]), chance.choice([0, 0, 0.7])
        world = World(
            lambda number, row, position, rates=rates, decay=decay, change=change: (
                rates[number // change % 2] * decay ** (position - 1)
            ),
            rising(slope, free),
            lambda depth, token=token: token * depth,
            lambda chance, empty=empty: 0 if chance.random() < empty else 1000,
            noise=chance.choice([0.02, 0.1]),
            outliers=chance.choice([0, 0.05]),
            seed=seed,
        )
        run = live(world, fresh(), 400)
        assert run.goodput() > 0.97, (seed, rates, decay, change, slope, free, token, empty)


@pytest.mark.parametrize("verify", [rising(0.02), rising(0.1), rising(0.36)])
def test_it_recovers_when_the_text_begins_to_copy(verify: object) -> None:
    """Off while drafts are wrong, on soon after they are right, and off again."""
    world = World(lambda number, row, position: 0.95 if 300 <= number < 700 else 0.0, verify, seed=1)  # type: ignore[arg-type]
    run = live(world, fresh(), 1100)
    copying = World(always(0.95), verify).best()  # type: ignore[arg-type]
    asked = run.depths()
    assert sum(asked[100:300]) <= 12
    assert run.goodput(100, 300) > 0.985
    assert median(asked[450:700]) > 1
    assert run.goodput(450, 700) > 0.93 * copying
    assert run.goodput(800, 1100) > 0.97


def test_drafts_that_do_not_come_say_nothing() -> None:
    """A drafter that is silent in three rounds of four is asked for what is best in the fourth."""
    world = World(always(0.8), rising(0.1), longest=lambda chance: chance.choice([0, 0, 0, 1000]), seed=2)
    run = live(world, fresh(), 800)
    late = run.drafted[100:]
    there = sum(depth > 0 for (depth,) in late) / len(late)

    def value(depth: int) -> float:
        tokens = 1 - there + there * world.expected(0, 0, depth)
        return tokens / (1 - there + there * world.verify(depth + 1))

    assert run.depths()[100:].count(0) < 10
    assert run.goodput(100) > 0.97 * max(map(value, range(33)))


def test_a_silent_drafter_is_asked_on() -> None:
    """What never comes costs nothing, so there is nothing to turn off, and a draft is not missed when it comes."""
    world = World(always(0.9), rising(0.3), longest=lambda chance: 0)
    run = live(world, fresh(), 200)
    assert run.goodput() == 1
    assert min(run.depths()[20:]) > 0


def test_short_drafts_are_not_long_ones_that_failed() -> None:
    """A drafter with two tokens at most, or thirty now and then, is asked for thirty: the others cost nothing."""
    longest = lambda chance: 30 if chance.random() < 0.1 else chance.randrange(3)  # noqa: E731
    run = live(World(always(0.95), rising(0.03), longest=longest, seed=3), fresh(), 600)
    assert median(run.depths()[300:]) > 15


def test_the_machine_becomes_slower_for_a_while() -> None:
    """All passes alike: what pays still pays, whatever they cost before."""
    world = World(always(0.8), rising(0.05), load=lambda number: 3.0 if 150 <= number < 300 else 1.0)
    run = live(world, fresh(), 450)
    for start, end in ((50, 150), (150, 300), (300, 450)):
        assert run.goodput(start, end) > 0.93 * world.best()


def test_the_choice_is_a_function_of_the_rounds() -> None:
    """Two that are told the same ask for the same; asking twice changes nothing."""
    one, other = fresh()[0], fresh()[0]
    world = World(always(0.7), rising(0.1), lambda depth: 0.05 * depth)
    chance = random.Random(4)
    for number in range(120):
        budget = one.budget()
        assert (budget, budget) == (other.budget(), one.budget())
        accepted = world.accepted(number, 0, budget.depth)
        path = tuple(range(accepted + 1))
        round_ = Round(
            0, number, 1, Tree.chain([0] * (budget.depth + 1)), path, path, None, chance.random(), 1 + chance.random()
        )
        one.observe(round_)
        other.observe(round_)


def test_costs_are_shared_and_acceptance_is_not() -> None:
    """The second request of a maker knows what passes cost, and makes up its own mind about its drafts."""
    make = make_policy("goodput")
    steep = World(always(0.9), rising(0.36), seed=6)
    assert live(steep, [make()], 60).depths()[:2] == [START, 0]
    second = live(World(always(0.0), rising(0.36), seed=7), [make()], 60)
    assert 0 < max(second.depths()) < START
    assert sum(second.depths()) <= 6
    third = live(steep, [make()], 60)
    assert third.goodput() > 0.9 * steep.best()


@pytest.mark.parametrize("rows", [2, 8])
def test_a_batch_shares_its_pass(rows: int) -> None:
    """As rows are added the nodes that are free run out, and drafts become shorter; all together near the optimum."""
    world = World(always(0.8), rising(0.2, free=16), seed=8)
    run = live(world, fresh(rows), 200)
    assert run.goodput(50) > 0.9 * world.best(rows)
    alone = live(World(always(0.8), rising(0.2, free=16), seed=8), fresh(), 200)
    assert median(run.depths()[50:]) < median(alone.depths()[50:])


def test_rows_that_draft_well_get_the_room() -> None:
    """Of four rows on a pass with little room, the two whose drafts are right draft."""
    world = World(lambda number, row, position: 0.95 if row < 2 else 0.05, rising(0.3, free=12), seed=9)
    run = live(world, fresh(4), 300)
    shares = [fmean(depth > 0 for depth in run.depths(row)[100:]) for row in range(4)]
    assert min(shares[:2]) > 0.9
    assert max(shares[2:]) < 0.1
    assert fmean(run.depths(0)[100:]) > 2


def test_a_draft_model_serves_all_rows_at_once() -> None:
    """Its time is shared: what would not pay for one row alone pays for all of them, also after all were off."""
    draft = lambda depth: 0.5 * depth  # noqa: E731
    world = World(lambda number, row, position: 0.0 if number < 150 else 0.9, flat, draft, seed=10)
    run = live(world, fresh(4), 700)
    alone = World(lambda number, row, position: 0.9 if row == 0 else 0.0, flat, draft)
    assert alone.fixed(1, 4) < alone.fixed(0, 4), "one row alone cannot pay for it"
    assert run.goodput(60, 150) > 0.97 * 4
    assert run.goodput(400) > 0.93 * World(always(0.9), flat, draft).best(4)


def test_nothing_is_drafted_for_rows_that_end() -> None:
    """The last round of a request leaves nothing to ask for, and the others go on without it."""
    policies = fresh(2)
    world = World(always(0.8), rising(0.05))
    live(world, policies, 30)
    for row, finish in enumerate(("stop", None)):
        policies[row].budget()
        last = Round(row, 30, 1, Tree.chain([0]), (0,), (0,), finish, 0.0, 1.0, 0.0, 2, 2, row)  # type: ignore[arg-type]
        policies[row].observe(last)
    assert policies[0].budget() == Budget(0)
    assert policies[1].budget().depth > 0
    assert live(world, policies[1:], 100).goodput(20) > 0.9 * world.best()


RANKS = (0.6, 0.2, 0.1)


@pytest.mark.parametrize(("slope", "free"), [(0.0, 1), (0.02, 1), (0.1, 1), (0.5, 12)])
def test_trees_are_as_large_as_pays(slope: float, free: int) -> None:
    """For a drafter that makes trees: nodes by the same rule, against the best number of nodes of the best tree."""
    verify, chance = rising(slope, free), random.Random(11)

    def value(grown: Grown) -> float:
        return sum(grown.chances) / verify(len(grown.tree))

    (policy,) = fresh(setting=Setting("trees", makes_trees=True))
    tokens, seconds, budgets = 0.0, 0.0, []
    for number in range(300):
        budget = policy.budget()
        grown = Grown.of(RANKS, budget)
        path = grown.walk(RANKS, chance)
        clock = verify(len(grown.tree)) * chance.lognormvariate(0, 0.05)
        policy.observe(Round(0, number, 1, grown.tree, path, path, None, 0.0, clock))
        budgets.append(budget)
        if number >= 100:
            tokens, seconds = tokens + sum(grown.chances), seconds + verify(len(grown.tree))
    best = max(value(Grown.of(RANKS, Budget(16, nodes))) for nodes in range(65))
    assert tokens / seconds > 0.93 * best
    assert budgets[-1].nodes > budgets[-1].depth or slope == 0.1


def test_chains_have_as_many_nodes_as_tokens() -> None:
    """Without trees `nodes` is `depth`, and a chain never asks a drafter to stop."""
    (policy,) = fresh()
    world = World(always(0.8), nothing)
    world.verify = flat
    live(world, [policy], 20)
    budget = policy.budget()
    assert (budget.nodes, budget.stop) == (budget.depth, None)
