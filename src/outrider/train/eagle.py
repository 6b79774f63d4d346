"""EAGLE (2401.15077): regress the target's next last state, and match what its output layer makes of it."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from .. import features
from ..drafters import Drafter
from ..drafters.eagle import Eagle
from ..drafters.trained import borrowed
from ..errors import BadOption
from ..heads.eagle import EagleHead, EagleShape
from ..target import Target
from .corpus import Batch
from .laws import Aim, law_ahead
from .recipe import Losses, Material, Recipe, ahead
from .start import begin
from .unrolled import collect, unroll

DECAY = 0.8  # weight of a step against the one before, where there are several


class EagleRecipe(Recipe):
    """Trains an EAGLE head.

    Args:
        material: what it starts from; one step is EAGLE as published, more are a training-time test.
        cell: what goes from state to state, see `shape_of`.
        noise: half the width of the uniform noise on the states that go in, so that the head bears its own errors.
        regression, matching: weights of the two losses. The paper has 1 and 0.1; where training is short, states that
            are close in the sense of the first are still read wrongly, so the second counts for more.
        bias: the linear that joins embedding and state has one, as published; vLLM loads heads without.
        start: what it begins from, see `start.begin`.
        loss, law_temperature, sampled: see `laws.Aim`.
    """

    method, rate, steps = "eagle", 5e-4, 1
    resizes = frozenset({"vocabulary"})
    head: EagleHead

    def __init__(
        self,
        material: Material,
        *,
        cell: str = "target",
        noise: float = 0.1,
        regression: float = 1.0,
        matching: float = 0.1,
        bias: bool = True,
        start: str = "small",
        loss: str = "kl",
        law_temperature: float = 1.0,
        sampled: int = 0,
    ) -> None:
        super().__init__()
        target = material.target
        self.taps = (features.depth_of(target),)
        shape = replace(shape_of(cell, target, len(material.ids)), bias=bias)
        if shape.cell == "gru" and not bias:
            raise BadOption("A gated recurrent unit joins embedding and state by itself: leave bias out.")
        self.head = EagleHead(shape, features.output(target, material.ids).float())
        if start != "small" and shape.cell == "gru":
            raise BadOption("A gated recurrent unit begins with small random values: leave start out.")
        if start == "layers" and cell != "target":
            raise BadOption(f"Layers of a {cell} cannot begin as the target's: take cell target, or another start.")
        if shape.cell == "transformer":
            begin(start, self.head.fc, list(self.head.layers), target)
        self._steps, self._ids, self._embed = material.steps, material.reduced, features.embedding(target)
        self._noise, self._regression, self._matching = noise, regression, matching
        self._aim = Aim(loss, law_temperature, sampled)

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        head = self.head
        match = law_ahead(batch, head.logits, head.output, self._aim)

        def loss(states: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
            wanted = ahead(batch.last, 1 + step)[counts]
            away = smooth_l1_loss(states.float(), wanted, reduction="none").mean(-1)
            costs, same = match(states, step, counts)
            return self._regression * away + self._matching * costs, same

        states = head.fuse(batch.features)
        if self._noise:
            chance = torch.Generator().manual_seed(batch.seed)
            states = states + ((torch.rand(states.shape, generator=chance) - 0.5) * 2 * self._noise).to(states.device)
        return collect(unroll(head, self._embed, batch, states, self._steps), batch, DECAY, loss)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return Eagle(self.head, borrowed(target, torch.float32), self.taps, self._ids, self.method)


def shape_of(cell: str, target: Target, vocabulary: int) -> EagleShape:
    """The sizes of a head: "target" (a layer as the target's are), "transformer:LAYERSxHEADS", or "gru".

    Raises:
        BadOption: it is none of these, or so many heads do not fit.
    """
    block = features.block_shape(target)
    if cell == "target":
        return EagleShape(block, vocabulary)
    if cell == "gru":
        return EagleShape(block, vocabulary, cell="gru")
    found = re.fullmatch(r"transformer:([1-9]\d?)x([1-9]\d?)", cell)
    if found is None:
        raise BadOption(
            f"There is no cell {cell!r}: write target, gru, or transformer:LAYERSxHEADS, for example transformer:2x4."
        )
    layers, heads = int(found[1]), int(found[2])
    if block.width % (2 * heads):
        raise BadOption(f"States of width {block.width} do not fall into {heads} heads of even size: choose another.")
    return EagleShape(replace(block, heads=heads, kv_heads=heads, head_size=block.width // heads), vocabulary, layers)
