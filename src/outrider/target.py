"""A model that scores trees: Transformers' own modules behind the loop's attention and cache.

The user's model is never touched: the target works on a copy of its module tree that shares every weight. What the loop
cannot serve (recurrent state, encoders, attention of another kind) is refused here, by name, before any work. Knows
nothing of drafters, sampling or text.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from . import attention
from .errors import UnsupportedModel
from .kv import Encoded, KVCache
from .linear import FastLinear
from .types import UNBOUNDED, Scores, Source, Tree

_SERVED_LAYERS = {"full_attention", "sliding_attention", "attention"}


class Target(Protocol):
    """What the loop asks of a model.

    Attributes:
        vocabulary: width of its logits.
        context: positions it can place.
        eos: ids that end its output.
        device: where its logits come out.
        dtype: of its weights.
        build: what computes: Transformers' modules ("modules"), the same with packed linears ("packed"), or the lean
            decoder ("lean").
        exactness: "bits" where a token's logits do not depend on what else shares its pass, "ties" where they may
            differ by rounding, so that only near ties can flip.
        pass_bytes: bytes of weights that every pass reads.
    """

    vocabulary: int
    context: int
    eos: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    build: str
    exactness: str

    @property
    def pass_bytes(self) -> int:
        """See the class."""
        ...

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """An empty cache for this many rows."""
        ...

    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """Score one tree per row of the cache. Keys and values are written; `cache.keep` decides what stays.

        Args:
            trees: one per row; they may differ in size.
            cache: rows in the same order.
            taps: layers whose hidden states are wanted (Transformers' `hidden_states` numbering).
            last_only: logits of each tree's last node only (prefill).
        """
        ...


@runtime_checkable
class Encoder(Protocol):
    """What the loop asks of a target that reads a source before it writes."""

    def encode(self, source: Source) -> Encoded:
        """What a row's cache is told of its source, once (`KVCache.encoded`)."""
        ...


class TransformersTarget:
    """Any decoder-only model of Transformers whose attention goes through its attention interface."""

    exactness = "ties"

    def __init__(self, model: Any, *, own: bool = False) -> None:
        """Take a loaded `PreTrainedModel`.

        Args:
            model: stays as it is, unless `own` says that nobody else holds it.
            own: the model may be set up in place.

        Raises:
            UnsupportedModel: it has a part that cannot be served; the message names it.
        """
        _refuse_by_config(model)
        self.model = model if own else share(model)
        self.model.eval()
        if not self.model._can_set_attn_implementation():
            raise UnsupportedModel(_no_interface(model))
        try:
            self.model.set_attn_implementation(attention.NAME)
        except ValueError as error:
            raise UnsupportedModel(_no_interface(model)) from error
        self.config = self.model.config.get_text_config()
        self.vocabulary = int(self.config.vocab_size)
        self.context = _context(self.config)
        self.eos = eos_ids(self.model)
        self.device = _entry(self.model)
        self.dtype = self.model.dtype
        self.build = "modules"
        self._takes_logits_to_keep = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self.windows = _refuse_by_trial(self)  # layer -> how far back it sees; None for everything

    @property
    def pass_bytes(self) -> int:
        """See `Target`: all weights, but of an embedding that is not the output's too."""
        table = getattr(self.model.get_input_embeddings(), "weight", None)
        head = getattr(self.model.get_output_embeddings(), "weight", None)
        plain: int = sum(p.nbytes for p in self.model.parameters() if p is not table or table is head)
        return plain + sum(module.nbytes for module in self.model.modules() if isinstance(module, FastLinear))

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`; more room than `capacity` is made as it is needed."""
        return KVCache(rows, max(capacity, 1))

    @torch.no_grad()
    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        return self.run(attention.Pass(trees, cache, self.device), trees, taps, last_only)

    def run(
        self, pass_: attention.Pass, trees: Sequence[Tree], taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """`forward` over a pass that the caller can look at afterwards."""
        options: dict[str, Any] = {}
        if last_only and len(trees) == 1 and self._takes_logits_to_keep:
            options["logits_to_keep"] = 1
        out = self.model(
            input_ids=pass_.tokens().to(self.device),
            position_ids=pass_.positions,
            use_cache=False,
            output_hidden_states=bool(taps),
            outrider_pass=pass_,
            **options,
        )
        results = []
        for row, tree in enumerate(trees):
            logits = out.logits[row, : len(tree)]
            hidden = {layer: out.hidden_states[layer][row, : len(tree)] for layer in taps}
            results.append(Scores(logits[-1:] if last_only else logits, hidden))
        return results


def prefill(
    target: Target, tokens: Sequence[int], cache: KVCache, *, taps: tuple[int, ...] = (), chunk: int = 512
) -> dict[int, Tensor]:
    """Commit tokens to a cache of one row, `chunk` at a time so that memory stays bounded.

    Returns:
        layer -> [len(tokens), D], the hidden states of the tapped layers.
    """
    states: dict[int, list[Tensor]] = {layer: [] for layer in taps}
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        (scores,) = target.forward([Tree.chain(part)], cache, taps=taps, last_only=True)
        cache.keep([range(len(part))])
        for layer, hidden in scores.hidden.items():
            states[layer].append(hidden)
    return {layer: torch.cat(parts) for layer, parts in states.items() if parts}


def token_bytes(target: Target) -> int:
    """Bytes of keys and values that a token takes in a cache; tried, for models differ."""
    cache = target.new_cache()
    target.forward([Tree.chain([0])], cache, last_only=True)
    return cache.nbytes // cache.capacity


def _entry(model: Any) -> torch.device:
    """Where ids go in; an offloaded embedding lies nowhere until it is used, and its hook knows where that will be."""
    table = model.get_input_embeddings()
    if table.weight.device.type == "meta":
        return torch.device(table._hf_hook.execution_device)
    device: torch.device = table.weight.device
    return device


def share(model: Any) -> Any:
    """A copy of a model's modules and configuration that shares its parameters and buffers."""
    tensors: dict[int, Any] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, tensors)


def eos_ids(model: Any) -> tuple[int, ...]:
    """The ids that end a model's output: those of its generation configuration, or else of its configuration."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return tuple(found) if isinstance(found, list | tuple) else (int(found),)
    return ()


def _context(config: Any) -> int:
    """How many positions a model can place, each by one rule.

    "longrope" turns all positions by other angles once a text outgrows the original context: keys in the cache would
    no longer fit, and drafts or other rows of a batch could switch the angles early. So the original context is all.
    """
    limits = [getattr(config, "max_position_embeddings", None) or UNBOUNDED]
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings") or UNBOUNDED)
    return int(min(limits))


def _no_interface(model: Any) -> str:
    return (
        f"{type(model).__name__} does not use Transformers' attention interface, so its attention cannot see trees: "
        "choose another target."
    )


def _refuse_by_config(model: Any) -> None:
    """Refuse what the configuration already gives away."""
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder model: it is an `EncoderDecoderTarget` that serves it.")
    text = config.get_text_config()
    kinds = list(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or [])
    foreign = sorted({kind for kind in kinds if kind not in _SERVED_LAYERS})
    if foreign:
        raise UnsupportedModel(
            f"{name} has layers of the kind {foreign[0]!r}, whose state cannot be rolled back after a rejected draft: "
            "choose a target with attention layers only."
        )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(
            f"{name} has recurrent layers ({text.model_type}), whose state cannot be rolled back after a rejected "
            "draft: choose a target with attention layers only."
        )
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(f"{name} does not predict tokens: load it with AutoModelForCausalLM.")


@torch.no_grad()
def _refuse_by_trial(target: TransformersTarget) -> dict[int, int | None]:
    """Refuse a model that does not do with a tree what it does with the same tokens in a row; its windows otherwise.

    Node 3 of the trial tree follows node 1 past its sibling 2. If positions, masks or cache were ignored, its logits
    would differ from those of the plain sequence.
    """
    name = type(target.model).__name__
    ids = [(7 * step + 1) % target.vocabulary for step in range(4)]
    chain_, tree = Tree.chain([ids[0], ids[1], ids[3]]), Tree(torch.tensor(ids), torch.tensor([-1, 0, 0, 1]))
    pass_ = attention.Pass([chain_], target.new_cache(), target.device)
    try:
        straight = target.run(pass_, [chain_])[0].logits[-1].float()
        branched = target.forward([tree], target.new_cache())[0].logits[-1].float()
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")[:200]
        raise UnsupportedModel(
            f"{name} cannot run on tokens, positions and Outrider's attention alone ({reason}): choose another target."
        ) from error
    layers = int(target.config.num_hidden_layers)
    if len(pass_.windows) != layers:
        raise UnsupportedModel(
            f"{name} sends {len(pass_.windows)} of its {layers} layers through Transformers' attention interface; the "
            "others keep state of their own that cannot be rolled back: choose a target with attention layers only."
        )
    for layer, kind in enumerate(getattr(target.config, "layer_types", None) or []):
        if kind == "sliding_attention" and pass_.windows[layer] is None:
            raise UnsupportedModel(
                f"{name} does not say how wide the window of layer {layer} is: choose another target."
            )
    window = getattr(target.config, "sliding_window", None)
    if window and not getattr(target.config, "layer_types", None) and not any(pass_.windows.values()):
        raise UnsupportedModel(
            f"{name} has a window of {window} tokens but does not tell its attention about it: choose another target."
        )
    scale = straight.abs().max().clamp(min=1e-3)
    if not bool(((straight - branched).abs().max() / scale) < 0.05):
        raise UnsupportedModel(
            f"{name} does not place tokens by the positions it is given (its logits on a tree differ from those of the "
            "same tokens in a row): choose another target."
        )
    return pass_.windows
