"""Follows a text that the caller expects, such as the file that is to be edited or yesterday's answer.

Sources: inference with reference (Yang et al., 2304.04487), predicted outputs (OpenAI's API, 2024). The draft is what
follows in the prediction. Where the target departs from it, the place is found again by the longest match of the last
committed tokens ahead, among the next `_CANDIDATES` occurrences of the last one. "Ahead" is counted from the last place
that is sure, for a repeated phrase may lead astray. Failures raise the length of match that is asked for, so that a
prediction that is wrong soon costs one look into a table per round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..errors import BadOption
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter

_TRUST = 2  # tokens drafted at most per token known to agree
_LONGEST = 16  # tokens; longer matches are not told apart
_SURE = 16  # tokens that have to agree before a place that was found is believed: texts repeat themselves
_CANDIDATES = 32  # occurrences of the last token that are looked at
_AGREED, _DEPARTED = 9, 1  # what is believed before the first round: nine tokens in ten are as predicted


@dataclass(slots=True)
class _State:
    recent: list[int]  # the last committed tokens, the pending one last
    prediction: Sequence[int] = ()
    places: dict[int, list[int]] = field(default_factory=dict)  # token -> where it stands in the prediction
    place: int = 0  # the next token, if the text goes on as predicted
    match: int = _LONGEST  # tokens before `place` known to agree; the beginning is believed
    lost: bool = False  # nothing is known to agree
    run: int = 0  # tokens that agreed since the place was found
    sure: int = 0  # everything before this place is behind us
    failures: int = 0  # drafts of which nothing was accepted, less the tokens that were
    drafted: list[int] = field(default_factory=list)  # in the round under way
    agreed: int = _AGREED
    departed: int = _DEPARTED


class Reference(Drafter):
    """Drafts what the request's prediction says, as long as it is right."""

    spec = "reference"
    from_text = for_encoders = True

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """See `Drafter`; this one needs it."""
        if not prediction:
            raise BadOption(
                "The drafter 'reference' follows a text that you expect: pass prediction= (--prediction FILE), or take "
                "another drafter."
            )

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        return _State(list(prompt[-_LONGEST:]))

    def expect(self, state: _State, prediction: Sequence[int]) -> None:
        """See `Drafter`."""
        state.prediction = prediction
        for place, token in enumerate(prediction):
            state.places.setdefault(token, []).append(place)

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; the score supposes that tokens agree as often as they have so far."""
        return [self._draft(state, budget.depth) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        self._learn(state, tokens)
        for token in tokens:
            if not state.lost and state.place < len(state.prediction) and state.prediction[state.place] == token:
                state.place, state.match, state.run = state.place + 1, min(state.match + 1, _LONGEST), state.run + 1
                if state.run >= _SURE:
                    state.sure = state.place
            else:
                state.lost = True
        state.recent = [*state.recent, *tokens][-_LONGEST:]
        if state.lost:
            self._find(state)

    def _draft(self, state: _State, depth: int) -> Draft:
        wanted = 0 if state.lost else min(depth, _TRUST * state.match)
        state.drafted = list(state.prediction[state.place : state.place + wanted])
        share = state.agreed / (state.agreed + state.departed)
        score = sum(share**length for length in range(1, len(state.drafted) + 1))
        return Draft(Tree.chain([state.recent[-1], *state.drafted]), score=score)

    @staticmethod
    def _learn(state: _State, tokens: Sequence[int]) -> None:
        """What became of the draft."""
        if not state.drafted:
            return
        agreed = 0
        while agreed < min(len(state.drafted), len(tokens)) and state.drafted[agreed] == tokens[agreed]:
            agreed += 1
        state.agreed += agreed
        if agreed < min(len(state.drafted), len(tokens)):
            state.departed += 1
        state.failures = max(0, state.failures - agreed) if agreed else state.failures + 1

    def _find(self, state: _State) -> None:
        """Where the text may be in the prediction, no earlier than where it surely has been."""
        places = state.places.get(state.recent[-1], [])
        first = bisect_left(places, state.sure)
        best, needed = 0, min(1 + state.failures, _LONGEST)
        for place in places[first : first + _CANDIDATES]:
            match = _common_end(state.prediction, place, state.recent)
            if match > best:  # of equally long ones the nearest
                best, found = match, place + 1
        if best >= needed:
            state.place, state.match, state.lost, state.run = found, best, False, 0


def _common_end(text: Sequence[int], place: int, recent: Sequence[int]) -> int:
    """How many tokens two texts share, from the token at `place` and from the last of `recent` backwards."""
    length, most = 0, min(place + 1, len(recent))
    while length < most and text[place - length] == recent[-1 - length]:
        length += 1
    return length
