"""A target taken apart: its embedding, its first layers, the rest of them, its output head.

Drafters that are part of the target need this: early exit runs the first layers for its drafts, and the target's pass
goes on from there, on the same keys. The lean decoder can do it by itself; Transformers' modules can where a decoder is
a plain list of layers, which is tried before it is believed. Knows no drafters.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from . import attention
from .errors import UnsupportedModel
from .kv import KVCache
from .target import Target, TransformersTarget
from .types import Draft, Scores, Tree

_CLOSE = 1e-3  # relative: how far logits may lie from the model's own


@runtime_checkable
class Layered(Protocol):
    """A target whose layers can be run in two parts.

    Attributes:
        config: the configuration of its text part.
        eos: ids that end its output.
        depth: how many layers it has.
    """

    config: Any
    eos: tuple[int, ...]

    @property
    def depth(self) -> int:
        """See the class."""
        ...

    def check(self, layers: int) -> None:
        """That it can be parted after so many layers.

        Raises:
            UnsupportedModel: it cannot; the message says why.
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] int64 -> [..., D], what enters the first layer."""
        ...

    def head(self, states: Tensor) -> Tensor:
        """[N, D] normed states -> [N, V] logits, as the target itself makes them."""
        ...

    def normed(self, states: Tensor) -> Tensor:
        """[N, D] states between two layers -> [N, D], through the final norm."""
        ...

    def exit(self, states: Tensor) -> Tensor:
        """[N, D] states between two layers -> [N, V] logits, through the final norm and the head."""
        ...

    def lower(self, trees: Sequence[Tree], cache: KVCache, layers: int) -> list[Tensor]:
        """Run the first layers on these trees; keys and values are written, `cache.keep` decides what stays.

        Returns:
            For each row [N, D], the states that enter the next layer.
        """
        ...

    def upper(
        self, trees: Sequence[Tree], cache: KVCache, states: Sequence[Tensor], layers: int, taps: tuple[int, ...] = ()
    ) -> list[Scores]:
        """The rest of the pass that `lower` began: what `Target.forward` gives.

        Args:
            trees, cache: see `Target.forward`; the lower layers' keys lie in the cache already.
            states: what `lower` gave for these nodes, whether at once or one after another.
            layers: how many have been run.
            taps: layers whose states are wanted, none of them under `layers`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A pass of the target that a drafter has begun, for one row.

    Attributes:
        target: whose layers were run.
        layers: how many.
        states: [N, D], what `Layered.lower` gave for the N nodes of the draft.
    """

    target: Layered
    layers: int
    states: Tensor


def verification(target: Target, drafts: Sequence[Draft], cache: KVCache, taps: tuple[int, ...]) -> list[Scores]:
    """The target's pass over drafts; of its upper layers only, where a drafter has run the lower ones on every row.

    Where some rows come without, the whole batch is run from the start, which gives the same.
    """
    trees = [draft.tree for draft in drafts]
    started = [draft.started for draft in drafts if isinstance(draft.started, Started)]
    if len(started) < len(drafts) or len({(id(part.target), part.layers) for part in started}) > 1:
        return target.forward(trees, cache, taps=taps)
    begun = started[0]
    if any(tap < begun.layers for tap in taps):
        return target.forward(trees, cache, taps=taps)
    return begun.target.upper(trees, cache, [part.states for part in started], begun.layers, taps)


def layered(target: Target) -> Layered:
    """A target's layers.

    Raises:
        UnsupportedModel: they cannot be run one by one.
    """
    if isinstance(target, Layered):
        return target
    if isinstance(target, TransformersTarget):
        return ModuleLayers(target)
    raise UnsupportedModel(
        f"A target of the build {target.build!r} cannot be taken apart into layers: leave out what makes it so "
        "(compile), or choose another drafter."
    )


class ModuleLayers:
    """The layers of a model that runs on Transformers' modules: a list of them, one after another.

    Args:
        target: its decoder has `embed_tokens`, `layers`, `norm` and `rotary_emb`.

    Raises:
        UnsupportedModel: its decoder has other parts, or its head is more than one product.
    """

    def __init__(self, target: TransformersTarget) -> None:
        self._target, self._name = target, type(target.model).__name__
        self.config, self.eos = target.config, target.eos
        decoder = target.model.get_decoder()
        if any(getattr(decoder, part, None) is None for part in ("embed_tokens", "layers", "norm", "rotary_emb")):
            raise UnsupportedModel(self._refusal("its decoder is no plain list of layers"))
        self._decoder, self._output = decoder, target.model.get_output_embeddings()
        self._per_kind = "layer_type" in inspect.signature(decoder.rotary_emb.forward).parameters
        self._kinds = getattr(target.config, "layer_types", None) or ["full_attention"] * self.depth
        self._cap = getattr(target.config, "final_logit_softcapping", None)
        scores = self._trial_scores()
        if not _close(self.head(scores.hidden[self.depth]), scores.logits):
            raise UnsupportedModel(self._refusal("its logits are more than one product of its last states"))

    @property
    def depth(self) -> int:
        """See `Layered`."""
        return int(self._target.config.num_hidden_layers)

    def check(self, layers: int) -> None:
        """See `Layered`: run in two parts, a few tokens have to get the model's own logits."""
        tree, cache = self._trial(), self._target.new_cache()
        try:
            (scores,) = self.upper([tree], cache, self.lower([tree], cache, layers), layers)
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
            raise UnsupportedModel(self._refusal("its layers cannot be called one by one")) from error
        if not _close(scores.logits, self._trial_scores().logits):
            raise UnsupportedModel(self._refusal("its layers called one by one give other logits"))

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """See `Layered`."""
        embedded: Tensor = self._decoder.embed_tokens(tokens.to(self._target.device))
        return embedded

    @torch.no_grad()
    def head(self, states: Tensor) -> Tensor:
        """See `Layered`."""
        logits: Tensor = self._output(states)
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    @torch.no_grad()
    def normed(self, states: Tensor) -> Tensor:
        """See `Layered`."""
        found: Tensor = self._decoder.norm(states)
        return found

    def exit(self, states: Tensor) -> Tensor:
        """See `Layered`."""
        return self.head(self.normed(states))

    @torch.no_grad()
    def lower(self, trees: Sequence[Tree], cache: KVCache, layers: int) -> list[Tensor]:
        """See `Layered`."""
        pass_ = attention.Pass(trees, cache, self._target.device)
        hidden, _ = self._run(self.embed(pass_.tokens()), pass_, range(layers), ())
        return [hidden[row, : len(tree)] for row, tree in enumerate(trees)]

    @torch.no_grad()
    def upper(
        self, trees: Sequence[Tree], cache: KVCache, states: Sequence[Tensor], layers: int, taps: tuple[int, ...] = ()
    ) -> list[Scores]:
        """See `Layered`."""
        pass_ = attention.Pass(trees, cache, self._target.device)
        hidden = pad_sequence(list(states), batch_first=True)
        hidden, tapped = self._run(hidden, pass_, range(layers, self.depth), taps)
        hidden = self._decoder.norm(hidden)
        if self.depth in taps:
            tapped[self.depth] = hidden
        logits = self.head(hidden)
        return [
            Scores(logits[row, : len(tree)], {tap: states[row, : len(tree)] for tap, states in tapped.items()})
            for row, tree in enumerate(trees)
        ]

    def _run(
        self, hidden: Tensor, pass_: attention.Pass, which: range, taps: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """These layers on [rows, width, D]; the states after them, and those before the tapped ones."""
        turns = {kind: self._turns(hidden, pass_.positions, kind) for kind in {self._kinds[index] for index in which}}
        tapped: dict[int, Tensor] = {}
        for index in which:
            if index in taps:
                tapped[index] = hidden
            hidden = self._decoder.layers[index](
                hidden,
                attention_mask=None,
                position_ids=pass_.positions,
                position_embeddings=turns[self._kinds[index]],
                use_cache=False,
                outrider_pass=pass_,
            )
        return hidden, tapped

    def _turns(self, like: Tensor, positions: Tensor, kind: str) -> Any:
        return self._decoder.rotary_emb(like, positions, *((kind,) if self._per_kind else ()))

    def _trial(self) -> Tree:
        return Tree.chain([(7 * step + 1) % self._target.vocabulary for step in range(4)])

    def _trial_scores(self) -> Scores:
        return self._target.forward([self._trial()], self._target.new_cache(), taps=(self.depth,))[0]

    def _refusal(self, why: str) -> str:
        return f"{self._name} cannot be taken apart into layers ({why}): choose another drafter."


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two sets of logits are the same within rounding."""
    scale = other.float().abs().max().clamp(min=1e-3)
    allowed = max(_CLOSE, 8 * torch.finfo(other.dtype).eps)
    return one.shape == other.shape and bool((one.float() - other.float()).abs().max() / scale < allowed)
