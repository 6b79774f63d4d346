"""Draft as much as makes tokens per second most, and nothing where drafting does not pay.

Acceptance says little by itself: it can stay at 0.9 while speculation turns from a gain into a loss, as the batch grows
(vLLM #26504). So the rule weighs it against measured seconds. Acceptance is learned per request; what passes and drafts
cost is learned by all requests of one maker together, both from rounds alone. Where drafting does not pay, nothing is
asked of the drafter but a token now and then, more and more rarely, so that the rule notices when that changes. A draft
model that has the request's text to read first reads it when that pays (`reading`).

A pass is shared by the rows of a batch, and so is the decision: `Company` makes it for all of them at once. Rows with
another policy or another drafter ride along, and count as one node each. The choice is a function of the rounds alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from .. import tree as trees
from ..types import UNBOUNDED, Budget, Round
from .acceptance import DEEPEST, Acceptance, Branches, Chain, Slot
from .allocation import START, allocate, reach
from .base import Maker, Setting, no_argument
from .costs import Costs
from .reading import Ledger, Text

_PROBE = 1  # tokens of a probe
_BRIEFEST, _SHORTEST, _LONG, _LONGEST = 8, 16, 128, 1024  # rounds between probes: at first, cheap or dear; later
_OVERHEAD = 0.01  # share of the time that probes may take
_BRIEF = 16  # rounds; drafting that paid for no longer than that was a mistake
_RECENT = 4  # rounds without a draft after which the next one has to catch up, and its time is no measure
_PERSIST = 4  # probes that succeed, one after another, before the rule has to agree
_FADED = 1.0  # rounds that the past counts for when a probe asks anew
_SURE = [Slot(1.0, 1.0, depth) for depth in range(1, DEEPEST + 1)]  # the best draft that there could be


class _Phase(Enum):
    DRAFTING = auto()
    PAUSING = auto()
    PROBING = auto()


@dataclass(slots=True)
class Shared:
    """What the requests of one maker share.

    Attributes:
        costs: of their passes.
        ledger: what they know of reading.
        company: the rows of the latest pass, or of the one whose rounds are being told.
        newcomers: the requests that have had no pass yet and will most likely share their first one.
    """

    costs: Costs = field(default_factory=Costs)
    ledger: Ledger = field(default_factory=Ledger)
    company: Company | None = None
    newcomers: Company | None = None

    def welcome(self, member: Goodput) -> Company:
        """The company of a new request until its first pass."""
        if self.newcomers is None or self.newcomers.decided:
            self.newcomers = Company(self)
        self.newcomers.join(member)
        return self.newcomers

    def of(self, round_: Round) -> Company:
        """The company of this round's pass; the first of its rows opens it. Its place tells that where nothing else
        does, but the first row of a pass may be none of ours."""
        if self.company is None or round_.place == 0 or round_.began != self.company.began:
            if self.company is not None:
                self.company.settle()
            self.company = Company(self, round_.began)
        return self.company


class Company:
    """The rows of one pass: what it cost, and what they will ask for in the next.

    Args:
        shared: where that is written down.
        began: when the pass began, by which its rounds are known.

    Attributes:
        decided: whether they know by now.
    """

    def __init__(self, shared: Shared, began: float = 0.0) -> None:
        self.decided, self.began = False, began
        self._costs, self._ledger = shared.costs, shared.ledger
        self._members: list[Goodput] = []
        # Rows, nodes, seconds and seconds of drafting, until that is written down.
        self._pass: tuple[int, int, float, float] | None = None
        self._others = 0  # rows of the pass that are none of ours
        self._seconds, self._deepest, self._seen = 0.0, 0, 0
        self._asked, self._catching_up, self._read = False, False, 0

    def join(self, member: Goodput) -> None:
        """Take a row in that will have another round."""
        self._members.append(member)

    def observe(self, round_: Round, depth: int, *, asked: bool, catching_up: bool) -> None:
        """Take note of one row's round; the last one completes the pass."""
        self._seconds += round_.verdict_seconds
        self._deepest = max(self._deepest, depth)
        self._asked, self._catching_up = self._asked or asked, self._catching_up or catching_up
        self._read += round_.read
        self._seen += 1
        self._others = round_.rows - self._seen
        self._pass = (round_.rows, round_.nodes, round_.verify_seconds, round_.draft_seconds)
        if not self._others:
            self.settle()

    def settle(self) -> None:
        """Write down what the pass cost, once no more of its rounds are to come."""
        if self._pass is not None:
            rows, nodes, seconds, drafting = self._pass
            self._costs.add(rows, nodes, seconds + self._seconds)
            if self._read:
                self._ledger.add(self._read, drafting)
            elif self._asked:
                self._costs.add_draft(rows, self._deepest, drafting, at_most=self._catching_up)
        self._pass = None

    def decide(self) -> None:
        """Tell every member what to ask for next."""
        self.decided = True
        self.settle()
        rows = self._rows
        verify, draft = self._costs.verify(rows), self._costs.draft(rows)
        for member in self._members:
            member.allow(verify.at(rows) if verify else None, rows)
        if verify is None:
            for member in self._members:
                member.ask(Budget(max(1, START // rows)))
            return
        longest = self.fair_pause if self._busy else _LONGEST  # beside rows that draft, a probe may cost less
        if any(member.probe_is_due(longest) for member in self._members):  # together: they share the drafter's time
            for member in self._members:
                member.probe()
        most = reach(verify, rows)
        slots = [*(member.slots(most) for member in self._members), *[[]] * self._others]
        counts, gain = allocate(slots, verify, draft)
        if any(member.has_read for member in self._members):
            self._ledger.add_gain(gain)
        if self._costs.plain_is_due(rows, gain):
            for member in self._members:
                member.ask(Budget(0))
            return
        hopeful = any(counts) or any(allocate([_SURE] * rows, verify, draft)[0])
        for member, own, count in zip(self._members, slots, counts, strict=False):  # those of the others are empty
            if count:
                member.draft(Budget(own[count - 1].depth, count))
            else:
                alone, _ = allocate([own, *[()] * (rows - 1)], verify, draft)
                member.rest(crowded_out=alone[0] > 0, hopeful=hopeful)

    @property
    def _rows(self) -> int:
        """How many rows the next pass will have, as far as is known."""
        return len(self._members) + self._others

    @property
    def _busy(self) -> bool:
        """Whether the drafter is at work anyway."""
        return any(member.drafting for member in self._members)

    @property
    def fair_pause(self) -> int:
        """Rounds between probes after which they take no more than `_OVERHEAD` of the time."""
        rows = self._rows
        verify, draft = self._costs.verify(rows), self._costs.draft(rows)
        if verify is None:
            return _LONGEST
        plain = verify.at(rows)
        if self._busy:
            extra = verify.at(rows + _PROBE) - plain
        else:
            extra = verify.at(rows * (1 + _PROBE)) - plain + (draft.at(_PROBE) if draft else 0.0)
        return int(min(_LONGEST, max(1, extra / (_OVERHEAD * plain))))


class Goodput:
    """One request's share in the decision.

    Args:
        shared: with the other requests of the same maker.
        makes_trees: the drafter spends `Budget.nodes` on branches.
        reads: it has a model that reads the text before its first draft.
    """

    def __init__(self, shared: Shared | None = None, *, makes_trees: bool = False, reads: bool = False) -> None:
        self._shared = shared or Shared()
        self._text = Text(self._shared.ledger) if reads else None
        self._reading = UNBOUNDED
        self._acceptance: Acceptance = Branches() if makes_trees else Chain()
        self._company = self._shared.welcome(self)
        self._next: Budget | None = None
        self._phase, self._confirmed = _Phase.DRAFTING, 0
        self._pause, self._paused = 0, 0  # rounds that the latest pause was meant to have, and has had
        self._rounds = 0  # that asked for drafts since it began
        self._idle = _RECENT  # rounds since the last of them; to begin with, a draft model has the prompt to read

    def budget(self) -> Budget:
        """See `Policy`."""
        if self._next is None:
            self._company.decide()
        assert self._next is not None, "the company tells every member"
        return self._next

    def observe(self, round_: Round) -> None:
        """See `Policy`. The rounds of a pass come one after another, in the order of their places."""
        asked = self.budget().depth
        depth = int(trees.depths(round_.tree.parents).max())
        company = self._shared.of(round_)
        if self._text is not None:
            self._text.observe(round_)
        company.observe(round_, depth, asked=asked > 0, catching_up=asked > 0 and self._idle >= _RECENT)
        if round_.finish is not None:
            self._next = Budget(0)
            return
        self._learn(round_, asked, depth)
        company.join(self)
        self._company, self._next = company, None

    def ask(self, budget: Budget) -> None:
        """What to ask for in the next round."""
        self._next = replace(budget, reading=self._reading)

    def allow(self, plain: float | None, rows: int) -> None:
        """Decide how much of a text that was not read yet may be read now; see `Text.allowance`."""
        if self._text is not None:
            self._reading = self._text.allowance(plain, rows)

    @property
    def has_read(self) -> bool:
        """Whether it drafts with a model that has read the text."""
        return self._text is not None and self._text.read

    @property
    def drafting(self) -> bool:
        """Whether its drafts pay, as far as is known."""
        return self._phase is _Phase.DRAFTING

    def probe_is_due(self, longest: int) -> bool:
        """Whether it has paused long enough, where `longest` rounds are enough for anybody."""
        return self._phase is _Phase.PAUSING and self._paused >= min(self._pause, longest)

    def probe(self) -> None:
        """End a pause: ask anew, with less faith in the past."""
        if self._phase is _Phase.PAUSING:
            self._phase, self._confirmed = _Phase.PROBING, 0
            self._acceptance.fade(_FADED)

    def slots(self, most: int) -> list[Slot]:
        """What its draft could be; nothing while it pauses, or probes without success so far."""
        trying = self.drafting or (self._phase is _Phase.PROBING and self._confirmed > 0)
        return self._acceptance.slots(most) if trying else []

    def draft(self, budget: Budget) -> None:
        """Its draft pays."""
        if self._phase is _Phase.PROBING:
            self._phase, self._rounds = _Phase.DRAFTING, 0
        self.ask(budget)

    def rest(self, *, crowded_out: bool, hopeful: bool) -> None:
        """Its draft does not pay.

        Args:
            crowded_out: but would, if those of other rows did not pay more.
            hopeful: the best of drafts would pay.
        """
        in_vain = self._phase is _Phase.PROBING and self._confirmed >= (_PERSIST if hopeful else 1)
        if in_vain or (self.drafting and not crowded_out):
            self._begin_pause()
        curious = self.drafting and self._idle >= _SHORTEST
        self.ask(Budget(_PROBE if curious or self._phase is _Phase.PROBING else 0))

    def _learn(self, round_: Round, asked: int, depth: int) -> None:
        self._paused += 1
        if not asked or (not depth and self._reading < UNBOUNDED):
            self._idle += 1
            return
        self._idle, self._rounds = 0, self._rounds + 1
        self._acceptance.observe(round_, asked, depth)
        if self._phase is _Phase.PROBING and depth:
            self._confirmed += 1
            if not round_.accepted:
                self._begin_pause()

    def _begin_pause(self) -> None:
        """Pause for longer than the last time, unless drafting has paid in between; up to twice as long."""
        paid = self.drafting and self._rounds >= _BRIEF
        longer = min(2 * self._pause, max(min(self._pause * 5 // 4, _LONG), self._company.fair_pause))
        shortest = min(_SHORTEST, max(_BRIEFEST, self._company.fair_pause))
        self._pause = shortest if paid else max(shortest, longer)
        self._phase, self._paused = _Phase.PAUSING, 0


def make(argument: str, setting: Setting) -> Maker:
    """`goodput`.

    Raises:
        BadOption: there is an argument.
    """
    no_argument("goodput", argument)
    shared = Shared()
    return lambda: Goodput(shared, makes_trees=setting.makes_trees, reads=setting.reads)
