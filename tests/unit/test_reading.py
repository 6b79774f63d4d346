"""Whether a draft model reads a text first: worlds in which reading has a price, and the rule that weighs it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from simulation import chain

from outrider.policy import Maker, Policy, Setting, make_policy
from outrider.policy.reading import TRIAL, Ledger, Text
from outrider.types import UNBOUNDED, Budget, FinishReason, Round

DEAR, CHEAP = 1 / 28, 1 / 2000  # plain passes that a token takes to read: on two cores, and on a GPU


@dataclass
class Answer:
    """What came of one request.

    Attributes:
        seconds: that it took; a plain pass takes 1.
        length: its tokens.
        read: tokens of the text that were read.
    """

    seconds: float = 0.0
    length: int = 0
    read: int = 0


@dataclass
class Library:
    """A drafter with a model of its own, and a target.

    Attributes:
        price: plain passes that it takes to read a token.
        rate: chance that a drafted token is kept.
        copied: tokens of a round in which another drafter copies, without anything to read.
        often: chance of such a round.
    """

    price: float = DEAR
    rate: float = 0.8
    copied: int = 0
    often: float = 0.0

    def write(self, policy: Policy, prompt: int, room: int, end: int, seed: int = 0) -> Answer:
        """One answer of `end` tokens that could have had `room`."""
        chance, answer, unread = random.Random(seed), Answer(), prompt - 1
        for number in range(end):
            budget, drafting, read, depth = policy.budget(), 0.0, 0, 0
            copying = budget.depth > 0 and chance.random() < self.often
            if copying:
                depth = min(budget.depth, self.copied)
            elif budget.depth:
                read = min(unread, budget.reading)
                unread, drafting = unread - read, read * self.price
                if not unread:
                    depth = budget.depth
                    drafting += 0.05 * depth
            kept = 0
            while kept < depth and (copying or chance.random() < self.rate):
                kept += 1
            kept = min(kept, end - answer.length - 1)
            verify, start = 1 + 0.05 * depth, prompt + answer.length
            answer.length += kept + 1
            finish: FinishReason | None = "stop" if answer.length == end else None
            path = tuple(range(kept + 1))
            about = (number, start, chain(depth), path, path, finish, drafting, verify)
            policy.observe(Round(0, *about, read=read, room=room - answer.length, began=float(number)))
            answer.seconds += drafting + verify
            answer.read += read
            unread += 0 if not unread else kept + 1
            if finish:
                return answer
        raise AssertionError("an answer ends")


def maker(reads: bool = True) -> Maker:
    """What makes the policies of a library's requests, one after another."""
    return make_policy("goodput", Setting("model", reads=reads))


def written(library: Library, prompt: int, room: int, end: int, count: int = 12) -> list[Answer]:
    """So many answers, each once the one before it has ended."""
    make = maker()
    return [library.write(make(), prompt, room, end, seed) for seed in range(count)]


def test_short_answers_to_long_prompts_go_without() -> None:
    """Only the first request pays for learning what reading costs, and no more than for a trial."""
    answers = written(Library(), 700, 64, 40)
    assert [answer.read for answer in answers] == [TRIAL, *[0] * 11]
    assert all(answer.seconds < 1.04 * 40 for answer in answers)


def test_short_prompts_are_read_at_once() -> None:
    """After one plain round, and a trial for the first request of all; then drafting pays."""
    answers = written(Library(), 60, 256, 128)
    assert all(answer.read >= 59 for answer in answers)
    assert sum(answer.seconds for answer in answers) < 12 * 128 / 1.5


def test_where_reading_is_cheap_long_prompts_are_read() -> None:
    """As on a GPU; the price is learned, not assumed."""
    assert all(answer.read >= 3999 for answer in written(Library(CHEAP), 4000, 256, 128))


def test_answers_are_expected_to_be_as_long_as_the_last_ones() -> None:
    """A limit of 2,000 tokens promises nothing where answers end after 20; one that goes on is read for in the end."""
    short = written(Library(), 700, 2000, 20)
    assert [answer.read for answer in short[1:]] == [0] * 11
    make = maker()
    for seed in range(3):
        Library().write(make(), 300, 2000, 20, seed)
    long = Library().write(make(), 300, 2000, 1500)
    assert long.read >= 299
    assert long.seconds < 1500 / 1.5


def test_a_text_that_another_drafter_copies_is_not_read() -> None:
    """What counts are the rounds that go without a draft."""
    copying = written(Library(copied=8, often=0.9), 400, 100, 100)
    assert sum(answer.read for answer in copying) <= TRIAL
    (idle,) = written(Library(copied=8, often=0.1, price=1 / 100), 400, 200, 200, 1)
    assert idle.read >= 399


def test_drafts_in_vain_are_remembered_for_a_while() -> None:
    """Texts of a kind that drafting does nothing for are left unread, and one is tried again in the end."""
    read = [answer.read >= 199 for answer in written(Library(rate=0.05), 200, 128, 128, 60)]
    assert read[0]
    assert 3 <= sum(read) < 30
    assert any(read[30:])


@pytest.mark.parametrize("policy", ["fixed:3", "heuristic", "entropy"])
def test_other_policies_have_it_read_at_once(policy: str) -> None:
    """They weigh no seconds."""
    assert make_policy(policy, Setting("model", reads=True))().budget().reading == UNBOUNDED


def test_a_drafter_without_a_model_is_not_held_back() -> None:
    """There is nothing to read."""
    assert maker(reads=False)().budget() == Budget(4)


def test_all_rows_wait_for_one_that_reads() -> None:
    """So it has to bring that much more."""
    ledger = Ledger()
    ledger.add(100, 2.0)
    text = Text(ledger)
    for number in range(20):
        text.observe(Round(0, number, 50 + number, chain(0), (0,), (0,), None, 0.0, 1.0, room=100))
    assert text.allowance(None, 1) == 0
    assert text.allowance(1.0, 16) == 0
    assert text.allowance(1.0, 8) == UNBOUNDED
    assert text.allowance(1.0, 16) == UNBOUNDED, "what has been begun is not left"
