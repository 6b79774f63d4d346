"""A language model of Transformers that is trained as drafters are: as a whole, or by low-rank changes to its linears.

Dropout stays off, so that a step follows from its batch. Knows no files and no losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from .base import DraftHead


class Whole(DraftHead):
    """A model, of which those parameters are its own that take a gradient.

    Args:
        model: a causal language model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval()

    def trained(self) -> dict[str, Tensor]:
        """See `DraftHead`."""
        return {name: parameter.detach() for name, parameter in self.named_parameters() if parameter.requires_grad}

    def train(self, mode: bool = True) -> Whole:
        """Dropout is never on."""
        return super().train(False)

    def states(self, ids: Tensor) -> Tensor:
        """[B, N, D] last states, normed, at [B, N] tokens; the ends of short texts are padded."""
        found: Tensor = self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def logits(self, ids: Tensor) -> Tensor:
        """[B, N, V] at [B, N] tokens; the ends of short texts are padded."""
        found: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return found

    def plain(self) -> dict[str, Tensor]:
        """The model's weights under their usual names, low-rank changes added in."""
        found = {}
        for name, tensor in self.model.state_dict().items():
            owner, _, rest = name.partition(".parametrizations.weight.")
            if not rest:
                found[name] = tensor
            elif rest == "original":
                found[f"{owner}.weight"] = self.model.get_submodule(owner).weight.detach()
        return found


class LowRank(nn.Module):
    """A low-rank change to a weight (LoRA, Hu et al., 2106.09685). It begins as none.

    Args:
        weight: [a, b], which stays.
        rank: of the change.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """[a, b] -> [a, b]"""
        return weight + self.up @ self.down


def loosen(model: Any, rank: int) -> None:
    """Freeze a model, and let the matrices of its decoder layers change by this rank."""
    model.requires_grad_(False)
    for layer in layers_of(model):
        for module in list(layer.modules()):
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.dim() == 2 and not is_parametrized(module):
                register_parametrization(module, "weight", LowRank(weight, rank))


def layers_of(model: Any) -> nn.ModuleList:
    """A model's decoder layers.

    Raises:
        ValueError: they are no list.
    """
    return model.get_submodule(layers_name(model))  # type: ignore[no-any-return]


def layers_name(model: Any) -> str:
    """Where in the model its decoder layers are.

    Raises:
        ValueError: they are no list.
    """
    depth = int(model.config.get_text_config().num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return str(name)
    raise ValueError("its decoder layers are no list")
