"""LayerSkip (Elhoushi et al., 2404.16710): the whole target is trained so that its own head can read its middle layers.

Each batch trains the last layer, the exit that will be used, and one other layer, drawn at random. Later layers are
left out now and then, the last ones most often, so that the model learns to do with fewer. The old target's law is what
all of them learn, so that the new one stays close to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoints, features
from ..checkpoints import Checkpoint
from ..drafters import Drafter
from ..drafters.early_exit import EarlyExit
from ..errors import BadOption
from ..heads.whole import Whole, layers_of
from ..layers import layered
from ..target import Target
from .changing import Changing
from .corpus import Batch
from .exit import exit_of
from .laws import soft_loss, target_law
from .recipe import Losses, Material
from .unrolled import collect


class LayerSkipRecipe(Changing):
    """Trains a target for early exits.

    Args:
        material: what it starts from.
        exit_layer: after how many layers it will be left; 0 takes a quarter of them.
        weight: of the exit's loss against the last layer's; the drawn layer's has a quarter of it.
        dropout: how often the last layer is left out; those before it less often, none up to the exit.
    """

    method, rate, steps, chooses_steps, reduces = "layerskip", 5e-5, 1, False, False
    head: Whole

    def __init__(self, material: Material, *, exit_layer: int = 0, weight: float = 1.0, dropout: float = 0.1) -> None:
        super().__init__()
        if not 0 <= dropout < 1 or weight <= 0:
            raise BadOption("dropout has to be a share below 1, and weight above 0.")
        target = material.target
        self.taps, self._exit = (), exit_of(layered(target), exit_layer)
        self.head = self.whole = Whole(material.model())
        self._depth, self._weight, self._dropout = features.depth_of(target), weight, dropout
        self._output = features.output(target).float()  # the old target's
        self._cap = getattr(self.head.model.config.get_text_config(), "final_logit_softcapping", None)
        self._left_out: set[int] = set()
        self._seen: dict[int, Tensor | None] = {}  # states after so many layers, of those that are wanted
        for index, layer in enumerate(layers_of(self.head.model)):
            layer.register_forward_hook(self._skipping(index))

    @property
    def shape(self) -> dict[str, Any]:
        """See `Recipe`: the model's own config.json says it."""
        return {}

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`; the steps are the last layer, the exit, and the drawn one."""
        chance, exit_ = random.Random(batch.seed), self._exit
        drawn = chance.randrange(1, self._depth)
        span = self._depth - exit_
        rates = {layer: self._dropout * (2 ** ((layer - exit_ + 1) / span) - 1) for layer in range(exit_, self._depth)}
        self._left_out = {layer for layer, rate in rates.items() if chance.random() < rate}
        self._seen = dict.fromkeys((exit_, drawn))
        try:
            last, norm = self.head.states(batch.ids), self.head.model.get_decoder().norm
            states = [last, *(norm(self._seen[layer]) for layer in (exit_, drawn))]
        finally:
            self._left_out, self._seen = set(), {}

        def loss(states: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
            return soft_loss(self._logits(states), target_law(batch.last[counts], self._output))

        found = [collect(iter([part]), batch, 1.0, loss, lead=self.lead) for part in states]
        each, valid, agreed = (torch.cat([getattr(one, name) for one in found]) for name in Losses._fields[:3])
        weights = torch.tensor([1.0, self._weight, self._weight / 4], device=each.device)
        return Losses(each, valid, agreed, weights)

    def _logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head.model.get_output_embeddings()(states)
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def _skipping(self, index: int) -> Callable[[Any, Any, Any], Any]:
        """What a layer gives: its input, where it is left out. It keeps a gradient of zeros, which several processes
        need. What is wanted for the exits is kept."""

        def hook(module: Any, inputs: Any, output: Any) -> Any:
            states = output[0] if isinstance(output, tuple) else output
            if index in self._left_out:
                states = inputs[0] + 0.0 * states
            if index + 1 in self._seen:
                self._seen[index + 1] = states
            return (states, *output[1:]) if isinstance(output, tuple) else states

        return hook

    def settle(self, batches: Iterable[Batch]) -> None:
        """See `Recipe`."""
        self.compare(batches, self._output)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return EarlyExit(layered(target), self._exit)

    def use(self, out: str, target: str) -> tuple[str, str]:
        """See `Recipe`."""
        return out, f"early_exit:{self._exit}"

    def fill(self, work: Path, checkpoint: Checkpoint, card: str, tokenizer: Any) -> None:
        """See `Recipe`: the folder is the new target's."""
        self.save_target(work, tokenizer)
        checkpoints.describe(work, checkpoint.manifest, card)
