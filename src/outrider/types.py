"""The words of this house, as types. Knows no models and no devices.

Glossary
    target      the model whose output is wanted; its law is `p`
    drafter     whatever proposes tokens; `q` is the law that it drew them from
    pending     the last committed token: known, but its keys and values are not in the cache yet
    draft       a tree of proposed tokens whose node 0 is the pending token
    accepted    draft tokens that were kept
    bonus       the token that the target adds after a draft that was kept to its end
    corrected   the token that the target writes where it departs from the draft
    round       one draft, one pass of the target, one verdict
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

FinishReason = Literal["stop", "length"]
Drawn = Literal["point", "iid", "without_replacement"]
Origin = Literal["accepted", "corrected", "bonus", "plain"]
UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True)
class Tree:
    """Tokens and, for each, the node before it. Node 0 is the pending token.

    Attributes:
        tokens: [N] int64 on the host.
        parents: [N] int64 on the host; `parents[0] == -1` and `parents[i] < i`.
    """

    tokens: Tensor
    parents: Tensor

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Tree:
        """A tree without branches: each token follows the one before it."""
        return cls(torch.tensor(tokens, dtype=torch.int64), torch.arange(-1, len(tokens) - 1))

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What the encoder of an encoder-decoder target reads, once per request.

    Attributes:
        ids: of a text, in the encoder's vocabulary; empty for audio.
        features: [bins, frames], of audio; None for a text.
        words: the text again as the decoder would write it, for drafters that copy from it; empty where it cannot.
    """

    ids: tuple[int, ...] = ()
    features: Tensor | None = None
    words: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one row.

    Attributes:
        tree: node 0 is the row's pending token; the others are proposed.
        probs: [N-1, V], row i the law that node i+1 was drawn from, given its parent, with no elder sibling taken out.
            Where the choice was deterministic, the law behind it if `Budget.law` asked, else None.
        drawn: how: "point" (deterministic, whatever `probs` says), "iid" (each child independently, as in a chain), or
            "without_replacement" (children in the order in which they were drawn).
        score: how many draft tokens the drafter expects to be accepted, where it can tell; a cascade compares these.
        read: how many tokens of the request's text the drafter had to read before it could draft, in its own tokens,
            where that was still to be done (`Budget.reading`); not what it caught up with since its last draft.
        started: what the drafter has run of the target's own layers on these nodes (`layers.Started`), so that the
            target's pass need not run them again; None where it has run none.
    """

    tree: Tree
    probs: Tensor | None = None
    drawn: Drawn = "point"
    score: float | None = None
    started: object = None
    read: int = 0

    def keep(self, nodes: Sequence[int]) -> Draft:
        """The same with these nodes only, in their order: node 0 first, and none without its parent.

        What has been run of the target's layers lies behind every node, so it is forgotten.
        """
        if len(nodes) == len(self.tree):
            return self
        place = {node: index for index, node in enumerate(nodes)}
        parents = [-1, *(place[int(self.tree.parents[node])] for node in nodes[1:])]
        tree = Tree(self.tree.tokens[list(nodes)], torch.tensor(parents))
        probs = None if self.probs is None else self.probs[[node - 1 for node in nodes[1:]]]
        return replace(self, tree=tree, probs=probs, started=None)


@dataclass(frozen=True, slots=True)
class Scores:
    """What one pass of a model says of one row's tree.

    Attributes:
        logits: [N, V] at each node, for the token after it ([1, V], the last node, where only that was asked for).
        hidden: layer -> [N, D], Transformers' `hidden_states[layer]`, for the layers that were asked for.
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)

    def at(self, path: Sequence[int]) -> Scores:
        """The same, restricted to the nodes of a path."""
        index = torch.tensor(path, device=self.logits.device)
        return Scores(self.logits[index], self.hidden_at(path))

    def hidden_at(self, path: Sequence[int], layers: Collection[int] | None = None) -> dict[int, Tensor]:
        """`hidden` at the nodes of a path, of all its layers or of these: copies."""
        index = torch.tensor(path, device=self.logits.device)
        return {layer: self.hidden[layer][index] for layer in (self.hidden if layers is None else layers)}


class Divergence(NamedTuple):
    """How far the law that a relaxed rule used at one node lies from the target's.

    Attributes:
        tv: total variation, half the sum of the differences: 0 to 1.
        kl: Kullback-Leibler divergence of the law used from the target's, in nats; infinite where the rule may write a
            token that the target would never write.
    """

    tv: float
    kl: float


