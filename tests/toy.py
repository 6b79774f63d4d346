"""A world small enough to know everything about it: tables for models, scripts for drafters and for chance.

The toy target implements `Target` without Transformers. Its law is a table over the whole context, and it reads that
context back from the `KVCache` that it wrote, so any mistake in rollback, order or offset gives other tokens or stops
at an assertion. `Script` and `outcomes` go through every outcome of a piece of production code that draws at random.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider import tree as trees
from outrider.drafters import Drafter
from outrider.kv import Encoded, KVCache
from outrider.sampling import History, Law, Sampling
from outrider.types import Budget, Draft, Drawn, Noise, Round, Scores, Source, Tree

Context = tuple[int, ...]
UNBOUNDED = 1 << 40


class Table:
    """A law for every context: Dirichlet(0.7) over the tokens of `support`, nothing for the others.

    Args:
        vocabulary: how many tokens there are.
        seed: another seed gives an independent table.
        support: tokens that may occur; all by default.
        dtype: of the probabilities.
    """

    def __init__(
        self, vocabulary: int, seed: int = 0, support: Sequence[int] | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        self.vocabulary, self.dtype = vocabulary, dtype
        self._seed, self._support = seed, list(range(vocabulary) if support is None else support)
        self._known: dict[Context, Tensor] = {}

    def law(self, context: Context) -> Tensor:
        """[V] probabilities of the token after this context."""
        if context not in self._known:
            self._known[context] = torch.tensor(self.make(context), dtype=self.dtype)
        return self._known[context]

    def make(self, context: Context) -> Sequence[float]:
        """The probabilities themselves, for `law` to remember."""
        generator = np.random.default_rng((self._seed, len(context), *context))
        law = np.zeros(self.vocabulary)
        law[self._support] = generator.dirichlet([0.7] * len(self._support))
        return law.tolist()


class Stream(Table):
    """A target that writes one text, whatever it has been told before: the law at each place is one token.

    The place alone decides, so that a draft with a wrong token goes on "rightly" after it; a rule that keeps tokens
    behind a mismatch betrays itself.
    """

    def __init__(self, vocabulary: int, prompt_length: int, text: Sequence[int]) -> None:
        super().__init__(vocabulary)
        self._prompt_length, self._text = prompt_length, list(text)

    def make(self, context: Context) -> Sequence[float]:
        """See `Table`."""
        law = [0.0] * self.vocabulary
        law[self._text[(len(context) - self._prompt_length) % len(self._text)]] = 1.0
        return law


def signature(context: Context, layer: int) -> Tensor:
    """[3] the hidden state of a toy target: layer, length, and a number that two contexts hardly share."""
    number = 0
    for token in context:
        number = (number * 31 + token + 1) % 1_000_003
    return torch.tensor([layer, len(context), number], dtype=torch.float64)


class ToyTarget:
    """A `Target` whose logits are the logarithms of a table, and whose cache holds token ids and positions."""

    exactness, build = "bits", "toy"
    device = torch.device("cpu")

    def __init__(self, table: Table, eos: tuple[int, ...] = (), context: int = UNBOUNDED) -> None:
        self.table, self.eos, self.context = table, eos, context
        self.vocabulary, self.dtype = table.vocabulary, table.dtype
        self.passes = 0

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target.new_cache`; one block whatever was asked for, so that long texts make it grow."""
        return KVCache(rows, 1)

    def forward(
        self, trees_: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        assert len(trees_) == cache.rows, "one tree per row of the cache"
        self.passes += 1
        width = max(map(len, trees_))
        cache.reserve(width)
        ids = torch.full((cache.rows, 1, width, 1), -1)
        places = ids.clone()
        for row, tree in enumerate(trees_):
            ids[row, 0, : len(tree), 0] = tree.tokens
            places[row, 0, : len(tree), 0] = cache.lengths[row] + trees.depths(tree.parents)
        stored_ids, stored_places = cache.write(0, ids, places)
        results = []
        for row, tree in enumerate(trees_):
            end = cache.lengths[row] + len(tree)
            contexts = self._contexts(
                stored_ids[row, 0, :end, 0].tolist(), stored_places[row, 0, :end, 0].tolist(), tree
            )
            hidden = {layer: torch.stack([signature(c, layer) for c in contexts]) for layer in taps}
            asked = contexts[-1:] if last_only else contexts
            results.append(Scores(torch.stack([self.table.law(c).log() for c in asked]), hidden))
        return results

    def _contexts(self, tokens: list[int], places: list[int], tree: Tree) -> list[Context]:
        """What each node sees: the row's committed tokens as the cache has them, its ancestors, itself."""
        committed = len(tokens) - len(tree)
        assert places[:committed] == list(range(committed)), f"committed slots hold positions {places[:committed]}"
        assert max(places) < self.context, f"position {max(places)} in a context of {self.context}"
        assert all(0 <= token < self.vocabulary for token in tokens), f"no such token: {tokens}"
        contexts: list[Context] = []
        for node, parent in enumerate(tree.parents.tolist()):
            before = contexts[parent] if node else tuple(tokens[:committed])
            contexts.append((*before, tokens[committed + node]))
        return contexts


class ToyEncoder(ToyTarget):
    """A toy target that reads a source first: its law is that of the table behind the source."""

    def encode(self, source: Source) -> Encoded:
        """See `target.Encoder`."""
        return Encoded(source, torch.zeros(1, 1), {})

    def forward(
        self, trees_: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target.forward`."""
        self._read = iter([() if encoded is None else encoded.source.ids for encoded in cache.encoded])
        return super().forward(trees_, cache, taps=taps, last_only=last_only)

    def _contexts(self, tokens: list[int], places: list[int], tree: Tree) -> list[Context]:
        read = next(self._read)
        return [(*read, *context) for context in super()._contexts(tokens, places, tree)]


@dataclass(frozen=True)
class Exact(Sampling):
    """Plain sampling in the logits' own precision: the production law rounds to float32, enumeration wants more."""

    temperature: float = 1.0

    def law(self, logits: Tensor, tree: Tree, history: History, nodes: Sequence[int] | None = None) -> Law:
        """See `Sampling.law`."""
        return Law(probs=(logits if nodes is None else logits[list(nodes)]).softmax(-1))


@dataclass
class ToyState:
    """What a toy drafter remembers of a request, and what it was shown."""

    tokens: list[int]
    prompt_length: int
    begun: Mapping[int, Tensor]
    rounds: int = 0
    commits: list[tuple[tuple[int, ...], Scores, tuple[int, ...]]] = field(default_factory=list)


class ToyDrafter(Drafter):
    """A drafter that remembers everything it is shown; its kinds say what it drafts."""

    def __init__(self, taps: tuple[int, ...] = (), limit: int = UNBOUNDED) -> None:
        self.taps, self._limit = taps, limit

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """At most `depth` tokens one after another."""
        raise NotImplementedError

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> ToyState:
        """See `Drafter`."""
        return ToyState(list(prompt), len(prompt), hidden)

    def propose(
        self, states: Sequence[Any], budgets: Sequence[Budget], samplings: Sequence[Sampling], noises: Sequence[Noise]
    ) -> list[Draft]:
        """See `Drafter`."""
        rows = zip(states, budgets, noises, strict=True)
        return [self.draft(state, budget.depth, noise) for state, budget, noise in rows]

    def commit(self, state: ToyState, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        assert len(path) == len(tokens), "one kept node for each committed token"
        state.tokens.extend(tokens)
        state.rounds += 1
        state.commits.append((tuple(tokens), scores, tuple(path)))

    def room(self, state: ToyState) -> int:
        """See `Drafter`: nothing once `limit` tokens are known."""
        return max(0, self._limit - len(state.tokens))


class Scripted(ToyDrafter):
    """Drafts as told: the n-th list in the n-th round, nothing after the last."""

    def __init__(self, rounds: Sequence[Sequence[int]], **options: Any) -> None:
        super().__init__(**options)
        self._rounds = rounds

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        told = self._rounds[state.rounds] if state.rounds < len(self._rounds) else ()
        return Draft(Tree.chain([state.tokens[-1], *told[:depth]]))


class Likeliest(ToyDrafter):
    """A deterministic chain: the likeliest token of a table at each step."""

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(**options)
        self._table = table

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        drafted: list[int] = []
        for _ in range(depth):
            drafted.append(int(self._table.law((*state.tokens, *drafted)).argmax()))
        return Draft(Tree.chain([state.tokens[-1], *drafted]))


class Sampled(ToyDrafter):
    """A chain drawn token by token from a table, with the table's own law as `probs`."""

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        drafted, laws = [], []
        for step in range(depth):
            law = self.table.law((*state.tokens, *drafted))
            drafted.append(int(noise.draws(law[None], [len(state.tokens) + step])[0]))
            laws.append(law)
        return Draft(Tree.chain([state.tokens[-1], *drafted]), torch.stack(laws) if laws else None, "iid")


class Branching(ToyDrafter):
    """A tree that is a function of the text alone: `grow(text of the node)` gives the node's children, in order."""

    def __init__(self, grow: Callable[[Context], Sequence[int]], **options: Any) -> None:
        super().__init__(**options)
        self._grow = grow

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`; level by level, so that siblings are neighbours and paths are not."""
        contexts, parents, first = [tuple(state.tokens)], [-1], 0
        for _ in range(depth):
            last = len(contexts)
            for node in range(first, last):
                for token in self._grow(contexts[node]):
                    contexts.append((*contexts[node], token))
                    parents.append(node)
            first = last
        return Draft(Tree(torch.tensor([context[-1] for context in contexts]), torch.tensor(parents)))


Ranks = tuple[int, ...]


class Forked(ToyDrafter):
    """A tree of tokens drawn from a table, with the table's own law as `probs`.

    Args:
        table: its law.
        shape: how many children a node has, by the ranks on the way to it (the root is `()`); none if not named.
        drawn: "iid" or "without_replacement"; fewer children where the law has fewer tokens.
    """

    def __init__(
        self, table: Table, shape: Mapping[Ranks, int], drawn: Drawn = "without_replacement", **options: Any
    ) -> None:
        super().__init__(**options)
        self.table, self._shape, self._drawn = table, shape, drawn

    def draft(self, state: ToyState, depth: int, noise: Noise) -> Draft:
        """See `ToyDrafter`."""
        contexts: list[Context] = [tuple(state.tokens)]
        ranks: list[Ranks] = [()]
        parents, laws, node = [-1], [], 0
        while node < len(contexts):
            law = self.table.law(contexts[node])
            left = law.clone()
            wanted = self._shape.get(ranks[node], 0) if len(ranks[node]) < depth else 0
            for rank in range(wanted):
                if not bool(left.any()):
                    break
                token = int(noise.draws(left[None], [len(contexts[node])])[0])
                if self._drawn == "without_replacement":
                    left[token] = 0
                contexts.append((*contexts[node], token))
                ranks.append((*ranks[node], rank))
                parents.append(node)
                laws.append(law)
            node += 1
        tree = Tree(torch.tensor([context[-1] for context in contexts]), torch.tensor(parents))
        return Draft(tree, torch.stack(laws), self._drawn) if laws else Draft(tree)


class Wide:
    """A policy that asks for trees, always the same."""

    def __init__(self, depth: int, nodes: int, stop: Callable[[Tensor, int], bool] | None = None) -> None:
        self._budget = Budget(depth, nodes, stop)

    def budget(self) -> Budget:
        """See `Policy`."""
        return self._budget

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


class Script:
    """One way through all random decisions: first as told, then the first possible outcome of each."""

    def __init__(self, told: Sequence[int] = ()) -> None:
        self._told = list(told)
        self._taken: list[int] = []
        self.unexplored: list[list[int]] = []
        self.weight = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """The outcome of a decision whose outcomes have these weights, not necessarily normalised."""
        possible = [outcome for outcome, weight in enumerate(weights) if weight > 0]
        if len(self._taken) < len(self._told):
            outcome = self._told[len(self._taken)]
        else:
            outcome = possible[0]
            self.unexplored += [[*self._taken, other] for other in possible[1:]]
        self._taken.append(outcome)
        self.weight *= weights[outcome] / sum(weights)
        return outcome


class _LazyDraws(Sequence[int]):
    """Draws that are decided when they are looked at, and once only."""

    def __init__(self, script: Script, probs: Tensor) -> None:
        self._script, self._probs = script, probs
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._probs)

    def __getitem__(self, node: int) -> int:  # type: ignore[override]
        node = range(len(self))[node]
        if node not in self._known:
            self._known[node] = self._script.choose(self._probs[node].tolist())
        return self._known[node]


class ScriptedNoise:
    """`Noise` whose every decision a script takes."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def draws(self, probs: Tensor, positions: Sequence[int]) -> Sequence[int]:
        """See `types.Noise`."""
        assert len(positions) == len(probs)
        return _LazyDraws(self.script, probs)

    def accept(self, prob: float) -> bool:
        """See `types.Noise`; not-a-number is refused, as every comparison with it is."""
        chance = min(1.0, prob) if prob > 0 else 0.0
        return self.script.choose([chance, 1.0 - chance]) == 0

    def categorical(self, probs: Tensor) -> int:
        """See `types.Noise`."""
        return self.script.choose(probs.tolist())


class NoiseOf:
    """Stands in for `SeededNoise` in the engine: all noise comes from one script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def for_draft(self, seed: int, number: int, coupled: bool) -> ScriptedNoise:
        """See `SeededNoise.for_draft`."""
        return ScriptedNoise(self._script)

    def for_verifier(self, seed: int, number: int) -> ScriptedNoise:
        """See `SeededNoise.for_verifier`."""
        return ScriptedNoise(self._script)


def outcomes(run: Callable[[Script], Hashable]) -> dict[Any, float]:
    """The exact law of what `run` returns: every outcome of every decision, depth first, weights summed."""
    law: dict[Any, float] = {}
    stack: list[list[int]] = [[]]
    while stack:
        script = Script(stack.pop())
        result = run(script)
        law[result] = law.get(result, 0.0) + script.weight
        stack += script.unexplored
    return law
