"""What shorter drafts would have done to an answer that was recorded with long ones. Pure; knows no models.

Survival measured with drafts of K tokens is not that of shorter ones: rounds begin elsewhere, and stretches that are
easy to draft make up fewer of the long rounds than of the short ones (docs/speed.md). So the recorded answer is gone
through again. Its text is what it is, whatever the draft length. A draft that begins in the middle of a recorded one is
taken to go on as that one did: a drafter that wrote "a b c" behind x writes "b c" behind "x a".

What came behind a recorded draft that was kept to its end nobody tried. It is taken to have been kept with the chance
that a token is kept once the one before it was, over the whole recording, and to go on as the next round's draft did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from .. import tree as trees
from ..speed import acceptance_length
from ..types import Round
from .results import RoundFigures
from .shapes import Shape


@dataclass(frozen=True, slots=True)
class Drafted:
    """A recorded round.

    Attributes:
        parents: of the draft's nodes, node 0 first (-1), in the order of what they are worth.
        path: the nodes kept, node 0 first.
        tokens: committed.
        levels: of the nodes.
    """

    parents: tuple[int, ...]
    path: tuple[int, ...]
    tokens: int
    levels: tuple[int, ...]

    @classmethod
    def of(cls, round_: Round) -> Drafted:
        """From the loop's own event."""
        parents = round_.tree.parents
        return cls(tuple(parents.tolist()), round_.path, len(round_.tokens), tuple(trees.depths(parents).tolist()))

    @classmethod
    def of_chain(cls, figures: RoundFigures) -> Drafted:
        """From a round in figures, whose draft had no branches."""
        parents, levels = tuple(range(-1, figures.drafted)), tuple(range(figures.drafted + 1))
        return cls(parents, levels[: figures.accepted + 1], figures.tokens, levels)

    @property
    def accepted(self) -> int:
        """Tokens drafted and kept."""
        return len(self.path) - 1

    def open_ended(self) -> bool:
        """Whether nothing was drafted behind the last node that was kept."""
        return self.path[-1] not in self.parents

    def under(self, node: int, shape: Shape) -> list[int]:
        """The nodes behind one that a draft of this shape would have, had it begun there."""
        inside = {node}
        found = []
        for other in range(node + 1, len(self.parents)):
            if self.parents[other] in inside and self.levels[other] - self.levels[node] <= shape.depth:
                inside.add(other)
                found.append(other)
        return found[: shape.nodes]


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer.

    Attributes:
        rounds: all of them.
        cut: whether it ended for its length, so that drafts near its end had to be shorter.
    """

    rounds: tuple[Drafted, ...]
    cut: bool


class Outcome(NamedTuple):
    """What one draft may come to.

    Attributes:
        chance: of it.
        accepted: tokens kept.
        drafted: tokens drafted.
    """

    chance: float
    accepted: int
    drafted: int


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What drafts of one shape come to, on average over the rounds of all answers.

    Attributes:
        tokens: committed per round; a little less than 1 + the sum of `survival`, as the last round of an answer may
            end before its bonus token.
        survival: s_k, the share of rounds in which tokens 1..k are kept, rounds without a draft included.
        rate: accepted / drafted; 0 if nothing is drafted.
        drafted: share of the rounds by how many tokens they draft: the n-th number is that of n tokens.
    """

    tokens: float
    survival: tuple[float, ...]
    rate: float
    drafted: tuple[float, ...]

    @property
    def length(self) -> float:
        """Tokens per round by the speed model."""
        return acceptance_length(self.survival)

    @property
    def acceptance_length(self) -> float:
        """Tokens per round that has a draft, bonus included; there is one. Rounds without commit one token each."""
        idle = self.drafted[0]
        return (self.tokens - idle) / (1 - idle)


PLAIN = Behaviour(tokens=1.0, survival=(), rate=0.0, drafted=(1.0,))