class Logprob(NamedTuple):
    """What the target thought of a token that was written: log-probabilities of its own law, before penalties,
    temperature and truncation.

    Attributes:
        own: of that token.
        top: (id, log-probability) of the likeliest tokens there, the likeliest first.
    """

    own: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        path: the nodes kept, node 0 first.
        token: the target's own token after the last of them.
        divergence: under a relaxed rule, one for each node of the path; empty under a lossless one.
    """

    path: tuple[int, ...]
    token: int
    divergence: tuple[Divergence, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a drafter may propose.

    Attributes:
        depth: at most so many tokens one after another.
        nodes: at most so many tokens altogether, where the drafter can make trees; as many as `depth` asks for a chain.
        stop: (law [V] that a token was drawn from, the token) -> whether to keep it and draft no further behind it.
            Only drafters that have a law ask. No token is dropped for what it is: that would bias rules that use q.
            For a greedy choice the law is `Law.spread`: a point mass would say nothing.
        law: whether `Draft.probs` is wanted even where the choice is deterministic (then `Law.spread`); the engine sets
            it for rules that mix the drafter's law in.
        reading: how many tokens of a text that it has not read yet a drafter with a model of its own may read now
            (`Drafter.reads`). It drafts once it has read all of it.
    """

    depth: int
    nodes: int = 0
    stop: Callable[[Tensor, int], bool] | None = None
    law: bool = False
    reading: int = UNBOUNDED

    def __post_init__(self) -> None:
        if self.nodes < self.depth:
            object.__setattr__(self, "nodes", self.depth)

    def cut(self, depth: int) -> Budget:
        """The same for a smaller depth. A chain stays a chain: nodes beyond the depth would ask for a tree."""
        return replace(self, depth=depth, nodes=self.nodes if depth and self.nodes > self.depth else depth)


@dataclass(frozen=True, slots=True)
class Round:
    """The one event of the loop. Statistics, traces and pages are made from these and from nothing else.

    Attributes:
        request: index of the request among those given to one call.
        number: which round of its request this is, from 0.
        start: absolute position of the first token committed here; the prefix before it is what the round stood on.
        tree: the draft, node 0 the pending token.
        path: the nodes kept, node 0 first, after trimming at EOS, stop strings and budgets.
        tokens: the tokens committed, in order, after the same trimming.
        finish: why the request ended here, or None.
        draft_seconds, verify_seconds: wall time of drafting and of the target's pass. Rows of a batch share a pass,
            and those with the same drafter its work; each of their rounds carries the whole time.
        divergence: under a relaxed rule, of the law that each committed token was drawn from; else empty.
        verdict_seconds: wall time of this row's own law and verdict. On a device that works behind the host's back it
            holds the wait for the pass too, in the round of the first row.
        rows, nodes: how many rows shared the pass, and how many nodes it had altogether. Rows that failed in it have no
            round and do not count.
        place: which of those rows this is, from 0, so that a pass can be counted once.
        began: when the pass began (`time.perf_counter`); all rounds of one pass, and no others, have the same.
        logprobs: one per committed token, where the request asked for them.
        read: see `Draft`.
        room: how many tokens the request may still have after this round, by its own limit and the target's context.
    """

    request: int
    number: int
    start: int
    tree: Tree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    finish: FinishReason | None
    draft_seconds: float
    verify_seconds: float
    verdict_seconds: float = 0.0
    rows: int = 1
    nodes: int = 0
    place: int = 0
    divergence: tuple[Divergence, ...] = ()
    began: float = 0.0
    logprobs: tuple[Logprob, ...] = ()
    read: int = 0
    room: int = UNBOUNDED

    def __post_init__(self) -> None:
        if not self.nodes:
            object.__setattr__(self, "nodes", len(self.tree))

    @property
    def drafted(self) -> int:
        """How many tokens were proposed."""
        return len(self.tree) - 1

    @property
    def accepted(self) -> int:
        """How many of them were kept, counted after trimming."""
        return len(self.path) - 1

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where each committed token came from."""
        last: Origin = "plain"
        if self.drafted:
            leaf = self.path[-1]
            last = "corrected" if bool((self.tree.parents == leaf).any()) else "bonus"
        origins: list[Origin] = ["accepted"] * self.accepted
        if len(origins) < len(self.tokens):
            origins.append(last)
        return tuple(origins)


class Noise(Protocol):
    """All randomness of one round of one request. Tests replace it by a script that enumerates every outcome."""

    def draws(self, probs: Tensor, positions: Sequence[int]) -> Sequence[int]:
        """One token per row of `probs` [N, V] (not necessarily normalised), for these absolute positions.

        Where noise is keyed by position, the same position has the same noise: drawing again from what is left of a law
        then gives the second of the same race, which is drawing without replacement.
        """
        ...

    def accept(self, prob: float) -> bool:
        """True with that probability; fresh noise at every call."""
        ...

    def categorical(self, probs: Tensor) -> int:
        """A token drawn from `probs` [V] (not necessarily normalised); fresh noise at every call."""
        ...
