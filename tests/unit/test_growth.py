"""The draft model as a tree: its shape, its laws, and what it keeps of its cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor
from toy import Context, Table, ToyTarget

from outrider import tree as trees
from outrider.drafters.growth import DrawnTree, Start
from outrider.drafters.model import ModelDrafter
from outrider.noise import SeededNoise
from outrider.sampling import Sampling
from outrider.tree import by_rank, depths, is_chain, path_to
from outrider.types import Budget, Draft, Scores

VOCABULARY = 5
TABLE = Table(VOCABULARY, 31)
WARM = Sampling(temperature=1.0)
NO_SCORES = Scores(torch.zeros(0, VOCABULARY))


def propose(drafter: ModelDrafter, state: object, budget: Budget, sampling: Sampling, coupled: bool = False) -> Draft:
    """One draft for one row."""
    noise = SeededNoise.for_draft(0, 0, coupled)
    (draft,) = drafter.propose([state], [budget], [sampling], [noise])  # type: ignore[list-item]
    return draft


def texts(draft: Draft, before: Sequence[int]) -> list[Context]:
    """The text that ends with each node."""
    tokens, parents = draft.tree.tokens.tolist(), draft.tree.parents
    return [(*before[:-1], *(tokens[n] for n in path_to(parents, node))) for node in range(len(tokens))]


def worth(table: Table, before: Context, tokens: Sequence[int]) -> float:
    """The product of a table's probabilities along a path."""
    product_ = 1.0
    for place, token in enumerate(tokens):
        product_ *= float(table.law((*before, *tokens[:place]))[token])
    return product_


@pytest.mark.parametrize(("depth", "nodes"), [(1, 4), (2, 3), (2, 10), (3, 8), (3, 30), (4, 12)])
@pytest.mark.parametrize("seed", [31, 32, 33])
def test_a_greedy_tree_is_the_likeliest(depth: int, nodes: int, seed: int) -> None:
    """Against all paths there are: no tree of so many nodes is worth more, as long as no level needs more than 8."""
    table = Table(VOCABULARY, seed)
    drafter = ModelDrafter(ToyTarget(table), VOCABULARY)
    state = drafter.begin((0, 1), {})
    draft = propose(drafter, state, Budget(depth, nodes), Sampling())
    every = [
        worth(table, (0, 1), path)
        for length in range(1, depth + 1)
        for path in product(range(VOCABULARY), repeat=length)
    ]
    found = [worth(table, (0, 1), text[2:]) for text in texts(draft, (0, 1))[1:]]
    assert len(set(texts(draft, (0, 1)))) == len(draft.tree)
    assert (draft.drawn, draft.probs) == ("point", None)
    expected = sorted(every, reverse=True)[:nodes]
    best = 8 if nodes > 8 else nodes  # what a level that is cut to 8 cannot lose
    assert sorted(found, reverse=True)[:best] == pytest.approx(expected[:best], rel=1e-5)
    assert len(found) == len(expected)
    assert int(depths(draft.tree.parents).max()) <= depth


@pytest.mark.parametrize(("depth", "nodes"), [(1, 3), (2, 5), (3, 12), (4, 30)])
def test_a_drawn_tree_has_its_shape_and_its_laws(depth: int, nodes: int) -> None:
    """Siblings differ, each node brings the law of its parent's text with nothing taken out."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY + 2)
    draft = propose(drafter, drafter.begin((0, 1), {}), Budget(depth, nodes), WARM)
    assert draft.drawn == "without_replacement"
    assert draft.probs is not None
    below = trees.children(draft.tree.parents)
    tokens, every = draft.tree.tokens.tolist(), texts(draft, (0, 1))
    for node, children in enumerate(below):
        assert len({tokens[child] for child in children}) == len(children)
        for child in children:
            expected = torch.cat([TABLE.law(every[node]).float(), torch.zeros(2)])
            torch.testing.assert_close(draft.probs[child - 1], expected)
    if nodes <= 12:  # no node has more children than there are tokens
        assert tuple(draft.tree.parents.tolist()) == by_rank(depth, nodes)


def restricted(parents: Tensor, depth: int, nodes: int) -> tuple[int, ...]:
    """Parents of the first so many nodes that lie no deeper."""
    levels = depths(parents).tolist()
    kept = [node for node, level in enumerate(levels) if level <= depth][: nodes + 1]
    place = {node: index for index, node in enumerate(kept)}
    return tuple(place[int(parents[node])] if node else -1 for node in kept)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("depth", "nodes"), [(1, 4), (2, 3), (3, 10), (5, 6), (5, 20)])
def test_a_smaller_tree_is_the_beginning_of_a_larger_one(sampling: Sampling, depth: int, nodes: int) -> None:
    """So what a smaller budget would have brought can be read off a recorded round."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    state = drafter.begin((0, 1), {})
    large = propose(drafter, state, Budget(5, 20), sampling, coupled=True)
    small = propose(drafter, state, Budget(depth, nodes), sampling, coupled=True)
    assert restricted(large.tree.parents, depth, nodes) == tuple(small.tree.parents.tolist())
    inside = [node for node, level in enumerate(depths(large.tree.parents)) if level <= depth][: nodes + 1]
    assert large.tree.tokens[inside].tolist() == small.tree.tokens.tolist()


