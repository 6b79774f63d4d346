"""Requests of one's own through the one loop, with parts of one's own choosing. Knows no prompts and no verdicts.

The library's face serves a batch with one seed and one policy; who wants to prove something needs more of a say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from .. import combinations
from ..api import Outrider
from ..drafters import Drafter
from ..drafters.none import NoDrafter
from ..engine import Engine
from ..errors import BadOption
from ..kv import KVCache
from ..policy import Fixed, Maker, Setting, make_policy
from ..prefix import Known, Prefixes
from ..row import Request
from ..target import Target, prefill
from ..types import Round
from ..verify import Verifier
from ..verify.match import Match


@dataclass(slots=True)
class Written:
    """What came of one request."""

    ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop is made of."""

    target: Target
    drafter: Drafter
    verifier: Verifier
    make_policy: Maker
    policy: str

    @classmethod
    def of(cls, llm: Outrider, policy: str) -> Parts:
        """The parts of an `Outrider` with a policy of one's own.

        Raises:
            BadOption: the policy does not go with them.
        """
        branches = llm.drafter.makes_trees and not llm.verifier.chains_only
        maker = make_policy(policy, Setting(llm.drafter.spec, llm.drafter.has_law, branches, llm.drafter.reads))
        combinations.check(llm.verifier, llm.drafter, llm.drafter.spec, maker().budget())
        return cls(llm.target, llm.drafter, llm.verifier, maker, policy)

    @property
    def plain(self) -> Parts:
        """Plain decoding of the same target."""
        return Parts(self.target, NoDrafter(), Match(), lambda: Fixed(1), "none")

    def with_verifier(self, verifier: Verifier) -> Parts:
        """The same under another rule."""
        return replace(self, verifier=verifier)

    def serve(
        self,
        requests: Sequence[Request],
        together: int,
        advance: Callable[[], None] = lambda: None,
        prefixes: Prefixes | None = None,
    ) -> list[Written]:
        """Serve requests, so many together, each to its end.

        Nothing of a request is kept for the next but what the drafter learns, which changes drafts only.

        Args:
            requests: in the order in which they are served.
            together: rows of a batch.
            advance: called once for each.
            prefixes: prompts that are known already.
        """
        found = [Written() for _ in requests]
        for first in range(0, len(requests), together):
            engine = Engine(self.target, self.drafter, self.verifier, self.make_policy, prefixes=prefixes)
            for row, round_ in engine.run(requests[first : first + together]):
                written = found[first + row.index]
                written.rounds.append(round_)
                if round_.finish is not None:
                    written.ids = row.output
                    advance()
        return found


class OnePrompt(Prefixes):
    """One prompt, computed once for all requests that begin with it; what they write is not kept.

    Args:
        target: whose keys they are.
        prompt: the prompt of every request.
        taps: layers whose states their drafter wants.
    """

    def __init__(self, target: Target, prompt: Sequence[int], taps: tuple[int, ...]) -> None:
        super().__init__(0)
        self._prompt, self._cache = tuple(prompt), target.new_cache(1, len(prompt))
        self._states = prefill(target, self._prompt[:-1], self._cache, taps=taps)

    def longest(self, prompt: Sequence[int], capacity: int, taps: Collection[int] = ()) -> Known | None:
        """See `Prefixes`."""
        assert tuple(prompt) == self._prompt
        return Known(KVCache.stack([(self._cache, 0)], capacity=capacity), dict(self._states))


def wants_prediction(drafter: Drafter) -> bool:
    """Whether a drafter refuses requests that do not say what text is expected."""
    try:
        drafter.check_prediction(())
    except BadOption:
        return True
    return False
