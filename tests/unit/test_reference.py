"""The reference drafter: it follows what is right, finds its place again, and gives up on what is wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from outrider.drafters.reference import Reference
from outrider.errors import BadOption
from outrider.types import Budget, Scores

NO_SCORES = Scores(torch.zeros(0, 5))
DEPTH = 8


def written(prediction: list[int], text: list[int], drafter: Reference | None = None) -> list[tuple[int, int]]:
    """(drafted, accepted) of every round in which a target writes a text, whatever is drafted."""
    drafter = drafter or Reference()
    state = drafter.begin([900, 901], {})
    drafter.expect(state, prediction)
    rounds, done = [], 0
    while done < len(text):
        (draft,) = drafter.propose([state], [Budget(min(DEPTH, len(text) - done - 1))], [], [])
        drafted = draft.tree.tokens[1:].tolist()
        kept = 0
        while kept < len(drafted) and drafted[kept] == text[done + kept]:
            kept += 1
        new = text[done : done + kept + 1]
        drafter.commit(state, new, NO_SCORES, range(len(new)))
        rounds.append((len(drafted), kept))
        done += len(new)
    return rounds


def test_a_right_prediction_is_accepted_whole() -> None:
    """From the first round on, in blocks of the budget."""
    text = list(range(90))
    assert written(text, text) == [(DEPTH, DEPTH)] * 10


TEXT = list(range(100, 160))
EDITS = {
    "one token replaced": ([*TEXT[:30], 7, *TEXT[31:]], 1),
    "three replaced by one": ([*TEXT[:30], 7, *TEXT[33:]], 3),
    "one replaced by three": ([*TEXT[:30], 7, 8, 9, *TEXT[31:]], 1),
    "left out": ([*TEXT[:30], *TEXT[40:]], 10),
    "put in": ([*TEXT[:30], *range(20), *TEXT[30:]], 0),
    "something before": ([1, 2, 3, *TEXT], 0),
    "something behind": ([*TEXT, 1, 2, 3], 0),
    "twice": ([*TEXT[:30], 7, *TEXT[31:], *TEXT], 1),
}


@pytest.mark.parametrize(("prediction", "unforeseen"), EDITS.values(), ids=EDITS)
def test_the_place_is_found_again(prediction: list[int], unforeseen: int) -> None:
    """After each kind of edit: a few rounds more than without one, and full blocks once the text agrees again."""
    rounds = written(prediction, TEXT)
    assert len(rounds) <= len(TEXT) / (DEPTH + 1) + unforeseen + 4
    assert (DEPTH, DEPTH) in rounds[-3:]


def test_a_repeated_phrase_does_not_lead_astray_for_good() -> None:
    """Taken for the second copy of a phrase, the text is found in the first one when it departs from the second."""
    phrase = list(range(20))
    prediction = [*phrase[:10], 70, *phrase[11:], *TEXT, *phrase, 71, 72]
    rounds = written(prediction, [*phrase, *TEXT])
    assert len(rounds) <= 80 / (DEPTH + 1) + 9
    assert rounds[-3:-1] == [(DEPTH, DEPTH)] * 2


def test_an_insertion_by_the_target_is_survived() -> None:
    """While the target writes what nobody expected nothing is drafted; behind it the prediction goes on."""
    text = [*TEXT[:20], *range(15), *TEXT[20:]]
    rounds = written(TEXT, text)
    assert sum(drafted - kept for drafted, kept in rounds) <= DEPTH
    assert sum(kept for _, kept in rounds) >= len(TEXT) - 10


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("alphabet", [20, 1000])
def test_a_wrong_prediction_costs_next_to_nothing(alphabet: int, seed: int) -> None:
    """Random tokens: little is drafted in vain, whether matches by chance are rare or frequent."""
    chance = random.Random(seed)
    prediction, text = chance.choices(range(alphabet), k=400), chance.choices(range(alphabet), k=400)
    rounds = written(prediction, text)
    refused = sum(drafted - kept for drafted, kept in rounds)
    assert refused <= {20: 60, 1000: 20}[alphabet]


def test_the_longest_match_ahead_wins() -> None:
    """Of two places ahead that look alike it is the one that agrees for longer; places behind are not looked at."""
    prediction = [*TEXT, 50, 60, 7, 8, 51, 61, 7, 9, 52, 2]
    drafter = Reference()
    state = drafter.begin([0], {})
    drafter.expect(state, prediction)
    for tokens, following in (([*TEXT], [50, 60]), ([61, 7], [9, 52]), ([TEXT[3]], []), ([2], [])):
        drafter.commit(state, tokens, NO_SCORES, range(len(tokens)))
        (draft,) = drafter.propose([state], [Budget(2)], [], [])
        assert draft.tree.tokens.tolist() == [tokens[-1], *following]
        drafter.propose([state], [Budget(0)], [], [])  # so that no draft fails, which would ask for longer matches


@pytest.mark.parametrize("seed", range(20))
def test_it_drafts_what_a_plain_search_finds(seed: int) -> None:
    """Whenever it has lost its place: the longest end of the text among the occurrences ahead, the nearest of equals,
    and nothing if that is shorter than what earlier failures ask for."""
    chance = random.Random(seed)
    prediction = chance.choices(range(4), k=60)
    drafter = Reference()
    state: Any = drafter.begin([3, 1], {})
    drafter.expect(state, prediction)
    text = [3, 1]
    for _ in range(40):
        (draft,) = drafter.propose([state], [Budget(4)], [], [])
        drafted = draft.tree.tokens[1:].tolist()
        went_on = not state.lost and chance.random() < 0.5
        tokens = [*drafted[:2], chance.randrange(4)] if went_on else [chance.randrange(4)]
        agreed = not state.lost and prediction[state.place : state.place + len(tokens)] == tokens
        drafter.commit(state, tokens, NO_SCORES, range(len(tokens)))
        text += tokens
        if not agreed:
            ahead = [place for place in range(state.sure, 60) if prediction[place] == text[-1]][:32]
            matches = [_common(prediction[: place + 1], text[-16:]) for place in ahead]
            found = max(matches, default=0)
            assert state.lost == (found < 1 + state.failures)
            if not state.lost:
                assert (state.place, state.match) == (ahead[matches.index(found)] + 1, found)


def _common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return length


def test_the_score_learns_how_good_the_prediction_is() -> None:
    """A prediction that was right promises more than one that was wrong."""

    def score(text: list[int]) -> float:
        drafter = Reference()
        state = drafter.begin([0], {})
        drafter.expect(state, list(range(100)))
        for token in text:
            drafter.propose([state], [Budget(4)], [], [])
            drafter.commit(state, [token], NO_SCORES, range(1))
        (draft,) = drafter.propose([state], [Budget(4)], [], [])
        assert draft.score is not None
        return draft.score / (len(draft.tree) - 1)

    assert score(list(range(20))) > score([]) > score([200, 0, 1])


def test_it_needs_a_prediction() -> None:
    """Without one it would be plain decoding under another name."""
    with pytest.raises(BadOption, match="pass prediction="):
        Reference().check_prediction(())
    Reference().check_prediction((1,))
