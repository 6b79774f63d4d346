"""The target's laws in training: computed once, and found again however many slots ahead a step looks."""

from __future__ import annotations

import pytest
import torch

from outrider.errors import BadOption
from outrider.heads.base import TargetOutput
from outrider.train.corpus import Batch
from outrider.train.laws import Aim, Laws, law_ahead, soft_loss, target_law
from outrider.train.recipe import ahead


@pytest.mark.parametrize("by", [0, 1, 2, 5])
@pytest.mark.parametrize("some", [False, True])
def test_laws_ahead_are_those_of_the_states_ahead(by: int, some: bool) -> None:
    """Texts whose answers begin and end elsewhere, one that has none, and slots of which only some count."""
    chance = torch.Generator().manual_seed(by)
    output = TargetOutput(torch.randn(7, 5, generator=chance))
    answer = torch.zeros(4, 9, dtype=torch.bool)
    answer[0, 2:8] = answer[1, 0:9] = answer[3, 7:9] = True
    last = torch.randn(4, 9, 5, generator=chance)
    laws = Laws(Batch(torch.zeros(4, 9, dtype=torch.long), answer, last[..., :0], last), output)
    counts = ahead(answer, 1 + by)
    if some:
        counts &= torch.rand(4, 9, generator=chance) < 0.5
    found = laws(counts, by)
    assert found.shape == (int(counts.sum()), 7)
    torch.testing.assert_close(found, target_law(ahead(last, by)[counts], output))


def test_the_temperature_of_a_law_is_that_of_its_logits() -> None:
    output, last = TargetOutput(torch.eye(3)), torch.tensor([[1.0, 2.0, 4.0]])
    torch.testing.assert_close(target_law(last, output, Aim(law_temperature=0.5)), (last / 0.5).softmax(-1))


def test_overlap_counts_where_it_is_there_and_cross_entropy_where_it_is_not() -> None:
    """LK Losses' hybrid: nothing to gain at the law itself, cross-entropy's gradient far from it, and the overlap's
    where both share a part."""
    law = torch.tensor([[0.5, 0.3, 0.2]])
    cost, agreed = soft_loss(law.log(), law, Aim("lk"))
    share = torch.tensor(-3.0).exp()
    entropy = -(law * law.log()).sum()
    assert cost.item() == pytest.approx((share * entropy).item(), rel=1e-5) and agreed.all()
    for logits in ([[-9.0, -9.0, 0.0, 9.0]], [[0.1, 0.5, -1.0, 0.3]]):
        law = torch.tensor([[0.6, 0.4, 0.0, 0.0]])
        given = torch.tensor(logits, requires_grad=True)
        own = given.softmax(-1)
        overlap = torch.minimum(own, law).sum(-1)
        share = (-3 * overlap.detach()).exp()
        wanted = share * -(law * own.log()).sum(-1) + (1 - share) * (1 - overlap)
        (expected,) = torch.autograd.grad(wanted.sum(), given)
        (found,) = torch.autograd.grad(soft_loss(given, law, Aim("lk"))[0].sum(), given)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_what_comes_behind_tokens_that_were_not_the_likeliest_counts_less() -> None:
    """Counted by hand: the target expects 1 2 3 2, the text says 1 0 3 2, of which the first token is the prompt's."""
    ids, expected = torch.tensor([[7, 10, 0, 30, 20, 0]]), [1, 2, 3, 2, 0, 0]  # places in a vocabulary of 0 10 20 30
    last = torch.nn.functional.one_hot(torch.tensor([expected]), 4).float()
    answer = torch.tensor([[False, False, True, True, True, False]])
    batch = Batch(ids, answer, last[..., :0], last)
    laws = Laws(batch, TargetOutput(torch.eye(4)), Aim(off_greedy=0.5), torch.tensor([0, 10, 20, 30]))
    assert laws.trust(0)[0].tolist() == [1, 0.5, 1, 1, 1, 1]  # what stands in a prompt is no stray
    assert laws.trust(1)[0].tolist() == [0.5, 0.5, 1, 1, 1, 0] and laws.trust(2)[0, :3].tolist() == [0.5, 0.5, 1]
    loss = law_ahead(batch, torch.clone, TargetOutput(torch.eye(4)), Aim(off_greedy=0.5), torch.tensor([0, 10, 20, 30]))
    costs, _ = loss(torch.zeros(3, 4), 0, ahead(answer, 2))
    torch.testing.assert_close(costs, torch.tensor([1.0, 0.5, 1.0]) * torch.tensor(4.0).log())


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(BadOption, match="no loss 'tv'"):
        Aim("tv")
    with pytest.raises(BadOption, match="above 0"):
        Aim(law_temperature=0.0)
    with pytest.raises(BadOption, match="from 0 to 1"):
        Aim(off_greedy=1.5)