def test_no_more_siblings_than_tokens() -> None:
    """Where the law is used up, the shape's other children and what hangs on them are left out."""
    drafter = ModelDrafter(ToyTarget(Table(3, 34, support=(0, 2))), 3)
    draft = propose(drafter, drafter.begin((0, 1), {}), Budget(2, 20), WARM)
    assert all(len(children) in (0, 2) for children in trees.children(draft.tree.parents))
    greedy = propose(drafter, drafter.begin((0, 1), {}), Budget(2, 20), Sampling())
    assert sorted(texts(greedy, (0, 1))) == sorted(texts(draft, (0, 1)))
    assert len(greedy.tree) == 7


def test_coupled_draws_are_the_race_of_the_position() -> None:
    """The first child everywhere is what a chain would draw there with the same noise."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    draft = propose(drafter, drafter.begin((0, 1), {}), Budget(3, 9), WARM, coupled=True)
    tokens, every = draft.tree.tokens.tolist(), texts(draft, (0, 1))
    for node, children in enumerate(trees.children(draft.tree.parents)):
        if children:
            own = SeededNoise.for_verifier(0, 0).draws(TABLE.law(every[node])[None], [len(every[node])])
            assert tokens[children[0]] == own[0]


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("nodes", [3, 8], ids=["chain", "tree"])
def test_law_on_demand(sampling: Sampling, nodes: int) -> None:
    """With `Budget.law` a greedy draft brings the laws behind its choices, at temperature 1."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    draft = propose(drafter, drafter.begin((0, 1), {}), Budget(3, nodes, law=True), sampling)
    assert draft.probs is not None
    parents = draft.tree.parents.tolist()
    every = texts(draft, (0, 1))
    for node in range(1, len(parents)):
        torch.testing.assert_close(draft.probs[node - 1], TABLE.law(every[parents[node]]).float())
    assert (draft.drawn == "point") == (sampling.temperature == 0)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_a_budget_without_branches_is_a_chain(sampling: Sampling) -> None:
    """As many nodes as depth, or fewer than depth were asked for: never a branch."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    for depth in (1, 4):
        draft = propose(drafter, drafter.begin((0, 1), {}), Budget(depth, depth), sampling)
        assert is_chain(draft.tree.parents)
        assert len(draft.tree) == depth + 1


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("nodes", [6, 12], ids=["chain", "tree"])
def test_stop_is_asked_and_obeyed(sampling: Sampling, nodes: int) -> None:
    """With the law behind the token; a token that it stops at is kept and has nothing behind it."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    asked: list[tuple[torch.Tensor, int]] = []

    def stop(law: torch.Tensor, token: int) -> bool:
        asked.append((law, token))
        return token in (0, 3)

    draft = propose(drafter, drafter.begin((0, 1), {}), Budget(6, nodes, stop), sampling)
    tokens, every = draft.tree.tokens.tolist(), texts(draft, (0, 1))
    below = trees.children(draft.tree.parents)
    assert all(not below[node] for node in range(1, len(tokens)) if tokens[node] in (0, 3))
    assert {token for _, token in asked} & {0, 3}
    laws = [TABLE.law(text[:-1]).float() for text in every[1:]]
    for law, token in asked:
        assert float(law[token]) > 0
        assert nodes == 12 or any(torch.allclose(law, other) for other in laws)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("nodes", [6, 12], ids=["chain", "tree"])
def test_nothing_behind_the_end(sampling: Sampling, nodes: int) -> None:
    """The draft model's own end of sequence may be drafted, and ends its path."""
    ends = 0
    for seed in range(6):
        drafter = ModelDrafter(ToyTarget(Table(VOCABULARY, 60 + seed), eos=(0, 1)), VOCABULARY)
        draft = propose(drafter, drafter.begin((2, 3), {}), Budget(6, nodes), sampling)
        below = trees.children(draft.tree.parents)
        for node, token in enumerate(draft.tree.tokens.tolist()):
            if token in (0, 1):
                ends += 1
                assert not below[node]
    assert ends


