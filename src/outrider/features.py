"""What a trained head sees of its target: tapped states, embeddings, the output layer. Training and serving share it.

Taps are numbered as Transformers' `hidden_states`: 0 are the embeddings, k the states after k layers, and the last one
is normed. Knows no heads' insides, no files and no loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .dense import DenseTarget
from .errors import UnsupportedModel
from .heads.base import TargetOutput
from .heads.blocks import BlockShape
from .linear import FastLinear
from .target import Target, TransformersTarget
from .types import Tree

CONVENTION = "hidden_states"
MARK = "outrider_trained"  # in the configuration of a target that `outrider train` has changed: how, and a hash
_PROBES = 64  # embeddings that tell one target from another
_CLOSE = 0.02  # relative: how far the output layer's logits may lie from the target's own
_PART = 64  # unit vectors at a time

Embed = Callable[[Tensor], Tensor]


def built(target: Target) -> DenseTarget | TransformersTarget:
    """A target whose parts can be reached.

    Raises:
        UnsupportedModel: they cannot.
    """
    if isinstance(target, DenseTarget | TransformersTarget):
        return target
    raise UnsupportedModel(
        f"A target of the build {target.build!r} does not show its embedding and its output layer, which trained "
        "drafters need: leave out what makes it so (compile), or choose another drafter."
    )


def depth_of(target: Target) -> int:
    """How many layers it has."""
    return int(built(target).config.num_hidden_layers)


def width_of(target: Target) -> int:
    """D, the width of its states."""
    return int(built(target).config.hidden_size)


def default_taps(depth: int) -> tuple[int, ...]:
    """EAGLE-3's choice: a low, a middle and a high layer; spread evenly where a target has few."""
    chosen = {2, depth // 2, depth - 3}
    return tuple(sorted(chosen if len(chosen) == 3 and min(chosen) >= 0 else {depth // 4, depth // 2, 3 * depth // 4}))


def spread_taps(depth: int, count: int = 5) -> tuple[int, ...]:
    """DFlash's choice: so many layers' outputs, evenly from the second to the last but two; fewer where there are not
    so many layers."""
    first, last = min(2, depth), max(1, depth - 2)
    return tuple(sorted({round(first + place * (last - first) / (count - 1)) for place in range(count)}))


def side_by_side(hidden: Mapping[int, Tensor], taps: Sequence[int]) -> Tensor:
    """[N, D] of each tapped layer -> [N, n * D], in the order of the taps."""
    return torch.cat([hidden[tap] for tap in taps], -1)


def embedding(target: Target) -> Embed:
    """Ids [...] -> what enters the target's first layer, [..., D].

    Raises:
        UnsupportedModel: its embeddings have another width than its states.
    """
    source = built(target)
    if isinstance(source, DenseTarget):
        return source.embed
    table, device = source.model.get_input_embeddings(), source.device

    def embed(ids: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = table(ids.to(device))
        return found

    if embed(torch.zeros(1, dtype=torch.int64)).shape[-1] != width_of(target):
        raise UnsupportedModel(
            f"{type(source.model).__name__} embeds tokens in another width than its states have, which no trained "
            "drafter can use: choose another drafter."
        )
    return embed


def scales_embeddings(config: Any) -> bool:
    """Whether a model of this configuration multiplies its embeddings (Gemma, Granite, MiniCPM), so that what enters
    its first layer is not a row of its table."""
    factors = (getattr(config, name, 1) for name in ("embedding_multiplier", "scale_emb"))
    return str(getattr(config, "model_type", "")).startswith("gemma") or any(
        factor not in (1, None) for factor in factors
    )


@torch.no_grad()
def output(target: Target, ids: Tensor | None = None) -> TargetOutput:
    """The target's output layer for these tokens; for all of them if not given.

    Raises:
        UnsupportedModel: its logits are more than one product of its last states.
    """
    source = built(target)
    cap = getattr(source.config, "final_logit_softcapping", None)
    layer = source.output if isinstance(source, DenseTarget) else source.model.get_output_embeddings()
    weight, bias = _rows(layer, torch.arange(source.vocabulary) if ids is None else ids, width_of(target), source)
    found = TargetOutput(weight, bias, cap).to(source.device)
    factor = _factor(source, found, ids)
    if factor != 1.0:
        found.linear.weight.mul_(factor)
        if bias is not None:
            found.linear.bias.mul_(factor)
    return found


def _rows(
    layer: torch.nn.Module, ids: Tensor, width: int, source: DenseTarget | TransformersTarget
) -> tuple[Tensor, Tensor | None]:
    """Rows of a linear's weight and of its bias; of a packed one by what it makes of unit vectors."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if not isinstance(layer, FastLinear) and isinstance(weight, Tensor) and weight.device.type != "meta":
        where = ids.to(weight.device)
        return weight.detach()[where].clone(), None if bias is None else bias.detach()[where].clone()
    unit = torch.eye(width, dtype=source.dtype, device=source.device)
    nothing = layer(unit.new_zeros(1, width))[0, ids]
    columns = torch.cat([layer(part)[:, ids] - nothing for part in torch.split(unit, _PART)])
    return columns.T.contiguous(), nothing if bool(nothing.any()) else None


def _factor(source: DenseTarget | TransformersTarget, found: TargetOutput, ids: Tensor | None) -> float:
    """By what the target multiplies its logits (Cohere, Granite), found on a few tokens."""
    last = depth_of(source)
    tree = Tree.chain([(7 * step + 1) % source.vocabulary for step in range(4)])
    (scores,) = source.forward([tree], source.new_cache(), taps=(last,))
    theirs = (scores.logits if ids is None else scores.logits[:, ids.to(source.device)]).float()
    ours = found(scores.hidden[last].to(found.linear.weight.dtype)).float()
    factor = float((theirs * ours).sum() / (ours * ours).sum().clamp(min=1e-20))
    if not bool((theirs - factor * ours).norm() <= _CLOSE * theirs.norm()):
        raise UnsupportedModel(
            "The target's logits are more than one product of its last states, which trained drafters need: choose "
            "another drafter."
        )
    return 1.0 if abs(factor - 1) < _CLOSE else factor


def block_shape(target: Target) -> BlockShape:
    """A decoder layer as wide as the target's."""
    config = built(target).config
    width, heads = width_of(target), int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or width // heads)
    grouped = int(getattr(config, "num_key_value_heads", None) or heads)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    return BlockShape(width, heads, grouped if heads % grouped == 0 else heads, size + size % 2, int(inner))


def changed_note(mark: str) -> str:
    """What users should know of a target that bears this `MARK`."""
    return (
        f"the target was changed by 'outrider train {mark.split()[0]}': its outputs are exactly its own with any "
        "drafter, and not those of the model that it was made from."
    )


def fingerprint(target: Target) -> str:
    """A name for these weights that does not depend on how they are computed with.

    Made from a sample of the embeddings, rounded to bfloat16: the same in every precision and build of one model. A
    target that training has changed (`MARK`) says so in its configuration, for its embeddings may be what they were.
    """
    vocabulary = target.vocabulary
    ids = torch.arange(_PROBES) * vocabulary // _PROBES
    sample = embedding(target)(ids).to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()
    sizes = f"{vocabulary} {width_of(target)} {depth_of(target)} ".encode()
    mark = str(getattr(built(target).config, MARK, "")).encode()
    return hashlib.sha256(sizes + sample + mark).hexdigest()[:16]
