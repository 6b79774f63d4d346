"""What a head begins from, besides small random values: the target's state as it is, the target's last layers too, or a
head that was trained before.

Where a head joins its inputs in a linear, the state that reaches furthest into the target passes through it from the
first step on, as in Medusa's heads, which begin as the identity. Knows no methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import features
from ..dense import DenseTarget
from ..drafters.trained import Opened
from ..errors import BadOption
from ..heads.whole import layers_of
from ..linear import FastLinear, read_back
from ..target import Target, TransformersTarget
from .recipe import Recipe

STARTS = ("small", "state", "layers")
_SETTLED = {"ranks"}  # of a shape, what `Recipe.settle` finds out


def begin(how: str, joining: nn.Linear, layers: Sequence[nn.Module], target: Target) -> None:
    """Let a head begin.

    Args:
        how: "small" leaves it as it is made, "state" lets the last of the states that come in pass its first linear,
            "layers" also copies the target's last decoder layers into its own, the last as the last.
        joining: that linear, [D, n * D]; the last D inputs are that state.
        layers: its decoder layers.
        target: whose layers are read.

    Raises:
        BadOption: there is no such way, or the target's layers do not fit.
    """
    if how not in STARTS:
        raise BadOption(f"start is {how!r}: choose one of {', '.join(STARTS)}.")
    if how == "layers":
        from_target(layers, target)
    if how != "small":
        width = joining.out_features
        with torch.no_grad():
            joining.weight[:, -width:] += torch.eye(width, device=joining.weight.device)


def go_on(recipe: Recipe, opened: Opened) -> None:
    """Let a recipe's head go on from one that was trained before.

    Raises:
        BadOption: that one has another shape, or reads other layers of the target.
        ModelNotFound: its weights do not fit its config.
    """
    shape = recipe.head.shape
    theirs = {**asdict(opened.shape(type(shape))), "taps": opened.checkpoint.manifest.taps}  # type: ignore[call-overload]
    ours = {**recipe.shape, "taps": recipe.taps}
    changed = [name for name, value in ours.items() if theirs[name] != value and name not in _SETTLED]
    other = [name for name in changed if name not in recipe.resizes]
    if other:
        raise BadOption(
            f"The drafter in {opened.folder} has another {other[0]} ({theirs[other[0]]}, not {ours[other[0]]}): train "
            "with the options that it was made with, or without --start-from."
        )
    if changed:
        kept = {name: opened.checkpoint.tensors.get(name, own) for name, own in recipe.head.trained().items()}
        opened = replace(opened, checkpoint=replace(opened.checkpoint, tensors=kept))
    opened.fill(recipe.head)


def from_target(layers: Sequence[nn.Module], target: Target) -> None:
    """Copy the target's last layers into a head's. An attention that takes embedding and state side by side reads both
    as the target's reads its state; biases are left out where the head has none.

    Raises:
        BadOption: they are no layers of Llama's kind, or of other sizes.
    """
    source, first = features.built(target), features.depth_of(target) - len(layers)
    act = getattr(source.config, "hidden_act", None) or getattr(source.config, "hidden_activation", None)
    if act != "silu":
        raise _misfit(f"their activation is {act}, not silu")
    if first < 0:
        raise _misfit(f"there are {first + len(layers)}, and the head has {len(layers)}")
    for place, layer in enumerate(layers):
        _copy(_weights(source, first + place), layer)


def _weights(source: DenseTarget | TransformersTarget, index: int) -> dict[str, Tensor]:
    """A decoder layer's own weights by name."""
    if isinstance(source, DenseTarget):
        return source.weights(index)
    try:
        layer = layers_of(source.model)[index]
    except ValueError as error:
        raise _misfit(str(error)) from error
    found: dict[str, Tensor] = {}
    like = torch.empty(0, dtype=source.dtype, device=source.device)
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear | FastLinear):
            weight, bias = read_back(module, module.in_features, like)
            found |= {f"{name}.weight": weight} if bias is None else {f"{name}.weight": weight, f"{name}.bias": bias}
        else:
            found |= {f"{name}.{part}": own.detach() for part, own in module.named_parameters(recurse=False)}
    return found


def _copy(found: dict[str, Tensor], layer: nn.Module) -> None:
    """Fill a head's layer. What it has and the target's has not (norms of queries and keys) stays as it is made, and so
    does EAGLE-3's norm of the embedding."""
    own = dict(layer.named_parameters())
    optional = {name for name in found if name.endswith("_proj.bias")} | {"input_layernorm.weight"}
    strange = found.keys() - own.keys() - optional
    lacking = {name for name in own if name.endswith("_proj.weight")} - found.keys()
    if strange or lacking:
        raise _misfit(f"theirs {'have' if strange else 'lack'} a {min(strange or lacking)}")
    names = {name: name for name in own.keys() & found.keys()}
    if "hidden_norm.weight" in own:
        del names["input_layernorm.weight"]
        names["hidden_norm.weight"] = "input_layernorm.weight"
    for name, theirs in names.items():
        parameter, weight = own[name], found[theirs]
        if parameter.dim() == 2 and parameter.shape[1] == 2 * weight.shape[1]:
            weight = torch.cat([weight, weight], 1)
        if parameter.shape != weight.shape:
            raise _misfit(f"their {theirs} is {list(found[theirs].shape)}, the head's {list(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(weight)


def _misfit(why: Any) -> BadOption:
    return BadOption(f'The target\'s layers cannot be what a head begins from ({why}): leave out start = "layers".')
