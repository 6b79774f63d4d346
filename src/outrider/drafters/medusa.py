"""Medusa (Cai et al., 2401.10774): heads that look several tokens ahead from the target's last state, all at once.

A chain is drawn from one head after the other. A tree has a fixed shape, found from how often the heads' first, second,
... tokens were right, and takes the likeliest tokens: a point mass. Nothing is cached: the newest state is enough.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import features
from ..heads.medusa import MedusaHead, MedusaShape
from ..sampling import History, Law, Sampling
from ..target import Target
from ..types import Budget, Draft, Noise, Scores, Tree
from .growth import Chain, Feed, Start
from .recurrent import law_at, spread_out
from .trained import Borrowed, Opened, Trained


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    newest: Tensor | None  # [D] the target's last state before the pending token; None while there is none


class Medusa(Trained):
    """Drafts with Medusa heads, no deeper than there are heads."""

    method = "medusa"
    makes_trees = True
    head: MedusaHead

    def __init__(self, head: MedusaHead, parts: Borrowed, taps: tuple[int, ...], ids: Tensor | None, spec: str) -> None:
        super().__init__(head, parts, taps, ids, spec)
        self._ranks = head.shape.ranks or default_ranks(head.shape.heads)

    @classmethod
    def empty(cls, opened: Opened, target: Target) -> MedusaHead:
        """See `Trained`."""
        shape = opened.shape(MedusaShape)
        return MedusaHead(shape, None if shape.outputs else features.output(target, opened.checkpoint.ids))

    def shaped(self, ranks: tuple[tuple[int, ...], ...]) -> Medusa:
        """The same heads with another static tree; see `MedusaShape.ranks`."""
        other = copy.copy(self)
        other._ranks = ranks
        return other

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        newest = hidden[self.taps[0]][-1] if len(prompt) > 1 else None
        return _State(list(prompt), len(prompt), newest)

    @torch.no_grad()
    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; one pass of the heads for all rows. A row without a state yet gets a plain step."""
        drafts = [Draft(Tree.chain(state.tokens[-1:])) for state in states]
        asked = [
            row
            for row, (state, budget) in enumerate(zip(states, budgets, strict=True))
            if state.newest is not None and budget.depth > 0
        ]
        if not asked:
            return drafts
        newest = torch.stack([state.newest for state in (states[row] for row in asked) if state.newest is not None])
        logits = self.head.logits(self.head(newest.to(self._device, self._dtype)))
        for row, of_heads in zip(asked, logits, strict=True):
            wide = budgets[row].nodes > budgets[row].depth
            depth = min(budgets[row].depth, len(of_heads))
            budget = Budget(depth, budgets[row].nodes if wide else depth, budgets[row].stop, budgets[row].law)
            every = spread_out(of_heads[:depth], self._ids, self._parts.vocabulary)
            if wide:
                drafts[row] = self._tree(states[row], every, budget, samplings[row])
            else:
                drafts[row] = self._chain(states[row], every, budget, samplings[row], noises[row])
        return drafts

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state.tokens.extend(tokens)
        state.newest = scores.hidden[self.taps[0]][path[-1]]

    def _chain(self, state: _State, logits: Tensor, budget: Budget, sampling: Sampling, noise: Noise) -> Draft:
        """One token from each head, drawn in turn; `logits` [depth, V]."""
        chain = Chain(Start(state.tokens[-1], len(state.tokens), budget, noise, self._parts.eos))
        feed: Feed | None = Feed(Tree.chain(state.tokens[-1:]), [0], [])
        for of_head in logits:
            if feed is None:
                break
            chain.take(self._law(of_head, feed, state, sampling))
            feed = chain.feed()
        return chain.draft()

    def _tree(self, state: _State, logits: Tensor, budget: Budget, sampling: Sampling) -> Draft:
        """The likeliest tokens of each head in the fixed shape, its best nodes first; `logits` [depth, V]."""
        pending = Feed(Tree.chain(state.tokens[-1:]), [0], [])
        laws = [self._law(of_head, pending, state, sampling) for of_head in logits]
        fitting = [path for path in self._ranks if len(path) <= budget.depth]
        widest = 1 + max(path[-1] for path in fitting)
        ranked = [law.spread(0).topk(min(widest, law.spread(0).shape[-1])) for law in laws]
        place: dict[tuple[int, ...], int] = {(): 0}
        tokens, parents, depths = [state.tokens[-1]], [-1], [0]
        for path in fitting:
            if len(tokens) > budget.nodes:
                break
            parent, level, rank = place.get(path[:-1]), len(path) - 1, path[-1]
            if parent is None or rank >= len(ranked[level].indices) or not float(ranked[level].values[rank]):
                continue
            if parent and tokens[parent] in self._parts.eos:
                continue
            place[path] = len(tokens)
            tokens.append(int(ranked[level].indices[rank]))
            parents.append(parent)
            depths.append(level + 1)
        tree = Tree(torch.tensor(tokens), torch.tensor(parents))
        if not budget.law or len(tokens) == 1:
            return Draft(tree)
        return Draft(tree, torch.stack([laws[depth - 1].spread(0) for depth in depths[1:]]))

    def _law(self, logits: Tensor, feed: Feed, state: _State, sampling: Sampling) -> Law:
        text = state.tokens
        history = [*text, *feed.behind] if sampling.edits_logits else text  # only then is it looked at
        return law_at(logits[None], feed, History(history, state.prompt_length), sampling)


def default_ranks(heads: int) -> tuple[tuple[int, ...], ...]:
    """The tree of heads about which nothing is known: best first if rank r of every head is right in 0.4 ** (r + 1)."""
    return search_ranks([[0.4 ** (rank + 1) for rank in range(8)]] * heads, 64)


def search_ranks(accuracy: Sequence[Sequence[float]], nodes: int) -> tuple[tuple[int, ...], ...]:
    """The tree that is worth most: best first on the product of accuracies (Medusa; Sequoia, 2402.12374).

    Args:
        accuracy: for each head, how often its r-th likeliest token was right, r = 0, 1, ...
        nodes: how many.

    Returns:
        For each node, best first, the ranks on the way to it; every node comes after its parent.
    """
    found: list[tuple[int, ...]] = []
    open_: dict[tuple[int, ...], float] = {(rank,): share for rank, share in enumerate(accuracy[0])}
    while open_ and len(found) < nodes:
        best = max(open_, key=lambda path: (open_[path], -len(path)))
        worth = open_.pop(best)
        if worth <= 0:
            break
        found.append(best)
        if len(best) < len(accuracy):
            open_ |= {(*best, rank): worth * share for rank, share in enumerate(accuracy[len(best)])}
    return tuple(found)
