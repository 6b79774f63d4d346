"""Whether a drafter that runs a model of its own should read a request's text, which it has to before its first draft.

Reading a prompt of 700 tokens takes a draft model as long as its target takes to write some 25, and pays only where the
answer is long enough. So it is weighed: the seconds that reading takes, learned by all requests of one maker, against
what drafting is likely to save in the rounds that are still to come and that go without a draft so far. Knows rounds
alone, and no models.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from ..types import UNBOUNDED, Round

TRIAL = 32  # tokens that are read to learn what reading costs
_PER_TOKEN = 1 / 32  # of a plain pass: what a token is believed to cost, only to decide upon the trial
_SAVING = 0.25  # share of a plain pass that a draft is believed to save
_LEAST = 0.03  # drafting that saved nothing in one text may do so in another
_MEMORY = 0.99  # what a round's saving counts, once another one has drafted
_RETURN = 0.05  # of the first belief that comes back with each answer that went without
_LENGTH = 128.0  # tokens of an answer, before any was written to its end
_ANSWERS = 16  # that count
_WINDOW = 9  # readings that count
_DOUBT = 16  # tokens that other drafters are believed to have copied before the first one: answers may yet copy, or end


class Ledger:
    """What the requests of one maker have learned of reading."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)  # per token
        self._lengths: deque[int] = deque(maxlen=_ANSWERS)
        self._saving = _SAVING

    def add(self, tokens: int, seconds: float) -> None:
        """Take note of so many tokens having been read in this time."""
        self._seconds.append(max(0.0, seconds) / tokens)

    def add_answer(self, tokens: int, *, read: bool) -> None:
        """Take note of an answer's length, and of whether its text was read. One that was not says nothing of what
        drafting would have saved, and others may be different from the last ones that were."""
        self._lengths.append(tokens)
        if not read:
            self._saving += _RETURN * (_SAVING - self._saving)

    def add_gain(self, gain: float) -> None:
        """Take note of how many times as fast as plain decoding a round of a text that was read promises to be."""
        self._saving = _MEMORY * self._saving + (1 - _MEMORY) * (1 - 1 / gain)

    @property
    def saving(self) -> float:
        """Share of a plain pass that drafting saves."""
        return max(_LEAST, self._saving)

    @property
    def length(self) -> float:
        """Tokens of an answer."""
        return median(self._lengths) if self._lengths else _LENGTH

    @property
    def per_token(self) -> float | None:
        """Seconds that a token takes to read; None before anything was read."""
        return median(self._seconds) if self._seconds else None


class Text:
    """One request's text, which may have been read or not.

    Args:
        ledger: what is known of reading.

    Attributes:
        read: it was decided that the drafter reads it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.read = False
        self._ledger = ledger
        self._length = self._written = self._dull = self._room = 0

    def observe(self, round_: Round) -> None:
        """Learn from a round of the request."""
        self._length = round_.start + len(round_.tokens)
        self._written += len(round_.tokens)
        self._dull += len(round_.tokens) == 1
        self._room = round_.room
        if round_.finish is not None:
            self._ledger.add_answer(self._written, read=self.read)

    def allowance(self, plain: float | None, rows: int) -> int:
        """How many tokens of it may be read now.

        Args:
            plain: seconds of a plain pass; None where that is not known.
            rows: how many requests wait meanwhile.
        """
        if self.read:
            return UNBOUNDED
        if plain is None or not self._written:
            return 0
        saved, known = self._dull_ahead * plain * self._ledger.saving, self._ledger.per_token
        if known is None:
            return TRIAL if saved > rows * TRIAL * _PER_TOKEN * plain else 0
        self.read = saved > rows * self._length * known
        return UNBOUNDED if self.read else 0

    @property
    def _dull_ahead(self) -> float:
        """How many rounds of a single token are to be expected, if all goes on like this.

        An answer that has outgrown the usual length is expected to become twice as long as it is.
        """
        ahead = min(self._room, max(self._ledger.length - self._written, self._written))
        return ahead * self._dull / (self._written + _DOUBT)
