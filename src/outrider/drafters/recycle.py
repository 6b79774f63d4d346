"""Token recycling (Luo et al., 2408.08696): what the target thought likely after a token when it last saw it.

A pass scores every node of a draft, and most of those scores are thrown away. Here the likeliest successors of every
node's token, rejected ones included, go into a table token -> successors, from which the next draft grows as a tree,
the likeliest node first (ALGORITHMS 4), or as a chain where the budget has no more nodes than depth. The likelihood of
a rank is counted as the request goes.

Departures from the paper: the table belongs to one request, so that requests leave no trace, and starts from the
prompt's pairs of tokens instead of empty; the tree is grown for the budget at hand instead of fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from ..errors import BadOption
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores
from .base import Drafter, Setting
from .growing import best_first, scores_of

WIDTH = 8  # successors per token, the paper's
# Before anything is counted: the chance of the first rank, and of the others over their number. In 7 answers of
# SmolLM2-135M it was 0.40 for the first and 0.11, 0.06, 0.04, 0.02, 0.02, 0.01, 0.01 for the others.
_FIRST, _OTHERS = 0.4, 0.12
_WEIGHT = 10.0  # looks into the table that this is worth


@dataclass(slots=True)
class _State:
    pending: int
    hits: list[float]  # by rank: how often it was the next token
    looks: float = _WEIGHT
    table: dict[int, list[int]] = field(default_factory=dict)  # token -> successors, the likeliest first
    drafted: list[int] = field(default_factory=list)  # tokens by node


class Recycle(Drafter):
    """Drafts from the successors that the target scored highest before.

    Args:
        width: successors kept per token.
    """

    makes_trees = True

    def __init__(self, width: int = WIDTH) -> None:
        self._width = width
        self.spec = f"recycle:{width}"

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Recycle:
        """`recycle` or `recycle:K` with K successors per token.

        Raises:
            BadOption: K is no number of 1 or more.
        """
        if not argument:
            return cls()
        if not argument.isdecimal() or int(argument) < 1:
            raise BadOption(f"recycle:{argument} is no number of successors: write recycle:K with K of 1 or more.")
        return cls(int(argument))

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; the latest successor in the prompt ranks first."""
        chances = [_FIRST, *(_OTHERS / rank for rank in range(1, self._width))]
        state = _State(prompt[-1], [_WEIGHT * chance for chance in chances])
        for token, following in pairwise(prompt):
            row = state.table.setdefault(token, [])
            if following in row:
                row.remove(following)
            row.insert(0, following)
            del row[self._width :]
        return state

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        return [self._draft(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`; rows of nodes that were kept are written last, for they stood on the text itself."""
        known = [state.pending, *tokens]
        self._count(state, known)
        state.pending = known[-1]
        likeliest = scores.logits.topk(min(self._width, scores.logits.shape[-1])).indices.tolist()
        if scores_of(state.drafted, tokens, scores, path):
            state.table.update(zip(state.drafted, likeliest, strict=True))
        state.table.update((token, likeliest[node]) for token, node in zip(known, path, strict=False))

    def _draft(self, state: _State, budget: Budget) -> Draft:
        ranks = sorted(((hits / state.looks, rank) for rank, hits in enumerate(state.hits)), reverse=True)
        if budget.nodes <= budget.depth:  # a chain
            del ranks[1:]

        def successors(token: int) -> Iterator[tuple[float, int, int]]:
            row = state.table.get(token, ())
            for chance, rank in ranks:
                if rank < len(row):
                    yield chance, row[rank], row[rank]

        tree, score = best_first(state.pending, state.pending, successors, budget.depth, budget.nodes)
        state.drafted = tree.tokens.tolist()
        return Draft(tree, score=score)

    @staticmethod
    def _count(state: _State, known: Sequence[int]) -> None:
        """Which ranks the committed tokens had."""
        for token, following in pairwise(known):
            row = state.table.get(token)
            if row:
                state.looks += 1
                if following in row:
                    state.hits[row.index(following)] += 1
