"""An independent draft model with the target's vocabulary (Leviathan et al., 2211.17192).

Its cache lives across rounds and catches up by length: each draft begins by feeding whatever it lacks, so full
acceptance, rejection, a fresh prompt and a draft that nobody took are one case. Of a tree nothing stays in the cache.
The model may live on another device; only ids and, for rules that need them, probabilities cross over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..encoder_decoder import EncoderDecoderTarget
from ..errors import BadOption, VocabularyMismatch
from ..kv import Encoded, KVCache, Seat, gather
from ..sampling import History, Law, Sampling
from ..target import Target, prefill, token_bytes
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting
from .growth import Feed, Growth, Start, sprout

_ENOUGH = 0.9  # share of the smaller vocabulary that has to mean the same tokens


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seat: Seat
    fed: list[int] = field(default_factory=list)  # what the cache holds, drafts included
    sure: int = 0  # how many of those are known to agree with `tokens`
    heard: Encoded | None = None  # what the target's encoder made, until the draft model knows of it
    began: bool = False  # whether all of the text has been read once, so that the row may join others

    def roll_back(self) -> None:
        """Keep of the cache what agrees with the committed text, the pending token apart."""
        limit = min(len(self.fed), len(self.tokens) - 1)
        agreed = min(self.sure, limit)
        while agreed < limit and self.fed[agreed] == self.tokens[agreed]:
            agreed += 1
        del self.fed[agreed:]
        self.seat.cache.crop(self.seat.row, agreed)
        self.sure = agreed


@dataclass(frozen=True, slots=True)
class _Active:
    """A row that is being drafted for."""

    state: _State
    growth: Growth
    sampling: Sampling


class ModelDrafter(Drafter):
    """Drafts with a smaller model of the same vocabulary: chains, or trees where the budget has more nodes than depth.

    Args:
        model: the draft model.
        vocabulary: width of the target's logits.
        shared: [width of the draft model's logits] bool, ids that mean the target's token; None if all do.
        spec: its name in reports.
        encoder: the target, where it is an encoder-decoder model; the draft model then has to be one too.

    Raises:
        BadOption: the two do not read the same thing.
    """

    has_law = True
    makes_trees = True
    reads = for_encoders = True

    def __init__(
        self,
        model: Target,
        vocabulary: int,
        shared: Tensor | None = None,
        spec: str = "model",
        encoder: EncoderDecoderTarget | None = None,
    ) -> None:
        self._model, self._vocabulary, self.spec = model, vocabulary, spec
        self._shares = self._listens_to(encoder)
        self.reads = encoder is None  # what a decoder has to read before it drafts is a few tokens
        self._banned = None if shared is None else ~shared.to(model.device)

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> ModelDrafter:
        """`model:SPEC`, where SPEC names a model as `--target` does.

        Raises:
            BadOption: no model is named.
            VocabularyMismatch: its ids mean other tokens, or nobody can tell.
        """
        if not argument:
            raise BadOption("The drafter 'model' needs a draft model: write model:FOLDER, model:FILE.gguf or model:ID.")
        model, tokenizer = setting.load_model(argument)
        shared = None
        if tokenizer is not None and setting.tokenizer is not None:
            shared = shared_ids(setting.tokenizer.get_vocab(), tokenizer.get_vocab(), model.vocabulary)
        elif model.vocabulary != setting.target.vocabulary:
            raise VocabularyMismatch(
                f"The draft model has {model.vocabulary} tokens, the target {setting.target.vocabulary}, and there are "
                "no tokenizers to compare: give both tokenizers, or a draft model of the target's family."
            )
        encoder = setting.target if isinstance(setting.target, EncoderDecoderTarget) else None
        return cls(model, setting.target.vocabulary, shared, f"model:{argument}", encoder)

    def _listens_to(self, target: EncoderDecoderTarget | None) -> bool:
        """Whether the draft model's decoder reads the target's encoder states: it does where both have the same
        encoder, which then runs once for the two (Gandhi et al., Distil-Whisper, 2311.00430)."""
        model = self._model
        if (target is None) != (not isinstance(model, EncoderDecoderTarget)):
            raise BadOption(
                "A target with an encoder takes a draft model with an encoder, and one without takes one without: the "
                "other kind never sees the prompt. Choose a draft model of the target's family."
            )
        if target is None or not isinstance(model, EncoderDecoderTarget):
            return False
        if model is not target and model.shares_encoder(target):
            model.take_encoder(target)
            self.note = "The draft model reads the target's encoder states."
            return True
        if model.bins != target.bins:
            raise BadOption(
                f"The draft model reads {model.bins} bins of audio and the target {target.bins}: choose a draft model "
                "with the target's audio features, or with its encoder."
            )
        return model is target

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; the draft model reads the prompt when it is first asked for a draft, and only then."""
        return _State(list(prompt), len(prompt), Seat(self._model.new_cache(1, len(prompt) + 64)))

    def seated(self, state: _State, seat: Seat) -> None:
        """See `Drafter`."""
        if isinstance(self._model, EncoderDecoderTarget):
            state.heard = seat.encoded

    @property
    def token_bytes(self) -> int:
        """See `Drafter`."""
        return token_bytes(self._model)

    def room(self, state: _State) -> int:
        """See `Drafter`: the last drafted token needs a position too, for it may ride along in another row's pass."""
        return max(0, self._model.context - len(state.tokens))

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; one pass of the draft model per level for all rows together."""
        read = [
            self._read(state, budget.reading) if budget.depth > 0 else 0
            for state, budget in zip(states, budgets, strict=True)
        ]
        growths = [
            sprout(Start(state.tokens[-1], len(state.tokens), budget, noise, self._model.eos), sampling)
            if budget.depth > 0 and state.began
            else None
            for state, budget, sampling, noise in zip(states, budgets, samplings, noises, strict=True)
        ]
        active = [
            _Active(state, growth, sampling)
            for state, growth, sampling in zip(states, growths, samplings, strict=True)
            if growth is not None
        ]
        if active:
            cache = gather([row.state.seat for row in active])
            self._catch_up(active, cache)
            while any(feeds := [row.growth.feed() for row in active]):
                self._feed(active, feeds, cache)
        drafts = [
            growth.draft() if growth else Draft(Tree.chain(state.tokens[-1:]))
            for state, growth in zip(states, growths, strict=True)
        ]
        return [replace(draft, read=count) if count else draft for draft, count in zip(drafts, read, strict=True)]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`; what the cache holds beyond the committed text is dropped when the next draft begins."""
        self.replace(state, len(state.tokens), tokens)

    def replace(self, state: _State, start: int, tokens: Sequence[int]) -> None:
        """Commit these tokens in the place of those from `start` on, for drafters that read their text anew."""
        state.tokens[start:] = tokens
        state.sure = min(state.sure, start)

    def end(self, state: _State) -> None:
        """See `Drafter`: the cache goes, which may be one that other rows have left long ago."""
        del state.seat

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The tokens with ids that the draft model lacks replaced by its last one: a worse draft, no wrong output."""
        return [min(token, self._model.vocabulary - 1) for token in tokens]

    def _listen(self, state: _State, heard: Encoded) -> None:
        """Tell the draft model's cache of the source, once."""
        model = self._model
        assert isinstance(model, EncoderDecoderTarget)
        known = model.read(heard.source, heard.states) if self._shares else model.encode(heard.source)
        state.seat.cache.encoded[state.seat.row], state.heard = known, None

    def _read(self, state: _State, most: int) -> int:
        """Run a new text but for its pending token, before its row joins others; how many tokens of it were run."""
        if state.began or not most:
            return 0
        if state.heard is not None:
            self._listen(state, state.heard)
        state.roll_back()
        start, end = len(state.fed), len(state.tokens) - 1
        part = state.tokens[start : min(end, start + most)]
        prefill(self._model, self._known(part), state.seat.cache)
        state.fed += part
        state.sure = len(state.fed)
        state.began = state.sure == end
        return len(part)

    def _catch_up(self, active: Sequence[_Active], cache: KVCache) -> None:
        """Drop what is no longer the text, feed what is missing of it, and let each draft grow by its first level."""
        for row in active:
            row.state.roll_back()
        missing = [row.state.tokens[len(row.state.fed) :] for row in active]
        scores = self._model.forward([Tree.chain(self._known(part)) for part in missing], cache, last_only=True)
        # A tree is read with the pending token as its root, time and again, so that one stays out of the cache.
        kept = [len(part) - (not row.growth.linear) for row, part in zip(active, missing, strict=True)]
        cache.keep([range(count) for count in kept])
        for row, part, count, score in zip(active, missing, kept, scores, strict=True):
            row.state.fed.extend(part[:count])
            pending = Tree.chain(row.state.tokens[-1:])
            row.growth.take(self._law(score, Feed(pending, [0], []), row))

    def _feed(self, active: Sequence[_Active], feeds: Sequence[Feed | None], cache: KVCache) -> None:
        """Let each draft grow by a level; rows that are done ride along and keep nothing."""
        passed = [
            feed.tree if feed else Tree.chain(row.state.tokens[-1:]) for row, feed in zip(active, feeds, strict=True)
        ]
        known = [Tree(torch.tensor(self._known(tree.tokens.tolist())), tree.parents) for tree in passed]
        scores = self._model.forward(known, cache)
        cache.keep([(0,) if feed and row.growth.linear else () for row, feed in zip(active, feeds, strict=True)])
        for row, feed, score in zip(active, feeds, scores, strict=True):
            if feed is None:
                continue
            if row.growth.linear:
                row.state.fed.extend(feed.behind[-1:])
            row.growth.take(self._law(score, feed, row))

    def _law(self, scores: Scores, feed: Feed, row: _Active) -> Law:
        """The drafter's law at the nodes that are wanted, over the target's vocabulary."""
        logits = scores.logits
        if self._banned is not None:
            logits = logits.masked_fill(self._banned, -math.inf)
        width = logits.shape[-1]
        if width < self._vocabulary:
            logits = torch.nn.functional.pad(logits, (0, self._vocabulary - width), value=-math.inf)
        text = row.state.tokens
        history = [*text, *feed.behind] if row.sampling.edits_logits else text  # only then is it looked at
        past = History(history, row.state.prompt_length)
        return row.sampling.for_draft().law(logits[:, : self._vocabulary], feed.tree, past, feed.nodes)


def shared_ids(target: Mapping[str, int], drafter: Mapping[str, int], width: int) -> Tensor | None:
    """Which ids of the drafter mean the token that they mean to the target, decided on the maps themselves.

    Args:
        target, drafter: token -> id of both tokenizers.
        width: of the drafter's logits, padding included.

    Returns:
        [width] bool, or None if every id of the drafter is shared.

    Raises:
        VocabularyMismatch: less than nine tenths of the smaller vocabulary are shared.
    """
    common = [index for token, index in drafter.items() if index < width and target.get(token) == index]
    share = len(common) / max(1, min(len(target), len(drafter)))
    if share < _ENOUGH:
        raise VocabularyMismatch(
            f"The draft model shares {share:.0%} of its token ids with the target, so its drafts would be other words: "
            "choose a draft model of the target's family, or draft across tokenizers with translated:MODEL."
        )
    if len(common) == width:
        return None
    mask = torch.zeros(width, dtype=torch.bool)
    mask[common] = True
    return mask
