"""Encoder-decoder targets (T5, BART, Marian, Whisper) on Transformers' modules.

The encoder runs once per request; what it made, and the keys and values that the decoder's layers read of it, lie in
the cache beside the row's own keys. Everything else is a decoder like any other, so the loop does not know the
difference. Knows nothing of drafters, sampling, text or sound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from . import cross
from .cross import CrossPass
from .errors import UnsupportedModel
from .kv import Encoded, KVCache
from .linear import FastLinear
from .target import eos_ids, share
from .types import UNBOUNDED, Scores, Source, Tree

_PROJECTIONS = (("k_proj", "v_proj"), ("k", "v"))
_CLOSE = 0.05  # relative: how far logits of the trial may lie apart, in half precision too


class EncoderDecoderTarget:
    """A `Target` whose decoder reads an encoder's states.

    Attributes:
        start: what an answer begins behind: the ids that are in the decoder before anything is written.
        source_context: ids that the encoder can place; for audio, frames of features that it reads.
        bins: of the audio features that it reads; 0 for text.
        generation: the model's own generation configuration.
    """

    exactness = "ties"

    def __init__(self, model: Any, *, own: bool = False) -> None:
        """Take a loaded `PreTrainedModel`.

        Args:
            model: stays as it is, unless `own` says that nobody else holds it.
            own: the model may be set up in place.

        Raises:
            UnsupportedModel: it has a part that cannot be served; the message names it.
        """
        _refuse(model)
        self.model = model if own else share(model)
        self.model.eval()
        expected = _trial_logits(self.model)
        try:
            self.model.set_attn_implementation(cross.NAME)
        except ValueError as error:
            raise UnsupportedModel(_no_interface(model)) from error
        self.config, self.generation = self.model.config, self.model.generation_config
        self._encoder, decoder = self.model.get_encoder(), self.model.get_decoder()
        self.vocabulary = int(self.config.vocab_size)
        self.context = int(getattr(decoder, "max_target_positions", None) or UNBOUNDED)
        self.source_context = int(getattr(self._encoder, "max_source_positions", None) or UNBOUNDED)
        self.bins = int(getattr(self.config, "num_mel_bins", 0) or 0)
        if self.bins:
            self.source_context *= self._encoder.conv1.stride[0] * self._encoder.conv2.stride[0]
        self.eos, self.start = eos_ids(self.model), _start(self.model)
        self.device = self.model.get_input_embeddings().weight.device
        self.dtype, self.build = self.model.dtype, "modules"
        self._fingerprint = _fingerprint(self._encoder)
        self._layers = _once_per_source(decoder)
        self._placed = _placed(decoder)
        self._relative = next((m for m in decoder.modules() if getattr(m, "has_relative_attention_bias", False)), None)
        self._refuse_by_trial(expected)

    @property
    def pass_bytes(self) -> int:
        """See `Target`: without the encoder, and without what is read once per source."""
        table = getattr(self.model.get_input_embeddings(), "weight", None)
        head = getattr(self.model.get_output_embeddings(), "weight", None)
        once = {module for apart in (self._encoder, *self._projections()) for module in apart.modules()}
        mine = [module for module in self.model.modules() if module not in once]
        weights = {id(p): p for module in mine for p in module.parameters(recurse=False)}
        plain: int = sum(p.nbytes for p in weights.values() if p is not table or table is head)
        return plain + sum(module.nbytes for module in mine if isinstance(module, FastLinear))

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`. A row that is told no source reads an empty one."""
        cache = KVCache(rows, max(capacity, 1))
        cache.encoded = [self.read(Source(), self._blank())] * rows
        return cache

    def _blank(self, rows: int = 1) -> Tensor:
        return torch.zeros(rows, self.config.d_model, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def encode(self, source: Source) -> Encoded:
        """Run the encoder; for a cache's `encoded`."""
        if source.features is not None:
            features = source.features[None].to(self.device, self.dtype)
            states = self._encoder(features).last_hidden_state
        else:
            states = self._encoder(input_ids=torch.tensor([source.ids], device=self.device)).last_hidden_state
        return self.read(source, states[0])

    @torch.no_grad()
    def read(self, source: Source, states: Tensor) -> Encoded:
        """What the decoder's layers read of an encoder's states [S, D], this one's or those of another."""
        states = states.to(self.device, self.dtype)
        layers = {}
        for layer, (module, key, value) in self._layers.items():
            size = getattr(module, "head_dim", None) or module.key_value_proj_dim
            keys, values = (
                projection.linear(states[None]).unflatten(-1, (-1, size)).transpose(1, 2).contiguous()
                for projection in (key, value)
            )
            layers[layer] = (keys, values)
        return Encoded(source, states, layers)

    def source_bytes(self, source: Source) -> int:
        """Bytes that `encode` will give for a source."""
        states = int(self.config.max_source_positions) if source.features is not None else len(source.ids)
        return states * self.read(Source(), self._blank()).nbytes

    def shares_encoder(self, other: EncoderDecoderTarget) -> bool:
        """Whether the other model's encoder is this one's, weight by weight, as a distilled decoder's is."""
        mine, theirs = self._fingerprint, other._fingerprint
        return mine.keys() == theirs.keys() and all(
            shape == theirs[name][0] and math.isclose(size, theirs[name][1], rel_tol=1e-6)
            for name, (shape, size) in mine.items()
        )

    def take_encoder(self, other: EncoderDecoderTarget) -> None:
        """Use the other model's encoder in the place of this one's, whose weights go."""
        for parent in self.model.modules():
            for name, child in list(parent.named_children()):
                if child is self._encoder:
                    setattr(parent, name, other._encoder)
        self._encoder = other._encoder

    @torch.no_grad()
    def forward(
        self, trees: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        return self._run(self._pass(trees, cache), trees, taps, last_only)

    def _pass(self, trees: Sequence[Tree], cache: KVCache) -> CrossPass:
        return CrossPass(trees, cache, self.device, bias=None if self._relative is None else self._bias)

    def _run(
        self, pass_: CrossPass, trees: Sequence[Tree], taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        # The layers know their sources by the cache; this gives them the number of rows.
        states = self._blank(len(trees))[:, None]
        with self._at(pass_.positions):
            out = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                decoder_input_ids=pass_.tokens().to(self.device),
                use_cache=False,
                output_hidden_states=bool(taps),
                outrider_pass=pass_,
            )
        results = []
        for row, tree in enumerate(trees):
            first = len(tree) - 1 if last_only else 0
            hidden = {layer: out.decoder_hidden_states[layer][row, : len(tree)] for layer in taps}
            results.append(Scores(out.logits[row, first : len(tree)], hidden))
        return results

    @contextmanager
    def _at(self, positions: Tensor) -> Iterator[None]:
        """While a pass runs, the decoder's tokens lie at these positions."""
        if self._placed is None:
            yield
            return
        self._placed.positions = positions
        try:
            yield
        finally:
            self._placed.positions = None

    def _bias(self, distances: Tensor) -> Tensor:
        """T5's: a learned number per head and bucket of distances (Raffel et al., 1910.10683)."""
        module: Any = self._relative
        buckets = module._relative_position_bucket(
            distances,
            bidirectional=False,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
        bias: Tensor = module.relative_attention_bias(buckets).permute(0, 3, 1, 2)
        return bias

    def _projections(self) -> list[_OncePerSource]:
        return [projection for _, key, value in self._layers.values() for projection in (key, value)]

    @torch.no_grad()
    def _refuse_by_trial(self, expected: Tensor) -> None:
        """Refuse a model that gives other logits than before it was set up: in one pass, in two over the cache, and at
        the end of a branch that passes a sibling by."""
        name, ids = type(self.model).__name__, _trial_ids(self.vocabulary)
        caches = [self.new_cache() for _ in range(3)]
        for cache in caches:
            cache.encoded = [self.read(Source(), _trial_states(self.config.d_model))]
        chain = Tree.chain([ids[0], ids[1], ids[3]])
        pass_ = self._pass([chain], caches[0])
        try:
            straight = self._run(pass_, [chain])
            self.forward([Tree.chain(ids[:2])], caches[1])
            caches[1].keep([range(2)])
            continued = self.forward([Tree.chain(ids[3:])], caches[1])
            branched = self.forward([Tree(torch.tensor(ids), torch.tensor([-1, 0, 0, 1]))], caches[2])
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")[:200]
            raise UnsupportedModel(
                f"{name} cannot run on tokens, positions and Outrider's attention alone ({reason}): choose another "
                "target."
            ) from error
        if pass_.windows.keys() != pass_.crossed:
            raise UnsupportedModel(
                f"{name} has decoder layers that keep state of their own, which cannot be rolled back after a rejected "
                "draft: choose another target."
            )
        scale = expected.abs().max().clamp(min=1e-3)
        found = [scores[0].logits[-1].float() for scores in (straight, continued, branched)]
        if not all(bool((logits - expected).abs().max() / scale < _CLOSE) for logits in found):
            raise UnsupportedModel(
                f"{name} places tokens, or reads its encoder, in a way of its own (its logits on a tree differ from "
                "those of the same tokens in a row): choose T5, BART, Marian, Whisper or a decoder-only target."
            )


class _OncePerSource(nn.Module):
    """A cross-attention's projection of the encoder's states. It is applied when a source is read (`linear`); during a
    pass its result would not be looked at, so there it is nothing but of the right shape."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., out]"""
        return states.new_zeros(*states.shape[:-1], self.linear.out_features)


class _Placed(nn.Module):
    """A decoder's position embedding that looks up the positions of the pass under way, [rows, N], whatever it is
    called with: Transformers' decoders count on from the length of their own cache."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.positions: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """[rows, N, D]"""
        assert self.positions is not None
        flat = self.positions.flatten()
        rows: Tensor = self.table(flat[None], position_ids=flat)
        return rows.reshape(*self.positions.shape, -1)


def _once_per_source(decoder: nn.Module) -> dict[int, tuple[Any, _OncePerSource, _OncePerSource]]:
    """Set up a decoder's cross-attention: layer -> the module, its projection of keys, and of values."""
    found = {}
    for module in decoder.modules():
        names = next((pair for pair in _PROJECTIONS if all(hasattr(module, name) for name in pair)), None)
        layer = getattr(module, "layer_idx", None)
        if names is None or not isinstance(layer, int) or getattr(module, "is_causal", True):
            continue
        for name in names:
            setattr(module, name, _OncePerSource(getattr(module, name)))
        found[layer] = (module, getattr(module, names[0]), getattr(module, names[1]))
    return found


def _placed(decoder: Any) -> _Placed | None:
    """Set up a decoder's table of positions, if it has one."""
    table = getattr(decoder, "embed_positions", None)
    if table is None:
        return None
    decoder.embed_positions = _Placed(table)
    placed: _Placed = decoder.embed_positions
    return placed


def _fingerprint(encoder: nn.Module) -> dict[str, tuple[tuple[int, ...], float]]:
    """Shape and length of every weight: enough to tell whether two encoders are the same, and cheap to keep when the
    weights are packed away. A false match would cost acceptance and nothing else."""
    named = encoder.state_dict().items()
    return {n: (tuple(w.shape), float(torch.linalg.vector_norm(w, dtype=torch.float64))) for n, w in named}


def _start(model: Any) -> tuple[int, ...]:
    """The ids that stand in the decoder before anything is written, by Transformers' rule."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        for config in (model.generation_config, model.config):
            found = getattr(config, name, None)
            if isinstance(found, int):
                return (found,)
    raise UnsupportedModel(
        f"{type(model).__name__} does not say which token its decoder starts with: set decoder_start_token_id in its "
        "generation configuration."
    )


def _refuse(model: Any) -> None:
    """Refuse what the configuration and the parts already give away."""
    name = type(model).__name__
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(f"{name} does not predict tokens: load it with AutoModelForSeq2SeqLM.")
    if not model._can_set_attn_implementation():
        raise UnsupportedModel(_no_interface(model))
    if getattr(model.config, "d_model", None) is None:
        raise UnsupportedModel(
            f"{name} is an encoder-decoder model of a kind that is not known: choose T5, BART, Marian, Whisper or a "
            "decoder-only target."
        )


def _no_interface(model: Any) -> str:
    return (
        f"{type(model).__name__} does not use Transformers' attention interface, so its attention cannot see trees: "
        "choose another target."
    )


def _trial_ids(vocabulary: int) -> list[int]:
    return [(7 * step + 1) % vocabulary for step in range(4)]


def _trial_states(width: int) -> Tensor:
    """[5, D] states as an encoder might give them, the same every time."""
    return torch.linspace(-1, 1, 5 * width).cos().view(5, width)


@torch.no_grad()
def _trial_logits(model: Any) -> Tensor:
    """[V] what the model as it came says after three tokens."""
    ids, device = _trial_ids(int(model.config.vocab_size)), model.get_input_embeddings().weight.device
    states = _trial_states(int(model.config.d_model)).to(device, model.dtype)
    out = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states[None]),
        decoder_input_ids=torch.tensor([[ids[0], ids[1], ids[3]]], device=device),
        use_cache=False,
    )
    logits: Tensor = out.logits[0, -1].float()
    return logits
