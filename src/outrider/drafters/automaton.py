"""All short substrings of texts with their counts, found as fast as the text is read. Knows tokens, nothing else.

A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985): its states are
classes of substrings that end at the same places, so a class has one count and one set of successors, and there are
fewer than two classes per token. Reading a token takes amortised constant time for the structure and at most
`longest + 1` steps for the counts, of which an ordinary text takes a handful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import nlargest

LEAST = 0.1  # a path whose chance falls below this is not worth a place in a pass


class Automaton:
    """Counts of every substring of at most `longest + 1` tokens; texts may be added one after another.

    States are numbers: 0 is the empty substring. A *context* is a state that stands for at most `longest` tokens.

    Args:
        longest: tokens that are told apart; what lies further back plays no part.
        doubt: a match of as many tokens is believed by half; see `successors`.

    Attributes:
        longest, doubt: as given.
        size: tokens read.
    """

    def __init__(self, longest: int, doubt: float = 0.0) -> None:
        self.longest, self.doubt = longest, doubt
        self.size = 0
        # By state:
        self._next: list[dict[int, int]] = [{}]  # token -> state
        self._link = [-1]  # the longest suffix that ends at more places
        self._length = [0]  # tokens of the longest substring of the class
        self._occurred = [0]  # at how many places the class ends
        self._followed = [0]  # and at how many of them another token follows
        self._best = [-1]  # the commonest next state, the latest of equally common ones
        self._token = [-1]  # the last token
        self.start()

    def start(self) -> None:
        """Begin another text: nothing before it is taken as its context."""
        self._last = 0  # the whole text
        self._context, self._width = 0, 0  # its last `longest` tokens, and how many those are

    @property
    def context(self) -> tuple[int, int]:
        """The context at the end of the text, and how many tokens it stands for."""
        return self.settled(self._context, self._width), self._width

    def add(self, text: Sequence[int]) -> None:
        """Read a text of its own."""
        self.start()
        for token in text:
            self.append(token)

    def append(self, token: int) -> None:
        """Read one more token."""
        self.size += 1
        self._grow(token)
        context = self._count(self.settled(self._context, self._width), token)
        self._context, self._width = self._cut(context), min(self._width + 1, self.longest)

    def _grow(self, token: int) -> None:
        """The structure: the states that end here are told from those they were one with."""
        nexts, link, length, last = self._next, self._link, self._length, self._last
        known = nexts[last].get(token)
        if known is not None:  # an earlier text began alike
            self._last = known if length[known] == length[last] + 1 else self._split(last, token, known)
            return
        state, new = last, self._new({}, 0, length[last] + 1, 0, 0, -1, token)
        while state >= 0 and token not in nexts[state]:
            nexts[state][token] = new
            state = link[state]
        if state >= 0:
            known = nexts[state][token]
            link[new] = known if length[known] == length[state] + 1 else self._split(state, token, known)
        self._last = new

    def _split(self, state: int, token: int, known: int) -> int:
        """Give the short substrings of a class a class of their own, now that they end where the long ones do not."""
        nexts, link, best = self._next, self._link, self._best
        new = self._new(
            dict(nexts[known]),
            link[known],
            self._length[state] + 1,
            self._occurred[known],
            self._followed[known],
            best[known],
            token,
        )
        link[known] = new
        while state >= 0 and nexts[state].get(token) == known:
            nexts[state][token] = new
            if best[state] == known:
                best[state] = new
            state = link[state]
        return new

    def _new(
        self, following: dict[int, int], link: int, length: int, occurred: int, followed: int, best: int, token: int
    ) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._occurred.append(occurred)
        self._followed.append(followed)
        self._best.append(best)
        self._token.append(token)
        return len(self._link) - 1

    def _count(self, context: int, token: int) -> int:
        """The counts of all contexts that `token` has followed here; the state it led to from the longest."""
        nexts, link, occurred, followed, best = self._next, self._link, self._occurred, self._followed, self._best
        reached, before = nexts[context][token], -1
        while context >= 0:
            followed[context] += 1
            state = nexts[context][token]
            if state != before:
                occurred[state] += 1
                before = state
            commonest = best[context]
            if commonest != state and (commonest < 0 or occurred[state] >= occurred[commonest]):
                best[context] = state
            context = link[context]
        return reached

    def _cut(self, state: int) -> int:
        """The context at a state that was reached from a context, and so may stand for one token too many."""
        link = self._link[state]
        return link if self._length[link] >= self.longest else state

    def settled(self, state: int, width: int) -> int:
        """Where a substring of `width` tokens is now that was at `state`, for its class may have been split."""
        while state and self._length[self._link[state]] >= width:
            state = self._link[state]
        return state

    def follow(self, state: int, width: int, token: int) -> tuple[int, int]:
        """From a context to the longest one that occurred here after one more token: its state and its width."""
        state = self.settled(state, width)
        while state and token not in self._next[state]:
            state = self._link[state]
            width = self._length[state]
        if token not in self._next[state]:
            return 0, 0
        return self._cut(self._next[state][token]), min(width + 1, self.longest)

    def matches(self, state: int, width: int) -> Iterator[tuple[int, int]]:
        """The contexts at a place that something has followed, one per class: (state, its length), longest first."""
        while state > 0:
            if self._followed[state]:
                yield state, min(width, self._length[state])
            state = self._link[state]

    def _usable(self, state: int, width: int) -> tuple[int, int]:
        """The longest context here that was ever followed by anything, and its length; (0, 0) for none."""
        while state > 0 and not self._followed[state]:
            state = self._link[state]
            width = self._length[state]
        return state, width

    def highest(self, width: int, limit: int) -> float:
        """The score of `limit` tokens that have always followed a context of this length: no path has a higher one."""
        return _highest(width, limit, self.longest, self.doubt)

    def path(self, state: int, width: int, limit: int) -> tuple[list[int], float]:
        """The commonest successor, its commonest successor and so on: at most `limit` tokens, and their score.

        See `successors` for the chance of each. The score is the sum of the products of the chances up to each token:
        how many tokens may be expected to be right.
        """
        occurred, followed, best, doubt = self._occurred, self._followed, self._best, self.doubt
        tokens: list[int] = []
        chance, score = 1.0, 0.0
        while len(tokens) < limit:
            state, width = self._usable(state, width)
            if not state:
                break
            following = best[state]
            chance *= occurred[following] / followed[state] * width / (width + doubt)
            if chance < LEAST:
                break
            score += chance
            tokens.append(self._token[following])
            state, width = self._cut(following), min(width + 1, self.longest)
        return tokens, score

    def successors(self, place: tuple[int, int], most: int) -> Iterator[tuple[float, int, tuple[int, int]]]:
        """The commonest successors of a context, at most so many, the likeliest first.

        A context that was never followed gives way to the longest suffix of it that was.

        Args:
            place: the context and its length.
            most: bounds the work; each is found only when it is asked for.

        Yields:
            The chance, count of the successor / count of the context * length / (length + doubt); the token; the
            context after it with its length.
        """
        state, width = self._usable(*place)
        if not state:
            return
        trust, after = width / (width + self.doubt) / self._followed[state], min(width + 1, self.longest)
        best, occurred = self._best[state], self._occurred
        yield occurred[best] * trust, self._token[best], (self._cut(best), after)
        others = (other for other in self._next[state].values() if other != best)
        for following in nlargest(most - 1, others, key=occurred.__getitem__):
            yield occurred[following] * trust, self._token[following], (self._cut(following), after)


@lru_cache(maxsize=1 << 14)
def _highest(width: int, limit: int, longest: int, doubt: float) -> float:
    chance, score = 1.0, 0.0
    for length in range(width, width + limit):
        known = min(length, longest)
        chance *= known / (known + doubt)
        score += chance
    return score
