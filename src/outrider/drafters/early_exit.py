"""Self-speculation (LayerSkip, Elhoushi et al., 2404.16710): the target's own first layers draft, the rest verify.

Draft tokens run through the first layers, and from there to the head: by the final norm, or by a way that was trained
for this exit while the target stayed as it is (`heads/exit.py`). Their keys go straight into the target's cache,
where verification looks for them, and their states are where verification goes on: no second cache, no layer twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import features
from ..errors import BadOption
from ..heads.exit import ExitHead, ExitShape
from ..kv import KVCache, Seat
from ..layers import Layered, Started, layered
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting
from .chain import chains_of
from .recurrent import spread_out
from .trained import Borrowed, borrowed, open_folder, ready


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seat: Seat | None = None  # the target's, not a cache of its own


class Adapter:
    """A trained way from states after the exit's layer to logits.

    Args:
        head: in evaluation mode.
        parts: the target's; the embedding is not used.
        ids: [n] int64, the target's ids of the draft vocabulary; None where it is the target's own.
    """

    def __init__(self, head: ExitHead, parts: Borrowed, ids: Tensor | None) -> None:
        self._head, self._parts = head, parts
        self._ids = None if ids is None else ids.to(parts.device)

    @torch.no_grad()
    def __call__(self, states: Tensor) -> Tensor:
        """[N, D] -> [N, V]"""
        logits = self._head.logits(self._head(states.to(self._parts.device, self._parts.dtype)))
        return spread_out(logits, self._ids, self._parts.vocabulary)


class EarlyExit(Drafter):
    """Drafts chains with the first layers of the target.

    Args:
        target: can be parted after so many layers.
        layers: how many draft; at least 1, and fewer than the target has.
        adapter: what leads from there to logits; None takes the target's final norm and head.
        spec: its name in reports.
    """

    has_law = True

    def __init__(self, target: Layered, layers: int, adapter: Adapter | None = None, spec: str = "") -> None:
        self._target, self._layers, self._adapter = target, layers, adapter
        self.spec = spec or f"early_exit:{layers}"
        if adapter is None and not getattr(target.config, features.MARK, ""):
            self.note = (
                f"early_exit drafts after {layers} of {target.depth} layers through the target's own head: unless the "
                "target was trained for early exits (as LayerSkip models are), few drafts are accepted and decoding "
                "gets slower, so train an exit first (outrider train exit)."
            )

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> EarlyExit:
        """`early_exit:E`: exit after E layers. `early_exit:FOLDER`: where `outrider train exit` says, and by its way.

        Raises:
            BadOption: E is no number of layers that leaves some to verify with.
            UnsupportedModel: the target's layers cannot be run one by one.
            BadOption, ModelNotFound: see `trained.open_folder`.
        """
        if not argument.isdecimal():
            if not Path(argument or "-").expanduser().is_dir():
                raise BadOption(
                    f"early_exit:{argument} names no layer and no folder: write early_exit:E to exit after E layers, "
                    "or early_exit:FOLDER with a folder of 'outrider train exit'."
                )
            return cls._trained(argument, setting)
        target, layers = layered(setting.target), int(argument)
        if not 1 <= layers < target.depth:
            raise BadOption(
                f"early_exit:{layers} leaves nothing to draft or to verify with: this target has {target.depth} "
                f"layers, so write early_exit:E with E from 1 to {target.depth - 1}."
            )
        target.check(layers)
        return cls(target, layers)

    @classmethod
    def _trained(cls, argument: str, setting: Setting) -> EarlyExit:
        opened = open_folder("early_exit", argument, setting)
        target, (layers,) = layered(setting.target), opened.checkpoint.manifest.taps
        target.check(layers)
        head = ExitHead(opened.shape(ExitShape), features.output(setting.target, opened.checkpoint.ids))
        opened.fill(head)
        adapter = Adapter(ready(head, setting.target), borrowed(setting.target), opened.ids)
        return cls(target, layers, adapter, f"early_exit:{argument}")

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        return _State(list(prompt), len(prompt))

    def seated(self, state: _State, seat: Seat) -> None:
        """See `Drafter`: drafts are written where verification will look for them."""
        state.seat = seat

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; one pass of the lower layers per step for all rows together.

        The last token of each draft is run too, and the pending token of rows without a draft: verification then finds
        every node's lower layers done.
        """
        chains = chains_of(states, self._target.eos, budgets, samplings, noises)
        seats = [state.seat for state in states if state.seat is not None]
        assert len(seats) == len(states), "the loop seats every request"
        cache = seats[0].cache
        committed = list(cache.lengths)
        cache.reserve(max(budget.depth for budget in budgets) + 1)  # growing under way would forget what is not kept
        found: list[list[Tensor]] = [[] for _ in states]
        feeding = list(range(len(states)))
        while feeding:
            tokens = {seats[place].row: chains[place].newest for place in feeding}
            lowered = self._feed(tokens, cache)
            for place in feeding:
                found[place].append(lowered[seats[place].row])
            feeding = [place for place in feeding if chains[place].open]
            if feeding:
                logits = (self._adapter or self._target.exit)(torch.cat([found[place][-1] for place in feeding]))
                for place, row in zip(feeding, logits, strict=True):
                    chains[place].grow(row)
        for row, length in enumerate(committed):
            cache.crop(row, length)
        return [
            chain.draft(Started(self._target, self._layers, torch.cat(parts)))
            for chain, parts in zip(chains, found, strict=True)
        ]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state.tokens.extend(tokens)

    def end(self, state: _State) -> None:
        """See `Drafter`: the target's cache may outlive the request, for its other rows."""
        state.seat = None

    def _feed(self, tokens: Mapping[int, int], cache: KVCache) -> list[Tensor]:
        """Run one token in each of these rows of the cache; the others ride along and keep nothing."""
        trees = [Tree.chain([tokens.get(row, 0)]) for row in range(cache.rows)]
        lowered = self._target.lower(trees, cache, self._layers)
        cache.keep([(0,) if row in tokens else () for row in range(cache.rows)])
        return lowered
