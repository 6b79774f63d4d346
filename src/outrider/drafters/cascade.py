"""Two drafters in turn: a cheap one where it is confident, another one where it is not.

The hybrid rule of SuffixDecoding (Oliaro et al., 2411.04975): the first drafter's draft is used when it expects at
least as many accepted tokens as the second one's drafts have had so far in this request. The choice is made row by row,
before the second drafter is asked, and from what does not depend on chance, so every rule stays lossless. Where the
second one has nothing to say, for it may not have read the text yet (`Budget.reading`), the first one's draft stands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..errors import BadOption
from ..kv import Seat
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores
from .base import Drafter, Setting
from .options import split_specs

_PRIOR = 1.0  # accepted tokens that the second drafter is believed to reach before it has drafted


@dataclass(slots=True)
class _State:
    parts: tuple[Any, Any]  # the two drafters' own states
    asked: int | None = None  # whose draft is under way
    rounds: int = 1  # in which the second one has drafted, the prior counting as one
    accepted: float = _PRIOR  # of its drafts

    @property
    def expected(self) -> float:
        """How many tokens of the second drafter's next draft will be accepted."""
        return self.accepted / self.rounds


class Cascade(Drafter):
    """Drafts with one of two drafters, round by round and row by row.

    Args:
        first: says how many tokens it expects (`Draft.score`) and draws nothing at random.
        second: drafts where the first one expects too little.
    """

    makes_trees = from_text = for_encoders = True
    learns = True

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._parts = (first, second)
        self.makes_trees = first.makes_trees or second.makes_trees
        self.always_branches = first.always_branches or second.always_branches
        self.from_text = first.from_text and second.from_text
        self.learns = first.learns or second.learns
        self.reads = first.reads or second.reads
        self.for_encoders = first.for_encoders and second.for_encoders
        self.taps = tuple(sorted({*first.taps, *second.taps}))
        self.spec = f"cascade:{first.spec},{second.spec}"
        self.note = " ".join(part.note for part in self._parts if part.note)

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Cascade:
        """`cascade:A,B`, where A and B are specs with their arguments; more of them nest to the right.

        Raises:
            BadOption: not two drafters or more, or "none" among them.
        """
        from . import DRAFTERS, check_encoder, make_drafter  # they know this class

        specs = split_specs(argument, DRAFTERS)
        if len(specs) < 2:
            raise BadOption(
                f"cascade:{argument} names fewer than two drafters: write cascade:A,B, for example "
                "cascade:suffix,model:./small."
            )
        if "none" in specs:
            raise BadOption("cascade with 'none' would be the other drafter alone: name that one.")
        for spec in specs:
            check_encoder(spec, setting.target)
        first = make_drafter(specs[0], setting)
        rest = make_drafter(specs[1], setting) if len(specs) == 2 else cls.from_spec(",".join(specs[1:]), setting)
        return cls(first, rest)

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        first, second = (part.begin(prompt, _tapped(part, hidden)) for part in self._parts)
        return _State((first, second))

    def seated(self, state: _State, seat: Seat) -> None:
        """See `Drafter`."""
        for part, own in zip(self._parts, state.parts, strict=True):
            part.seated(own, seat)

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """See `Drafter`: one of the two has to have a use for it, and neither may need one in vain."""
        if not prediction or not self._takers(prediction):
            for part in self._parts:
                part.check_prediction(prediction)

    def expect(self, state: _State, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        for which in self._takers(prediction):
            self._parts[which].expect(state.parts[which], prediction)

    def end(self, state: _State) -> None:
        """See `Drafter`."""
        for part, own in zip(self._parts, state.parts, strict=True):
            part.end(own)

    def forget(self) -> None:
        """See `Drafter`."""
        for part in self._parts:
            part.forget()

    @property
    def token_bytes(self) -> int:
        """See `Drafter`."""
        return sum(part.token_bytes for part in self._parts)

    def room(self, state: _State) -> int:
        """See `Drafter`: as long as either has room."""
        return max(part.room(own) for part, own in zip(self._parts, state.parts, strict=True))

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        rows = list(zip(states, budgets, samplings, noises, strict=True))
        drafts = self._ask(0, rows)
        left = []
        for place, ((state, budget, _, _), draft) in enumerate(zip(rows, drafts, strict=True)):
            _check(draft, self._parts[0].spec)
            confident = draft.score is not None and len(draft.tree) > 1 and draft.score >= state.expected
            state.asked = int(not confident and self._limited(1, state, budget).depth > 0)
            if state.asked:
                left.append(place)
        if left:
            for place, draft in zip(left, self._ask(1, [rows[place] for place in left]), strict=True):
                state = states[place]
                if len(draft.tree) == 1 < len(drafts[place].tree):
                    state.asked, drafts[place] = 0, replace(drafts[place], read=draft.read)
                else:
                    drafts[place] = replace(draft, score=state.expected if draft.score is None else draft.score)
        return drafts

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`: both see what was committed; one whose draft was not used sees it as a chain of its own."""
        if state.asked == 1 and len(scores.logits) > 1:
            state.rounds += 1
            state.accepted += len(path) - 1
        chain = scores.at(path)
        for which, (part, own) in enumerate(zip(self._parts, state.parts, strict=True)):
            used = which == state.asked
            seen, way = (scores, path) if used else (chain, tuple(range(len(path))))
            part.commit(own, tokens, Scores(seen.logits, _tapped(part, seen.hidden)), way)
        state.asked = None

    def _takers(self, prediction: Sequence[int]) -> list[int]:
        """Which of the two have a use for a prediction."""
        found = []
        for which, part in enumerate(self._parts):
            with contextlib.suppress(BadOption):
                part.check_prediction(prediction)
                found.append(which)
        return found

    def _limited(self, which: int, state: _State, budget: Budget) -> Budget:
        """What one of the two may propose: no more than it has room for."""
        depth = min(budget.depth, self._parts[which].room(state.parts[which]))
        return budget.cut(depth)

    def _ask(self, which: int, rows: Sequence[tuple[_State, Budget, Sampling, Noise]]) -> list[Draft]:
        """The drafts of one of the two."""
        return self._parts[which].propose(
            [state.parts[which] for state, _, _, _ in rows],
            [self._limited(which, state, budget) for state, budget, _, _ in rows],
            [sampling for _, _, sampling, _ in rows],
            [noise for _, _, _, noise in rows],
        )


def _check(draft: Draft, spec: str) -> None:
    """Refuse a first drafter that cannot be weighed, or whose draws the choice between the two would bias."""
    drawn = draft.drawn != "point"
    if len(draft.tree) > 1 and (draft.score is None or drawn):
        what = "draws its tokens at random" if drawn else "does not say how many tokens it expects"
        raise BadOption(
            f"cascade cannot weigh the drafts of {spec}, which {what}: put suffix or another drafter that copies first."
        )


def _tapped(part: Drafter, hidden: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The layers that a drafter asked for."""
    return {layer: states for layer, states in hidden.items() if layer in part.taps}
