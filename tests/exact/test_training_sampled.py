"""Losses that look at a sample of the draft vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import families
import pytest
import torch
from test_training_pieces import batch_of

import outrider
from outrider.errors import BadOption
from outrider.train.corpus import Batch
from outrider.train.laws import Aim, Laws
from outrider.train.methods import make_recipe
from outrider.train.recipe import Material, ahead


def gradient(method: str, target: Any, batch: Batch, **options: Any) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient at a head that knows something already."""
    torch.manual_seed(1)
    quiet = {"noise": 0.0, "regression": 0.0, "matching": 1.0} if method == "eagle" else {}
    recipe = make_recipe(method, Material(target, torch.arange(100), 2, {**quiet, **options}))
    own = [parameter for parameter in recipe.head.parameters() if parameter.requires_grad]
    for parameter in own:
        torch.nn.init.normal_(parameter, std=0.2)
    loss = recipe.losses(batch).mean
    loss.backward()
    return float(loss.detach()), torch.cat(
        [parameter.grad.flatten() for parameter in own if parameter.grad is not None]
    )


@pytest.fixture(scope="module")
def target() -> Any:
    return outrider.load(families.make("llama"), "none", fast=False).target


@pytest.mark.parametrize(("loss", "near"), [("kl", 0.03), ("lk", 0.1)])  # lk is no straight line of the overlap
@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_a_sample_teaches_the_same(method: str, loss: str, near: float, target: Any) -> None:
    """On average over what is drawn; and with all that there is, exactly."""
    batch = batch_of(40, 31)
    cost, whole = gradient(method, target, batch, loss=loss)
    every, same = gradient(method, target, batch, loss=loss, sampled=100)
    assert every == cost and torch.equal(same, whole)
    found = [gradient(method, target, replace(batch, seed=s), loss=loss, sampled=60) for s in range(40)]
    assert sum(c for c, _ in found) / len(found) == pytest.approx(cost, rel=near)
    mean = torch.stack([g for _, g in found]).mean(0)
    assert float(torch.cosine_similarity(mean, whole, dim=0)) > 1 - near
    assert any(not torch.equal(g, found[0][1]) for _, g in found[1:])


def test_the_likeliest_are_looked_at(target: Any) -> None:
    """Three quarters are the tokens with most of the laws, and the others stand for all that are left."""
    batch = batch_of(40, 31)
    output = outrider.features.output(target, torch.arange(100)).float()
    whole, some = Laws(batch, output), Laws(batch, output, Aim(sampled=40))
    assert whole.sample is None and some.sample is not None
    mass = whole(ahead(batch.answer, 1), 0).sum(0)
    assert set(some.sample.places[:30].tolist()) == set(mass.topk(30).indices.tolist())
    assert some.sample.weights.tolist() == [1.0] * 30 + [7.0] * 10 and len(some.sample.places.unique()) == 40
    states = batch.last[0, :5]
    torch.testing.assert_close(some.sample.logits(states), output(states)[:, some.sample.places])


def test_too_few_tokens() -> None:
    with pytest.raises(BadOption, match="sampled is 3: it has to be 8 or more"):
        Aim(sampled=3)
