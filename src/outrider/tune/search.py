"""Which drafter, which length or tree, which batch: predictions, their front, and the best of them. Pure.

Two things are wanted that pull apart: speed for each user, and tokens per second altogether. A larger batch gives more
of the second and less of the first. So there is no single best, but a front: what nothing else beats in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..measure.recorded import PLAIN as ALONE
from ..measure.recorded import Behaviour, Recording
from ..measure.results import PLAIN, Case
from ..measure.shapes import Shape
from ..speed import acceptance_length_iid, break_even, goodput, naive, speedup, tree_length
from ..tree import best_shape
from .prices import Level, Prices, Seconds

Goal = Literal["latency", "throughput"]


ADAPTIVE = "goodput"  # the policy of a setting that leaves the length to it


@dataclass(frozen=True, slots=True)
class Setting:
    """What can be chosen.

    Attributes:
        drafter: its spec; "none" is plain decoding.
        shape: what it is asked for in every round; None where the policy `ADAPTIVE` decides, and for plain decoding.
        batch: requests served together.
    """

    drafter: str
    shape: Shape | None
    batch: int

    @property
    def policy(self) -> str | None:
        """The spec of its policy; None for plain decoding."""
        if self.drafter == PLAIN:
            return None
        return ADAPTIVE if self.shape is None else self.shape.policy

    def case(self, verifier: str, temperature: float) -> Case:
        """As the runner and results know it."""
        plain = Case(drafter=PLAIN, batch=self.batch, temperature=temperature)
        if self.drafter == PLAIN:
            return plain
        k = self.shape.depth if self.shape is not None and not self.shape.is_tree else None
        parts = {"drafter": self.drafter, "verifier": verifier, "policy": self.policy, "k": k}
        return plain.model_copy(update=parts)

    @property
    def name(self) -> str:
        """For tables."""
        how = "" if self.drafter == PLAIN else f" {ADAPTIVE if self.shape is None else self.shape.name}"
        return f"{self.drafter}{how}" + (f", batch {self.batch}" if self.batch > 1 else "")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a setting promises.

    Attributes:
        setting: it.
        behaviour: of its drafts.
        seconds: of a round.
        plain_seconds: of a round of plain decoding with the same batch.
        equal_chances: the speedup by the formula for acceptance that is the same everywhere: of a chain, fed with the
            acceptance rate; of a tree, by rank. Shown beside `speedup`, which assumes nothing. None for plain decoding.
        naive: what the widely copied formula calls the speedup of a chain, and is wrong; None elsewhere.
    """

    setting: Setting
    behaviour: Behaviour
    seconds: Seconds
    plain_seconds: float
    equal_chances: float | None = None
    naive: float | None = None

    @property
    def per_user(self) -> float:
        """Tokens per second of one request."""
        return goodput(self.behaviour.tokens, self.seconds.total)

    @property
    def throughput(self) -> float:
        """Tokens per second of all requests."""
        return self.setting.batch * self.per_user

    @property
    def speedup(self) -> float:
        """Against plain decoding with the same batch."""
        return speedup(self.behaviour.tokens, self.plain_seconds, self.seconds.total)

    @property
    def needed(self) -> float:
        """Tokens per round at which nothing would be gained."""
        return break_even(self.plain_seconds, self.seconds.total)

    def value(self, goal: Goal) -> tuple[float, float]:
        """What is to be made most of, and what decides between equals."""
        both = (self.per_user, self.throughput)
        return both if goal == "latency" else both[::-1]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of a drafter.

    Attributes:
        drafter: its spec.
        recording: of its drafts.
        level: of its rounds' times.
    """

    drafter: str
    recording: Recording
    level: Level


def predict(
    plain: Level,
    recorded: Iterable[Recorded],
    prices: Prices,
    shapes: Sequence[Shape],
    batches: Sequence[int],
) -> list[Prediction]:
    """Every setting there is, plain decoding first.

    A chain is predicted from the recording of a chain, a tree from that of a tree, as far as it fits in.

    Args:
        plain: how plain decoding went.
        recorded: how the drafters went.
        prices: of rounds.
        shapes: chains and trees to look at.
        batches: requests served together.
    """
    found = [
        _alone(Setting(PLAIN, None, batch), prices.plain(plain, batch)) for batch in batches
    ]  # each is its own reference
    floors = {prediction.setting.batch: prediction.plain_seconds for prediction in found}
    for run in recorded:
        asked = run.recording.asked
        for shape in shapes:
            if not shape.fits(asked):
                continue
            behaviour = run.recording.behaviour(shape)
            for batch in batches:
                seconds = prices.speculative(run.level, run.drafter, asked, shape, behaviour, batch)
                beside = _beside(run.recording, shape, behaviour, seconds.total, floors[batch])
                setting = Setting(run.drafter, shape, batch)
                found.append(Prediction(setting, behaviour, seconds, floors[batch], *beside))
    return found


def _alone(setting: Setting, seconds: Seconds) -> Prediction:
    return Prediction(setting, ALONE, seconds, seconds.total)


def _beside(
    recording: Recording, shape: Shape, behaviour: Behaviour, seconds: float, plain: float
) -> tuple[float, float | None]:
    """What simpler formulas make of the same acceptance."""
    if shape.is_tree:
        length = tree_length(best_shape(recording.ranks, shape.depth, shape.nodes), recording.ranks)
        return speedup(length, plain, seconds), None
    length = acceptance_length_iid(behaviour.rate, shape.depth)
    return speedup(length, plain, seconds), naive(behaviour.rate, shape.depth)


def front(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those that no other one beats in both speed per user and throughput, from the fastest per user on."""
    found: list[Prediction] = []
    for prediction in sorted(predictions, key=lambda one: one.value("latency"), reverse=True):
        if not found or prediction.throughput > found[-1].throughput:
            found.append(prediction)
    return found


def best(predictions: Sequence[Prediction], goal: Goal) -> Prediction:
    """The one that serves the goal best; of equals the first, so that plain decoding wins a tie."""
    return max(predictions, key=lambda one: one.value(goal))


def contenders(predictions: Sequence[Prediction], goal: Goal, count: int) -> list[Prediction]:
    """Which of those with drafts to run before one is chosen: the best of each drafter and kind of shape, best first.

    Neighbouring lengths of one drafter differ by less than a run can tell; where there are fewer kinds than wanted, the
    next best fill up.
    """
    ranked = sorted((one for one in predictions if one.setting.shape), key=lambda one: one.value(goal), reverse=True)
    kinds: dict[tuple[str, bool], Prediction] = {}
    for one in ranked:
        kinds.setdefault((one.setting.drafter, one.setting.shape is not None and one.setting.shape.is_tree), one)
    chosen = list(kinds.values())[:count]
    chosen += [one for one in ranked if one not in chosen][: count - len(chosen)]
    return sorted(chosen, key=lambda one: one.value(goal), reverse=True)