BUDGETS = [Budget(0), Budget(3), Budget(2, 6), Budget(1, 4), Budget(4, 4), Budget(4, 9)]


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(temperature=0.9, repetition_penalty=1.5)], ids=str)
def test_any_company_at_any_time(sampling: Sampling) -> None:
    """Chains, trees and rows that pause, in one batch, asked once or twice a round: always a fresh drafter's draft."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    chance = random.Random(5)
    states = [drafter.begin(prompt, {}) for prompt in ((0, 1), (2,), (3, 1, 4, 1))]
    for number in range(12):
        for _ in range(chance.choice([1, 1, 2])):
            budgets = [chance.choice(BUDGETS) for _ in states]
            noises = [SeededNoise.for_draft(row, number, True) for row in range(3)]
            drafts = drafter.propose(states, budgets, [sampling] * 3, noises)
            for row, (state, budget, draft) in enumerate(zip(states, budgets, drafts, strict=True)):
                fresh = drafter.begin(tuple(state.tokens[:2]), {})
                fresh.prompt_length = state.prompt_length
                drafter.commit(fresh, state.tokens[2:], NO_SCORES, ())
                (alone,) = drafter.propose([fresh], [budget], [sampling], [SeededNoise.for_draft(row, number, True)])
                assert torch.equal(draft.tree.tokens, alone.tree.tokens)
                assert torch.equal(draft.tree.parents, alone.tree.parents)
                assert len(draft.tree) - 1 <= budget.nodes
                assert int(depths(draft.tree.parents).max()) <= budget.depth
        for state, draft in zip(states, drafts, strict=True):
            path = path_to(draft.tree.parents, chance.randrange(len(draft.tree)))
            kept = draft.tree.tokens[path[1:]].tolist()
            drafter.commit(state, [*kept, chance.randrange(VOCABULARY)], NO_SCORES, path)


def test_a_draft_that_nobody_took_leaves_no_trace() -> None:
    """Proposing again without a commit gives the same draft, and a chain's next one is as fresh."""
    drafter = ModelDrafter(ToyTarget(TABLE), VOCABULARY)
    state = drafter.begin((0, 1), {})
    for budget in (Budget(4), Budget(3, 8)):
        first = propose(drafter, state, budget, WARM)
        again = propose(drafter, state, budget, WARM)
        assert torch.equal(first.tree.tokens, again.tree.tokens)
        assert torch.equal(first.probs, again.probs)  # type: ignore[arg-type]


def test_passes_of_a_tree() -> None:
    """One pass per level, and none for nodes that end their path; the prompt has been read by then."""
    target = ToyTarget(TABLE)
    drafter = ModelDrafter(target, VOCABULARY)
    state = drafter.begin((0, 1), {})
    propose(drafter, state, Budget(1), WARM)
    for budget, levels in ((Budget(1, 4), 1), (Budget(3, 9), 3), (Budget(4), 4)):
        before = target.passes
        propose(drafter, state, budget, WARM)
        assert target.passes - before == levels


def test_the_shape_is_worth_the_most() -> None:
    """Best-first against every tree of up to five nodes, with the same acceptance by rank."""

    def value(parents: Sequence[int], agreement: float) -> float:
        worths, ranks, total = [1.0], [0] * len(parents), 0.0
        for parent in parents[1:]:
            worths.append(worths[parent] * agreement * (1 - agreement) ** ranks[parent])
            ranks[parent] += 1
            total += worths[-1]
        return total

    for agreement in (0.3, 0.6, 0.9):
        for depth, nodes in ((1, 4), (2, 4), (3, 5), (5, 5)):
            every = (
                (-1, *parents)
                for parents in product(*(range(node) for node in range(1, nodes + 1)))
                if int(depths(torch.tensor((-1, *parents))).max()) <= depth
            )
            best = max(value(parents, agreement) for parents in every)
            found = by_rank(depth, nodes, agreement)
            assert len(found) == nodes + 1
            assert int(depths(torch.tensor(found)).max()) <= depth
            assert value(found, agreement) == pytest.approx(best)


def test_a_smaller_shape_is_the_beginning_of_a_larger_one() -> None:
    """Parents before children, the worthiest first; with less depth the deeper ones are skipped."""
    for agreement in (0.3, 0.6, 0.9):
        large = by_rank(6, 40, agreement)
        assert all(parent < node for node, parent in enumerate(large))
        for depth, nodes in ((6, 40), (6, 7), (6, 0), (3, 9), (1, 2)):
            assert restricted(torch.tensor(large), depth, nodes) == by_rank(depth, nodes, agreement)
    assert by_rank(0, 5) == (-1,)
    start = Start(1, 5, Budget(2, 4), SeededNoise.for_draft(0, 0, False))
    assert len(DrawnTree(start).draft().tree) == 1
