"""Drafting with a head that goes on from its own states: EAGLE's kind, chains and trees, whichever head.

The cache holds entries of target states only, of all slots but the newest. Each round begins by feeding the slots that
it lacks with the target's states, the newest among them, which gives the first draft token; what is drafted beyond is
dropped when the draft is done. So acceptance, rejection, a draft that nobody took and a second draft in the place of
the first are one case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .. import attention
from ..features import side_by_side
from ..heads.blocks import BlockShape, kept_values, turns_at
from ..heads.recurrent import RecurrentHead
from ..kv import KVCache, Seat, gather
from ..native import Layer, Nodes
from ..sampling import History, Law, Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .growth import Feed, Growth, Start, sprout
from .trained import Trained

_READ = 256  # newest prompt tokens whose states are read: what lies before them hardly helps, and reading costs


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seat: Seat
    waiting: Tensor  # [m, D] fused states of the slots that are not in the cache; one at least, once there is a slot
    skipped: int  # slots of the prompt before those that are read
    unread: list[Mapping[int, Tensor]] = field(default_factory=list)  # the target's states behind those, as they came

    @property
    def starts(self) -> bool:
        """Whether there is a state to begin with."""
        return bool(self.unread) or len(self.waiting) > 0


@dataclass(slots=True)
class _Active:
    """A row that is being drafted for."""

    state: _State
    growth: Growth
    sampling: Sampling
    outputs: list[Tensor] = field(default_factory=list)  # by node of the tree that is fed; of a chain the newest


class Recurrent(Trained):
    """Drafts with a `RecurrentHead`: chains, or trees where the budget has more nodes than depth (EAGLE-2)."""

    makes_trees = True
    head: RecurrentHead

    @property
    def token_bytes(self) -> int:
        """See `Drafter`; a token's states wait while nothing is drafted, and then its keys take their place."""
        return max(kept_values(self.head) * self._dtype.itemsize, len(self.taps) * self._parts.state_bytes)

    @torch.no_grad()
    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; runs the end of the prompt through the head. Its positions count from there, which is the same
        to a head: they are relative."""
        skipped = max(0, len(prompt) - 1 - _READ)
        seat = Seat(KVCache(1, len(prompt) - skipped + 64))
        state = _State(list(prompt), len(prompt), seat, torch.empty(0), skipped)
        if len(prompt) == 1:
            return state
        state.waiting = self._fused({tap: states[skipped:] for tap, states in hidden.items()})
        count = len(state.waiting) - 1
        if count > 0:
            self._step([self._slots(state, count)], [state.waiting[:count]], seat.cache)
            seat.cache.keep([range(count)])
            state.waiting = state.waiting[count:]
        return state

    @torch.no_grad()
    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; a row whose whole text is one token has no state to begin with, and gets a plain step."""
        growths = [
            sprout(Start(state.tokens[-1], len(state.tokens), budget, noise, self._parts.eos), sampling)
            if budget.depth > 0 and state.starts
            else None
            for state, budget, sampling, noise in zip(states, budgets, samplings, noises, strict=True)
        ]
        active = [
            _Active(state, growth, sampling)
            for state, growth, sampling in zip(states, growths, samplings, strict=True)
            if growth is not None
        ]
        if active:
            self._read([row.state for row in active])
            cache = gather([row.state.seat for row in active])
            self._catch_up(active, cache)
            while any(feeds := [row.growth.feed() for row in active]):
                self._feed(active, feeds, cache)
            for place, row in enumerate(active):
                cache.crop(place, len(row.state.tokens) - 2 - row.state.skipped)  # all slots but the newest
                row.state.waiting = row.state.waiting[-1:]
        return [
            growth.draft() if growth else Draft(Tree.chain(state.tokens[-1:]))
            for state, growth in zip(states, growths, strict=True)
        ]

    @torch.no_grad()
    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`: the target's own states take the place of those that were drafted with. They are fused when a
        draft needs them, so that rounds without one cost nothing."""
        state.tokens.extend(tokens)
        state.unread.append(scores.hidden_at(path, self.taps))

    def end(self, state: _State) -> None:
        """See `Drafter`: the cache goes, which may be one that other rows have left long ago."""
        del state.seat

    def _read(self, states: Sequence[_State]) -> None:
        """Fuse the target's states that have come since the last draft."""
        for state in states:
            if state.unread:
                hidden = {tap: torch.cat([part[tap] for part in state.unread]) for tap in self.taps}
                fused, state.unread = self._fused(hidden), []
                state.waiting = torch.cat([state.waiting, fused]) if len(state.waiting) else fused

    def _fused(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """[n, D] from the target's tapped states."""
        fused: Tensor = self.head.fuse(side_by_side(hidden, self.taps).to(self._device, self._dtype))
        return fused

    def _slots(self, state: _State, count: int) -> Tree:
        """The tokens of the next slots that are to be fed."""
        start = state.skipped + state.seat.length + 1
        return Tree.chain(state.tokens[start : start + count])

    def _catch_up(self, active: Sequence[_Active], cache: KVCache) -> None:
        """Feed the slots that are missing, and let each draft grow by its first level."""
        waiting = [row.state.waiting for row in active]
        outputs = self._step(
            [self._slots(r.state, len(w)) for r, w in zip(active, waiting, strict=True)], waiting, cache
        )
        # A tree is read with the newest slot as its root, time and again, so that one stays out of the cache.
        kept = [len(w) - (not row.growth.linear) for row, w in zip(active, waiting, strict=True)]
        cache.keep([range(count) for count in kept])
        for row, output in zip(active, outputs, strict=True):
            row.outputs = [output[-1]]
            self._grow(row, Feed(Tree.chain(row.state.tokens[-1:]), [0], []))

    def _feed(self, active: Sequence[_Active], feeds: Sequence[Feed | None], cache: KVCache) -> None:
        """Let each draft grow by a level; rows that are done ride along and keep nothing."""
        fed = [
            feed.tree if feed else Tree.chain(row.state.tokens[-1:]) for row, feed in zip(active, feeds, strict=True)
        ]
        outputs = self._step(fed, [_inputs(row, tree) for row, tree in zip(active, fed, strict=True)], cache)
        cache.keep([(0,) if feed and row.growth.linear else () for row, feed in zip(active, feeds, strict=True)])
        for row, feed, output in zip(active, feeds, outputs, strict=True):
            if feed is not None:
                row.outputs = list(output)
                self._grow(row, feed)

    def _step(self, fed: Sequence[Tree], inputs: Sequence[Tensor], cache: KVCache) -> list[Tensor]:
        """One pass of the head over these tokens and states of each row; the states that follow, [N, D] each."""
        if self.head.lean is not None:
            lean = _LeanPass(fed, cache, self.head.lean)
            embedded = self._parts.embed(lean.nodes.tokens).to(self._device, self._dtype)
            states = self.head(embedded[None], torch.cat(list(inputs))[None], lean.nodes.positions, lean.attend)
            return list(torch.split(states[0], lean.nodes.sizes))
        pass_ = attention.Pass(fed, cache, self._device)
        embedded = self._parts.embed(pass_.tokens()).to(self._device, self._dtype)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return pass_.attend(layer, query, key, value, query.shape[-1] ** -0.5, None, None)

        outputs = self.head(embedded, pad_sequence(list(inputs), batch_first=True), pass_.positions, attend)
        return [outputs[row, : len(tree)] for row, tree in enumerate(fed)]

    def _grow(self, row: _Active, feed: Feed) -> None:
        """Hand a draft the head's law at the nodes that it asked for."""
        wanted = torch.stack([row.outputs[node] for node in feed.nodes])
        logits = spread_out(self.head.logits(wanted), self._ids, self._parts.vocabulary)
        text = row.state.tokens
        history = [*text, *feed.behind] if row.sampling.edits_logits else text  # only then is it looked at
        row.growth.take(law_at(logits, feed, History(history, row.state.prompt_length), row.sampling))


class _LeanPass:
    """A pass of a lean head: where its tokens lie, and how they attend.

    Args:
        fed: one tree per row of the cache.
        cache: whose room is made here.
        shape: of the head's layers.

    Attributes:
        nodes: the tokens.
    """

    def __init__(self, fed: Sequence[Tree], cache: KVCache, shape: BlockShape) -> None:
        cache.reserve(max(len(tree) for tree in fed))
        self._cache, self._heads, self._size = cache, shape.kv_heads, shape.head_size
        self.nodes = Nodes(fed, cache.lengths, shape.heads, shape.kv_heads, shape.head_size, cache.capacity)
        self._turns = turns_at(self.nodes.positions, shape)

    def attend(self, layer: int, constants: Layer, qkv: Tensor) -> Tensor:
        """See `lean.LeanAttend`, of one layer."""
        storage = self._cache.storage(layer, self._heads, (self._size, self._size), qkv)
        return self.nodes.attend(constants, qkv[0], self._turns, *storage)[None]


def law_at(logits: Tensor, feed: Feed, past: History, sampling: Sampling) -> Law:
    """The drafter's law at the nodes of a feed.

    Args:
        logits: [len(feed.nodes), V], in the order of those nodes.
        feed, past, sampling: see `growth` and `Sampling.law`.
    """
    if not sampling.edits_logits:
        return sampling.law(logits, feed.tree, past)
    every = logits.new_zeros(len(feed.tree), logits.shape[-1])
    every[feed.nodes] = logits
    return sampling.for_draft().law(every, feed.tree, past, feed.nodes)


def spread_out(logits: Tensor, ids: Tensor | None, vocabulary: int) -> Tensor:
    """[N, n] over a draft vocabulary -> [N, V] over the target's."""
    if ids is None:
        return logits
    return logits.new_full((len(logits), vocabulary), -math.inf).index_copy_(1, ids, logits)


def _inputs(row: _Active, tree: Tree) -> Tensor:
    """[N, D] the states that a fed tree's slots take.

    Of a tree node 0 takes the target's, every other node what its parent gave when it was read; what a chain feeds
    takes what the token before it gave.
    """
    newest = row.state.waiting[-1]
    if row.growth.linear:
        return row.outputs[-1][None]
    return torch.stack([newest, *(row.outputs[parent] for parent in tree.parents[1:].tolist())])
