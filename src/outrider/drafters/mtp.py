"""Multi-token prediction (DeepSeek-V3, 2412.19437): layers that a checkpoint ships for predicting further ahead.

Layers that `outrider train mtp` made have a folder of their own, and draft in `mtp_trained`.

Slot i of depth k takes the state at position i (the target's own for the first depth, the depth before's otherwise) and
token i + k, and predicts token i + k + 1. A chain uses one depth after the other; beyond the last one it feeds the last
depth its own states. Keys of committed tokens stay; each round feeds whatever a depth lacks, so that accepted, rejected
and skipped rounds are one case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .. import attention
from ..checkpoints import is_drafter
from ..errors import BadOption
from ..heads.mtp import MtpDepth
from ..kv import KVCache, Seat, gather
from ..layers import Layered, layered
from ..layouts.reading import is_of
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting
from .chain import Chain, chains_of
from .mtp_files import read_depths
from .mtp_trained import TrainedMtp

_CHUNK = 512  # prompt tokens per pass


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seats: list[Seat]  # one for each depth
    waiting: list[Tensor]  # for each depth [n, D], the states that its next slots take
    latest: Tensor  # [1, D], the state that the first depth's last slot took

    @property
    def known(self) -> int:
        """Positions at which the target's states are known: all but the pending token's."""
        return len(self.tokens) - 1


class Mtp(Drafter):
    """Drafts chains with a checkpoint's multi-token-prediction layers.

    Args:
        target: for its embedding and its head, where a depth has none of its own.
        depths: first to last, at least one.
        spec: its name in reports.
    """

    has_law = True
    makes_trees = True  # with a trained layer, which is known once its folder is opened

    def __init__(self, target: Layered, depths: Sequence[MtpDepth], spec: str = "mtp") -> None:
        self._target, self._depths, self.spec = target, depths, spec
        self._like = depths[0].eh_proj.weight  # width, type and device of states
        self.taps, self.makes_trees = (target.depth,), False

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Drafter:
        """`mtp`, or `mtp:FOLDER` for layers that lie elsewhere than the target; those of `outrider train mtp` too,
        exported or not.

        Raises:
            BadOption: the target was made in memory and no folder is named, or they were trained for another target.
            ModelNotFound, UnsupportedModel: there are no such layers, or they cannot be used.
        """
        folder = Path(argument).expanduser() if argument else setting.folder
        if argument and folder is not None and (is_drafter(folder) or is_of(folder, "mtp")):
            return TrainedMtp.from_spec(argument, setting)
        if folder is None:
            raise BadOption(
                "mtp reads its layers from the target's files, and this target has no folder: load it from one, or "
                "name it with mtp:FOLDER."
            )
        target = layered(setting.target)
        depths = read_depths(folder, target.config, setting.target.dtype, setting.target.device)
        return cls(target, depths, f"mtp:{argument}" if argument else "mtp")

    @property
    def token_bytes(self) -> int:
        """See `Drafter`; tried, for models differ."""
        prompt = [0] * (len(self._depths) + 2)
        state = self.begin(prompt, {self.taps[0]: self._like.new_zeros(len(prompt) - 1, self._like.shape[0])})
        return sum(seat.cache.nbytes // seat.cache.capacity for seat in state.seats)

    @torch.no_grad()
    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; runs the prompt through every depth, as far as its states are known."""
        seats = [Seat(KVCache(1, len(prompt) + 64)) for _ in self._depths]
        nothing = self._like.new_zeros(0, self._like.shape[0])
        state = _State(list(prompt), len(prompt), seats, [nothing for _ in self._depths], nothing)
        state.waiting[0] = hidden.get(self.taps[0], nothing)
        for depth, seat in enumerate(seats):
            end = state.known - max(1, depth)  # the first depth's last slot gives the first draft token: `propose`
            while seat.length < end:
                self._advance(depth, [state], [state.tokens], [nothing], [min(_CHUNK, end - seat.length)])
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
        chains = chains_of(states, self._target.eos, budgets, samplings, noises)
        rows = [row for row, state in enumerate(states) if state.known]
        ahead = {row: self._like.new_zeros(0, self._like.shape[0]) for row in rows}
        newest: dict[int, Tensor] = {}
        touched = [row for row in rows if chains[row].open]
        for row in touched:
            _reopen(states[row])
        for depth in range(len(self._depths)):
            rows = [row for row in rows if chains[row].open]
            if not rows:
                break
            some = [states[row] for row in rows]
            texts = [[*states[row].tokens, *chains[row].drafted] for row in rows]
            counts = [state.known - state.seats[depth].length for state in some]
            outcomes = self._advance(depth, some, texts, [ahead[row] for row in rows], counts)
            for row, (last, beyond) in zip(rows, outcomes, strict=True):
                newest[row], ahead[row] = last, beyond
            self._grow(depth, rows, chains, newest)
        if rows:
            self._recur(rows, states, chains, newest)
        for row in touched:
            for depth, seat in enumerate(states[row].seats):
                seat.cache.crop(seat.row, max(0, states[row].known - depth))
        return [chain.draft() for chain in chains]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`: the target's own states take the place of those that were drafted with."""
        state.tokens.extend(tokens)
        state.waiting[0] = torch.cat([state.waiting[0], scores.hidden_at(path, self.taps)[self.taps[0]]])

    def end(self, state: _State) -> None:
        """See `Drafter`: keys and states go, which may sit in caches that other rows have left long ago."""
        state.seats.clear()
        state.waiting.clear()

    def _advance(
        self,
        depth: int,
        states: Sequence[_State],
        texts: Sequence[Sequence[int]],
        ahead: Sequence[Tensor],
        counts: Sequence[int],
    ) -> list[tuple[Tensor, Tensor]]:
        """Run a depth's next slots in each row and keep their keys.

        Args:
            depth: which.
            states: one per row.
            texts: committed and drafted tokens.
            ahead: [n, D] states of the depth before at slots that take drafted tokens, behind those that wait.
            counts: how many slots.

        Returns:
            For each row the state at the last slot, [D], and those at slots that took drafted tokens.
        """
        cache = gather([state.seats[depth] for state in states])
        ids, inputs, real = [], [], []
        starts = list(cache.lengths)
        for row, (state, text, start, count) in enumerate(zip(states, texts, starts, counts, strict=True)):
            ids.append(text[start + depth + 1 : start + depth + 1 + count])
            inputs.append(torch.cat([state.waiting[depth], ahead[row]])[:count])
            real.append(min(count, state.known - depth - start))  # slots whose token is committed
        outputs = self._forward(depth, cache, ids, inputs)
        cache.keep([range(count) for count in counts])
        results = []
        for state, start, taken, output, size in zip(states, starts, inputs, outputs, real, strict=True):
            state.waiting[depth] = state.waiting[depth][size:]
            if depth == 0:
                state.latest = taken[-1:]
            if depth + 1 < len(self._depths):
                has = state.waiting[depth + 1]
                first = state.seats[depth + 1].length + len(has) - start  # slots before are waiting already
                state.waiting[depth + 1] = torch.cat([has, output[max(0, first) : size]])
            results.append((output[-1], output[size:]))
        return results

    def _recur(
        self, rows: Sequence[int], states: Sequence[_State], chains: Sequence[Chain], newest: dict[int, Tensor]
    ) -> None:
        """Beyond the last depth: feed it its own states. Rows that are done ride along and keep nothing."""
        depth = len(self._depths) - 1
        cache = states[rows[0]].seats[depth].cache
        while growing := [row for row in rows if chains[row].open]:
            inputs = [newest[row][None] for row in rows]
            outputs = self._forward(depth, cache, [[chains[row].newest] for row in rows], inputs)
            cache.keep([(0,) if row in growing else () for row in rows])
            for row, output in zip(rows, outputs, strict=True):
                newest[row] = output[0]
            self._grow(depth, growing, chains, newest)

    def _grow(self, depth: int, rows: Sequence[int], chains: Sequence[Chain], newest: Mapping[int, Tensor]) -> None:
        head = self._depths[depth].head or self._target.head
        for row, logits in zip(rows, head(torch.stack([newest[row] for row in rows])), strict=True):
            chains[row].grow(logits)

    def _forward(
        self, depth: int, cache: KVCache, ids: Sequence[Sequence[int]], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """One pass of a depth over these tokens and states of each row."""
        module, trees = self._depths[depth], [Tree.chain(part) for part in ids]
        pass_ = attention.Pass(trees, cache, self._like.device)
        tokens = pass_.tokens().to(self._like.device)
        embedded = (module.embedding or self._target.embed)(tokens)
        hidden = pad_sequence(list(inputs), batch_first=True)
        outputs = module(embedded, hidden, pass_.positions, outrider_pass=pass_)
        return [outputs[row, : len(tree)] for row, tree in enumerate(trees)]


def _reopen(state: _State) -> None:
    """Let the first depth's last slot run once more where it has run: a second draft in the place of the first."""
    seat = state.seats[0]
    if seat.length == state.known:
        seat.cache.crop(seat.row, state.known - 1)
        state.waiting[0] = state.latest