@dataclass(frozen=True)
class Recording:
    """What a drafter did, asked for as much as `asked` in every round."""

    asked: Shape
    answers: tuple[Answer, ...]

    @cached_property
    def ranks(self) -> tuple[float, ...]:
        """r_b: of the nodes on kept paths that had children, the share whose b-th child was kept."""
        opened = 0
        kept: dict[int, int] = {}
        for round_ in self._rounds:
            for rank, right in trees.looks(torch.tensor(round_.parents), round_.path):
                opened += rank == 0
                kept[rank] = kept.get(rank, 0) + right
        return tuple(kept[rank] / opened for rank in sorted(kept))

    @cached_property
    def going_on(self) -> float:
        """The chance that a token is kept once the drafted one before it was."""
        begun = [round_ for round_ in self._rounds if round_.accepted]
        kept = sum(round_.accepted - 1 for round_ in begun)
        tried = kept + sum(not round_.open_ended() for round_ in begun)
        return kept / tried if tried else 0.0

    @property
    def _rounds(self) -> Iterator[Drafted]:
        return (round_ for answer in self.answers for round_ in answer.rounds)

    def behaviour(self, shape: Shape) -> Behaviour:
        """What drafts of this shape, no larger than what was asked, come to.

        There is at least one round.
        """
        rounds = tokens = accepted = 0.0
        reached, drafted = [0.0] * (shape.depth + 1), [0.0] * (shape.nodes + 1)
        for answer in self.answers:
            for weight, committed, outcome in self._walk(answer, shape):
                rounds += weight
                tokens += weight * committed
                accepted += weight * outcome.accepted
                reached[outcome.accepted] += weight
                drafted[outcome.drafted] += weight
        offered = sum(count * weight for count, weight in enumerate(drafted))
        at_least = list(accumulate(reversed(reached)))[::-1]
        return Behaviour(
            tokens=tokens / rounds,
            survival=tuple(weight / rounds for weight in at_least[1:]),
            rate=accepted / offered if offered else 0.0,
            drafted=tuple(weight / rounds for weight in drafted),
        )

    def _walk(self, answer: Answer, shape: Shape) -> Iterator[tuple[float, int, Outcome]]:
        """The rounds that an answer would have had: each one's chance, the tokens it commits, and its draft."""
        starts = list(accumulate((round_.tokens for round_ in answer.rounds), initial=0))
        weights = [1.0] + [0.0] * starts[-1]
        for place, (start, end) in enumerate(pairwise(starts)):
            for here in range(start, end):
                left = starts[-1] - here
                own = shape.cut(left - 1) if answer.cut else shape
                for outcome in self._outcomes(answer.rounds, place, here - start, own) if weights[here] else ():
                    committed = min(outcome.accepted + 1, left)
                    weight = weights[here] * outcome.chance
                    weights[here + committed] += weight
                    yield weight, committed, outcome

    def _outcomes(self, rounds: Sequence[Drafted], place: int, offset: int, shape: Shape) -> Iterator[Outcome]:
        """What a draft comes to that begins `offset` tokens into a recorded round."""
        round_ = rounds[place]
        nodes = round_.under(round_.path[offset], shape)
        full = len(round_.parents) > self.asked.nodes  # it had as much as was asked, so a draft here would too
        known = shape.nodes if full else len(nodes)
        inside = set(nodes)
        accepted = next(
            (count for count, node in enumerate(round_.path[offset + 1 :]) if node not in inside),
            round_.accepted - offset,
        )
        at_its_end = accepted == round_.accepted - offset and accepted < shape.depth and round_.open_ended()
        untried = offset > 0 and at_its_end and (full or accepted == 0)
        if not untried or place + 1 == len(rounds):
            yield Outcome(1.0, accepted, known)
            return
        yield Outcome(1 - self.going_on, accepted, known)
        rest = Shape(shape.depth - accepted - 1, shape.nodes - accepted - 1)
        for outcome in self._outcomes(rounds, place + 1, 0, rest):
            longer = accepted + 1 + outcome.accepted
            drafted = known if full else min(shape.nodes, len(nodes) + 1 + outcome.drafted)
            yield Outcome(self.going_on * outcome.chance, longer, drafted)
