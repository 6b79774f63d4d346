"""DFlash: a block of tokens in one denoising pass over the target's states; see `heads/dflash.py`.

The cache holds keys and values of the target's states at all committed tokens but the pending one. A block's own are
written behind them and never kept. Every slot's law stands by itself, so a chain draws one token from each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .. import attention, features
from ..features import side_by_side
from ..heads.blocks import kept_values
from ..heads.dflash import DFlashHead, DFlashShape
from ..kv import KVCache, Seat, gather
from ..sampling import Sampling
from ..target import Target
from ..types import Budget, Draft, Noise, Scores, Tree
from .chain import chains_of
from .recurrent import spread_out
from .trained import Opened, Trained

_CHUNK = 512  # prompt tokens at a time


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seat: Seat
    waiting: Tensor  # [m, D] fused states of the positions that are not in the cache


class DFlash(Trained):
    """Drafts chains with a DFlash head, one pass each and no longer than its block."""

    method = "dflash"
    head: DFlashHead

    @classmethod
    def empty(cls, opened: Opened, target: Target) -> DFlashHead:
        """See `Trained`."""
        return DFlashHead(opened.shape(DFlashShape), features.output(target, opened.checkpoint.ids))

    @property
    def token_bytes(self) -> int:
        """See `Drafter`."""
        return kept_values(self.head) * self._dtype.itemsize

    @torch.no_grad()
    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        nothing = torch.empty(0, self.head.shape.block.width, device=self._device, dtype=self._dtype)
        state = _State(list(prompt), len(prompt), Seat(KVCache(1, len(prompt) + 64)), nothing)
        if len(prompt) > 1:
            for part in torch.split(self._fused(hidden), _CHUNK):
                state.waiting = part
                self._catch_up([state], state.seat.cache)
        return state

    @torch.no_grad()
    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; one pass for all rows. A row whose whole text is one token gets a plain step."""
        chains = chains_of(states, self._parts.eos, budgets, samplings, noises)
        asked = [row for row, state in enumerate(states) if chains[row].open and len(state.tokens) > 1]
        if asked:
            some = [states[row] for row in asked]
            cache = gather([state.seat for state in some])
            self._catch_up(some, cache)
            depth = min(max(budgets[row].depth for row in asked), self.head.shape.size - 1)
            for row, laws in zip(asked, self._laws([state.tokens[-1] for state in some], depth, cache), strict=True):
                for logits in spread_out(laws, self._ids, self._parts.vocabulary):
                    if chains[row].open:
                        chains[row].grow(logits)
        return [chain.draft() for chain in chains]

    @torch.no_grad()
    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state.tokens.extend(tokens)
        state.waiting = torch.cat([state.waiting, self._fused(scores.hidden_at(path, self.taps))])

    def end(self, state: _State) -> None:
        """See `Drafter`: the cache goes, which may be one that other rows have left long ago."""
        del state.seat

    def _fused(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """[n, D] from the target's tapped states."""
        return self.head.fuse(side_by_side(hidden, self.taps).to(self._device, self._dtype))

    def _catch_up(self, states: Sequence[_State], cache: KVCache) -> None:
        """Put the keys of what is waiting into the cache."""
        counts = [len(state.waiting) for state in states]
        if not any(counts):
            return
        fused = pad_sequence([state.waiting for state in states], batch_first=True)
        positions = torch.tensor(cache.lengths)[:, None] + torch.arange(fused.shape[1])
        cache.reserve(fused.shape[1])
        for layer, (keys, values) in enumerate(self.head.keys(fused, positions.to(self._device))):
            cache.write(layer, keys, values)
        cache.keep([range(count) for count in counts])
        for state in states:
            state.waiting = state.waiting[:0]

    def _laws(self, pending: Sequence[int], depth: int, cache: KVCache) -> Tensor:
        """[rows, depth, n] logits of the tokens after the pending ones."""
        blocks = self.head.masked(torch.tensor(pending))
        trees = [Tree.chain(block) for block in blocks.tolist()]
        pass_ = attention.Pass(trees, cache, self._device, both_ways=True)
        embedded = self._parts.embed(blocks).to(self._device, self._dtype)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return pass_.attend(layer, query, key, value, query.shape[-1] ** -0.5, None, None)

        states = self.head(embedded, pass_.positions, attend)
        return self.head.logits(states[:, 1 : depth + 1])
