"""Medusa's static tree: how it is searched for, and what is drafted in its shape."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from outrider.drafters.medusa import Medusa, default_ranks, search_ranks
from outrider.drafters.trained import Borrowed
from outrider.heads.base import TargetOutput
from outrider.heads.medusa import MedusaHead, MedusaShape
from outrider.sampling import Sampling
from outrider.tree import depths, path_to
from outrider.types import Budget, Draft

ACCURACY = [[0.6, 0.2, 0.1], [0.4, 0.3, 0.05], [0.5, 0.1, 0.0]]


def worth(path: tuple[int, ...]) -> float:
    """The product of accuracies."""
    product_ = 1.0
    for level, rank in enumerate(path):
        product_ *= ACCURACY[level][rank]
    return product_


@pytest.mark.parametrize("nodes", [1, 4, 9, 100])
def test_the_best_tree(nodes: int) -> None:
    """No node outside is worth more than one inside, parents come first, and what is never right is left out."""
    found = search_ranks(ACCURACY, nodes)
    every = [path for size in (1, 2, 3) for path in product(range(3), repeat=size)]
    hopeful = sorted((worth(path) for path in every if worth(path) > 0), reverse=True)
    assert [worth(path) for path in found] == pytest.approx(hopeful[:nodes])
    assert all(len(path) == 1 or path[:-1] in found[:place] for place, path in enumerate(found))


def heads(ranks: tuple[tuple[int, ...], ...] = (), eos: tuple[int, ...] = ()) -> Medusa:
    """Three random heads over a vocabulary of 12."""
    torch.manual_seed(2)
    head = MedusaHead(MedusaShape(8, 3, 1, 12, ranks), TargetOutput(torch.randn(12, 8)))
    for parameter in head.blocks.parameters():
        torch.nn.init.normal_(parameter)
    return Medusa(head, Borrowed(lambda ids: ids, 20, eos, torch.device("cpu"), torch.float32, 16), (4,), IDS, "medusa")


IDS = torch.tensor([0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 17, 19])
STATE = torch.linspace(-1, 1, 8)


def draft(medusa: Medusa, budget: Budget, sampling: Sampling | None = None) -> tuple[Draft, torch.Tensor]:
    """A draft behind three tokens, and the heads' logits over the draft vocabulary."""
    state = medusa.begin([1, 2, 3], {4: torch.stack([-STATE, STATE])})
    (found,) = medusa.propose([state], [budget], [sampling or Sampling()], [None])  # type: ignore[list-item]
    return found, medusa.head.logits(medusa.head(STATE)).detach()


def test_a_tree_has_the_likeliest_tokens_in_its_shape() -> None:
    """Node by node; as many as the budget has, and none deeper."""
    ranks = search_ranks(ACCURACY, 12)
    for nodes, depth in product((4, 7, 12), (1, 2, 3)):
        found, logits = draft(heads(ranks), Budget(depth, max(nodes, depth + 1)))
        ordered = IDS[logits.argsort(descending=True)]
        fitting = [path for path in ranks if len(path) <= depth][: max(nodes, depth + 1)]
        assert len(found.tree) == 1 + len(fitting) and found.probs is None
        texts = []
        for path in fitting:
            texts.append([3, *(int(ordered[level, rank]) for level, rank in enumerate(path))])
        drafted = [found.tree.tokens[path_to(found.tree.parents, node)].tolist() for node in range(1, len(found.tree))]
        assert drafted == texts


def test_a_chain_takes_one_token_of_each_head() -> None:
    """The likeliest, no more than there are heads."""
    found, logits = draft(heads(), Budget(9))
    assert found.tree.tokens.tolist() == [3, *IDS[logits.argmax(-1)].tolist()]


def test_nothing_is_drafted_behind_an_end() -> None:
    """In chains and in trees."""
    _, logits = draft(heads(), Budget(3))
    first = int(IDS[logits[0].argmax()])
    chain, _ = draft(heads(eos=(first,)), Budget(3))
    assert chain.tree.tokens.tolist() == [3, first]
    tree, _ = draft(heads(default_ranks(3), (first,)), Budget(3, 9))
    ends = (tree.tree.tokens == first).nonzero().flatten().tolist()
    assert ends[0] == 1 and not bool(torch.isin(tree.tree.parents, torch.tensor(ends)).any())
    assert int(depths(tree.tree.parents).max()) == 3


def test_laws_come_where_they_are_asked_for() -> None:
    """Each node's is its head's, over the target's vocabulary."""
    found, logits = draft(heads(search_ranks(ACCURACY, 6)), Budget(3, 6, law=True))
    assert found.probs is not None and found.drawn == "point"
    for node, depth in enumerate(depths(found.tree.parents).tolist()):
        if node:
            assert torch.allclose(found.probs[node - 1, IDS], logits[depth - 1].softmax(-1))
            assert float(found.probs[node - 1].sum()) == pytest.approx(1)


@pytest.mark.parametrize("ranks", [[[0, 0]], [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], [[-1]]])
def test_shapes_that_are_no_tree(ranks: list[list[int]]) -> None:
    """A configuration with one is refused."""
    with pytest.raises(ValidationError, match="tree"):
        TypeAdapter(MedusaShape).validate_python(
            {"width": 8, "heads": 3, "layers": 1, "vocabulary": 12, "ranks": ranks}
        )
