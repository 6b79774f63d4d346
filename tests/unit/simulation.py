"""A world for policies: known acceptance, known costs, noisy clocks. No model is needed.

A world tells policies what an engine would, round by round, with luck in acceptance and disturbances of the clocks.
What a policy is worth is reckoned without either: by the expected tokens and the undisturbed seconds of what it asked
for.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from outrider.policy import Policy
from outrider.types import Budget, Round, Tree

Seconds = Callable[[int], float]
Rate = Callable[[int, int, int], float]


@cache
def chain(length: int) -> Tree:
    """A draft of so many tokens, whatever they are."""
    return Tree.chain([0] * (length + 1))


def flat(size: int) -> float:
    """Every pass costs the same."""
    return 1.0


def nothing(size: int) -> float:
    """Drafting is free."""
    return 0.0


def rising(slope: float, free: int = 1) -> Seconds:
    """Seconds that rise by `slope` with each node behind the first `free` ones."""
    return lambda nodes: 1.0 + slope * max(0, nodes - free)


def always(rate: float, decay: float = 1.0) -> Rate:
    """The same acceptance in all rounds and rows, falling with the position."""
    return lambda number, row, position: rate * decay ** (position - 1)


@dataclass
class World:
    """Costs and acceptance.

    Attributes:
        rate: (round, row, position from 1) -> chance that a draft token is kept once those before it were.
        verify: seconds of a pass by its nodes.
        draft: seconds of drafting by the deepest draft.
        longest: how many tokens the drafter has to offer at most, drawn anew for each row and round.
        noise, outliers: spread of the clocks, and the chance that one reads ten times as much.
        load: round -> by how much the machine is slower then.
        seed: of everything that is drawn.
    """

    rate: Rate
    verify: Seconds = flat
    draft: Seconds = nothing
    longest: Callable[[random.Random], int] = lambda chance: 1000
    noise: float = 0.05
    outliers: float = 0.03
    load: Callable[[int], float] = lambda number: 1.0
    seed: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def clock(self, seconds: float, number: int) -> float:
        """What is read off for so many seconds."""
        slow = 10 if self.chance.random() < self.outliers else 1
        return seconds * self.load(number) * slow * self.chance.lognormvariate(0, self.noise)

    def accepted(self, number: int, row: int, drafted: int) -> int:
        """How many of so many tokens are kept, by luck."""
        kept = 0
        while kept < drafted and self.chance.random() < self.rate(number, row, kept + 1):
            kept += 1
        return kept

    def expected(self, number: int, row: int, drafted: int) -> float:
        """Tokens of a round with such a draft, on average."""
        tokens = survival = 1.0
        for position in range(1, drafted + 1):
            survival *= self.rate(number, row, position)
            tokens += survival
        return tokens

    def fixed(self, depth: int, rows: int = 1) -> float:
        """Tokens per second of a fixed depth, as things are in round 0 and with drafts of every length."""
        tokens = sum(self.expected(0, row, depth) for row in range(rows))
        return tokens / ((self.draft(depth) if depth else 0.0) + self.verify(rows * (depth + 1)))

    def best(self, rows: int = 1) -> float:
        """Tokens per second of the best fixed depth."""
        return max(self.fixed(depth, rows) for depth in range(33))


@dataclass
class Run:
    """What came of it, per round: depths asked for and drafted by row, expected tokens and undisturbed seconds."""

    asked: list[list[int]] = field(default_factory=list)
    drafted: list[list[int]] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def goodput(self, start: int = 0, end: int | None = None) -> float:
        """Tokens per second over these rounds."""
        return sum(self.tokens[start:end]) / sum(self.seconds[start:end])

    def depths(self, row: int = 0) -> list[int]:
        """What one row asked for, round by round."""
        return [asked[row] for asked in self.asked]


def live(world: World, policies: Sequence[Policy], rounds: int) -> Run:
    """Serve a batch for so many rounds, one policy per row."""
    run, rows = Run(), len(policies)
    for number in range(rounds):
        asked = [policy.budget().depth for policy in policies]
        drafted = [min(depth, world.longest(world.chance)) if depth else 0 for depth in asked]
        nodes = sum(drafted) + rows
        draft, verify = world.draft(max(drafted)), world.verify(nodes)
        clocks = (world.clock(draft, number), world.clock(verify, number), 0.0)
        for row, (policy, depth) in enumerate(zip(policies, drafted, strict=True)):
            path = tuple(range(world.accepted(number, row, depth) + 1))
            policy.observe(Round(row, number, 1, chain(depth), path, (0,) * len(path), None, *clocks, rows, nodes, row))
        run.asked.append(asked)
        run.drafted.append(drafted)
        run.tokens.append(sum(world.expected(number, row, depth) for row, depth in enumerate(drafted)))
        run.seconds.append(draft + verify)
    return run


@dataclass(frozen=True)
class Grown:
    """The best tree of a budget where the n-th child of any node is right with the n-th chance."""

    tree: Tree
    chances: tuple[float, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, ranks: Sequence[float], budget: Budget) -> Grown:
        """Best first on the product of chances, no deeper and no larger than the budget."""
        parents, chances, own, depths = [-1], [1.0], [0], [0]
        waiting = [(-ranks[0], 0, 0)] if budget.depth else []  # minus its chance, its parent, its rank
        while waiting and len(parents) <= budget.nodes:
            chance, parent, rank = heapq.heappop(waiting)
            node = len(parents)
            parents.append(parent)
            chances.append(-chance)
            own.append(rank)
            depths.append(depths[parent] + 1)
            if rank + 1 < len(ranks):
                heapq.heappush(waiting, (-chances[parent] * ranks[rank + 1], parent, rank + 1))
            if depths[node] < budget.depth:
                heapq.heappush(waiting, (chance * ranks[0], node, 0))
        tree = Tree(torch.zeros(len(parents), dtype=torch.int64), torch.tensor(parents))
        return cls(tree, tuple(chances), tuple(own))

    def walk(self, ranks: Sequence[float], chance: random.Random) -> tuple[int, ...]:
        """The nodes kept, by luck."""
        path, parents = [0], self.tree.parents.tolist()
        while True:
            right = chance.choices(range(len(ranks) + 1), [*ranks, 1 - sum(ranks)])[0]
            below = [node for node, parent in enumerate(parents) if parent == path[-1] and self.ranks[node] == right]
            if not below:
                return tuple(path)
            path += below
