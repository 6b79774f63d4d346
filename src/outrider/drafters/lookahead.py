"""Lookahead decoding (Fu et al., 2402.02057): the target guesses n-grams for itself, beside the text it is writing.

No draft model and no text to copy from: a window of guesses for the next tokens is improved by Jacobi iteration in the
passes that verify drafts anyway, and the n-grams that come out of it are drafted when their first token is pending.

One pass, one tree. The paper's two branches hang from the same node 0, the pending token:

- Verification: the n-grams of the pool that begin with the pending token, the latest first, each a path.
- Lookahead: `window` columns of `ngram - 1` tokens. The first token of column i is a guess for the i-th place after the
  pending token (column 0 begins with the pending token itself); these tokens form a chain, and from each of them hangs
  the rest of its column, later guesses for the places behind. The logits at the end of a column give one more token:
  an n-gram for the pool. The column then loses its first token, so it stands one place further, as the text does.
  Where more tokens than one were committed, the columns that the text has passed go to the far end.

Paths that begin alike share nodes, so the lookahead branch is drafted too: under `match` a node is kept if it is the
target's own token there, wherever it came from, and nothing else is. That makes it exact (drafts are point masses).

Departures from the paper: all of a draft keeps within the policy's budget, so narrow budgets look ahead with fewer
columns, and verification has half of it where the window does not leave more; the first guesses are pieces of the
prompt's end, not random tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..sampling import Sampling, likeliest
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting
from .growing import scores_of
from .options import read_options, whole

WINDOW, NGRAM = 5, 4


class _Pool:
    """N-grams by their first token, of each at most `most`, the least recently found out first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Take one in as the latest."""
        rest = tuple(ngram[1:])
        known = self._known.setdefault(ngram[0], OrderedDict())
        known[rest] = None
        known.move_to_end(rest)
        if len(known) > self._most:
            known.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What follows a token in its n-grams, the latest first."""
        return list(reversed(self._known.get(token, ())))


@dataclass(slots=True)
class _State:
    pending: int
    columns: list[list[int]]
    pool: _Pool
    nodes: list[int] = field(default_factory=list)  # tokens of the draft under way, by node
    ends: dict[int, int] = field(default_factory=dict)  # column -> the last node of it in that draft


class _Growing:
    """A tree that grows by paths; paths that begin alike share nodes."""

    def __init__(self, pending: int) -> None:
        self.tokens, self.parents = [pending], [-1]
        self._nodes: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        """Draft nodes so far."""
        return len(self.tokens) - 1

    def missing(self, node: int, path: Sequence[int]) -> int:
        """How many nodes a path from a node would add."""
        for place, token in enumerate(path):
            if (node, token) not in self._nodes:
                return len(path) - place
            node = self._nodes[node, token]
        return 0

    def add(self, node: int, path: Sequence[int]) -> int:
        """Add a path from a node; its last node."""
        for token in path:
            if (node, token) not in self._nodes:
                self._nodes[node, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
            node = self._nodes[node, token]
        return node


class Lookahead(Drafter):
    """Drafts n-grams that the target came up with in earlier passes.

    Args:
        window: columns at most, and n-grams kept per first token.
        ngram: tokens of an n-gram, the pending one included.
    """

    makes_trees = always_branches = True

    def __init__(self, window: int = WINDOW, ngram: int = NGRAM) -> None:
        self._window, self._ngram = window, ngram
        self.spec = f"lookahead:window={window},ngram={ngram}"

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Lookahead:
        """`lookahead` or `lookahead:window=W,ngram=N`, both optional."""
        return cls(**read_options("lookahead", argument, {"window": whole(1), "ngram": whole(2)}))

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        end = prompt[-self._window - self._ngram :]
        columns = [[end[(place + step) % len(end)] for step in range(self._ngram - 1)] for place in range(self._window)]
        return _State(prompt[-1], columns, _Pool(self._window))

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
        """See `Drafter`: columns that were in the pass move on by the target's own next token."""
        if scores_of(state.nodes, tokens, scores, path):
            own = likeliest(scores.logits).tolist()
            for place, node in state.ends.items():
                ngram = [*state.columns[place], own[node]]
                state.pool.add(ngram)
                state.columns[place] = ngram[1:]
        passed = (len(tokens) - 1) % self._window
        state.columns = state.columns[passed:] + state.columns[:passed]
        state.pending = tokens[-1]

    def _draft(self, state: _State, budget: Budget) -> Draft:
        state.columns[0][0] = state.pending
        tree, state.ends = _Growing(state.pending), {}
        if budget.depth:
            self._verify(state, tree, budget)
            self._look_ahead(state, tree, budget)
        state.nodes = tree.tokens
        return Draft(Tree(torch.tensor(tree.tokens), torch.tensor(tree.parents)))

    def _verify(self, state: _State, tree: _Growing, budget: Budget) -> None:
        """The pool's n-grams, in what the window leaves of the nodes, or in half of them."""
        wanted = sum(map(len, state.columns)) - 1
        room = max((budget.nodes + 1) // 2, budget.nodes - wanted)
        for ngram in state.pool.after(state.pending):
            path = ngram[: budget.depth]
            while tree.missing(0, path) > room - tree.size:
                path = path[:-1]
            tree.add(0, path)

    def _look_ahead(self, state: _State, tree: _Growing, budget: Budget) -> None:
        """As many columns as fit, each behind the first tokens of those before it."""
        head = 0
        for place, column in enumerate(state.columns):
            path = column if place else column[1:]
            if place + len(column) - 1 > budget.depth or tree.missing(head, path) > budget.nodes - tree.size:
                return
            state.ends[place] = tree.add(head, path)
            if place:
                head = tree.add(head, column[:1])
