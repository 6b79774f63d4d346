"""Counts and continuations of the automaton against their definitions, by plain counting on random texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from outrider.drafters.automaton import LEAST, Automaton

Text = tuple[int, ...]


class Counted:
    """The definition: what followed every substring of some texts, and where it did last.

    Args:
        texts: in the order in which they were read.
        longest: tokens of a context.
        doubt: as the automaton's.
    """

    def __init__(self, texts: Sequence[Sequence[int]], longest: int, doubt: float = 0.0) -> None:
        self.longest, self.doubt = longest, doubt
        self.after: dict[Text, Counter[int]] = {}
        self.last: dict[tuple[Text, int], tuple[int, int]] = {}
        for number, text in enumerate(texts):
            for end in range(1, len(text)):
                for start in range(max(0, end - longest), end):
                    context = tuple(text[start:end])
                    self.after.setdefault(context, Counter())[text[end]] += 1
                    self.last[context, text[end]] = (number, end)

    def usable(self, context: Text) -> Text:
        """The longest end of a context that something has followed."""
        while context and context not in self.after:
            context = context[1:]
        return context

    def chances(self, context: Text) -> dict[int, float]:
        """Token -> its chance after a context that something has followed."""
        total, length = self.after[context].total(), len(context)
        return {token: n / total * length / (length + self.doubt) for token, n in self.after[context].items()}

    def commonest(self, context: Text) -> int:
        """Of equally common successors the latest."""
        return max(self.after[context], key=lambda token: (self.after[context][token], self.last[context, token]))

    def path(self, context: Text, limit: int) -> tuple[list[int], float]:
        """What `Automaton.path` promises."""
        tokens: list[int] = []
        chance, score = 1.0, 0.0
        while len(tokens) < limit and (context := self.usable(context[-self.longest :])):
            token = self.commonest(context)
            chance *= self.chances(context)[token]
            if chance < LEAST:
                break
            score += chance
            tokens.append(token)
            context = (*context, token)
        return tokens, score


def texts_of(seed: int) -> list[list[int]]:
    """A few random texts over few tokens, some of them periodic, some beginning alike."""
    chance = random.Random(seed)
    texts: list[list[int]] = []
    for _ in range(chance.randrange(1, 5)):
        text = chance.choices(range(chance.choice([1, 2, 3])), k=chance.randrange(1, 25))
        if chance.random() < 0.3:
            text = (text[: chance.randrange(1, 4)] * 20)[:20]
        if texts and chance.random() < 0.4:
            text = texts[0][: chance.randrange(1, 10)] + text
        texts.append(text)
    return texts


def assert_counts(automaton: Automaton, counted: Counted, text: Sequence[int]) -> None:
    """Every context of a text is found, with exactly what followed it."""
    for end in range(1, len(text) + 1):
        for start in range(max(0, end - counted.longest), end):
            context = tuple(text[start:end])
            place = (0, 0)
            for token in context:
                place = automaton.follow(*place, token)
            assert place[1] == len(context)
            usable = counted.usable(context)
            expected = counted.chances(usable) if usable else {}
            found = list(automaton.successors(place, most=9))
            assert {token: chance for chance, token, _ in found} == pytest.approx(expected)
            assert [chance for chance, _, _ in found] == sorted((chance for chance, _, _ in found), reverse=True)
            if found:
                assert found[0][1] == counted.commonest(usable)
            tokens, score = automaton.path(*place, 6)
            assert (tokens, pytest.approx(score)) == counted.path(context, 6)


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("seed", range(12))
def test_counts_and_paths(seed: int, longest: int) -> None:
    """After every text, and after every token of the last one."""
    doubt = (0.0, 1.7)[seed % 2]
    texts = texts_of(seed)
    automaton = Automaton(longest, doubt)
    for number, text in enumerate(texts[:-1]):
        automaton.add(text)
        assert_counts(automaton, Counted(texts[: number + 1], longest, doubt), text)
    automaton.start()
    for end, token in enumerate(texts[-1], 1):
        automaton.append(token)
        known = [*texts[:-1], texts[-1][:end]]
        assert_counts(automaton, Counted(known, longest, doubt), texts[-1][:end])
        state, width = automaton.context
        assert width == min(end, longest)
        usable = Counted(known, longest).usable(tuple(texts[-1][:end][-longest:]))
        matches = list(automaton.matches(state, width))
        assert (matches[0][1] if matches else 0) == len(usable)
        assert [length for _, length in matches] == sorted({length for _, length in matches}, reverse=True)
    assert automaton.size == sum(map(len, texts))


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_stays_in_place_while_texts_are_added(seed: int) -> None:
    """Whoever follows another text through the automaton stands at the longest of its ends that occurs there."""
    chance = random.Random(seed)
    longest = chance.choice([2, 4, 30])
    automaton, texts, place, followed = Automaton(longest), list[list[int]](), (0, 0), list[int]()
    for _ in range(40):
        if chance.random() < 0.2:
            texts.append(chance.choices(range(3), k=chance.randrange(1, 12)))
            automaton.add(texts[-1])
            place, followed = (0, 0), []  # a match may have become longer, which nobody promises to notice
        followed.append(chance.randrange(3))
        place = automaton.follow(*place, followed[-1])
        extra = chance.choices(range(3), k=5)
        texts.append(extra)
        automaton.add(extra)
        known = {tuple(text[start : start + n]) for text in texts for n in range(1, 13) for start in range(len(text))}
        assert place[1] <= longest
        assert place[1] == 0 or tuple(followed[-place[1] :]) in known
        if place[1]:
            usable = Counted(texts, longest).usable(tuple(followed[-place[1] :]))
            found = {token for _, token, _ in automaton.successors((automaton.settled(*place), place[1]), most=9)}
            assert found == (set(Counted(texts, longest).after[usable]) if usable else set())


def test_the_work_per_token_is_bounded() -> None:
    """The worst text, one token over and over: fewer than two states per token, and counts no deeper than asked."""
    automaton = Automaton(8)
    automaton.add([0] * 3000)
    place = (0, 0)
    for _ in range(20):
        place = automaton.follow(*place, 0)
    assert place[1] == 8
    assert sum(1 for _ in automaton.matches(*place)) == 8
    assert automaton.path(*place, 50) == ([0] * 50, pytest.approx(50.0))
