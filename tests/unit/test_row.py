"""Where output ends: EOS, stop strings, budgets, context; the same for blocks of any size as token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.errors import BadOption, BadPrompt
from outrider.policy import Fixed
from outrider.row import Request, Row
from outrider.sampling import Sampling

WORDS = ["", " ", "a", "b", "c", "hello", "world", "abcd", "b c", "lo", "é", "\ufffd"]
EOS, OTHER_EOS = 0, len(WORDS)


class Words:
    """A tokenizer whose tokens are the words above; EOS ids have no text."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See `text.Tokenizer`."""
        return "".join(WORDS[token] for token in token_ids if 0 < token < len(WORDS))


def ids(*words: str) -> list[int]:
    """The tokens of these words."""
    return [WORDS.index(word) for word in words]


def row_with(
    stop: Sequence[str] = (),
    length: int = 100,
    context: int = 1000,
    prompt: Sequence[int] = (1,),
    eos: tuple[int, ...] = (EOS, OTHER_EOS),
    tokenizer: Words | None = None,
) -> Row:
    """A row at its beginning."""
    request = Request(tuple(prompt), Sampling(), 0, length, tuple(stop))
    return Row(request, 0, Fixed(1), eos, context, Words() if tokenizer is None else tokenizer)


def fed(row: Row, tokens: Sequence[int], size: int) -> Row:
    """The row after these tokens, committed in blocks of one size."""
    for start in range(0, len(tokens), size):
        if row.finish is None:
            row.extend(tokens[start : start + size])
    return row


SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 50])


@SIZES
@pytest.mark.parametrize("eos", [EOS, OTHER_EOS])
def test_any_of_several_eos_ids_ends_the_output(size: int, eos: int) -> None:
    """EOS is committed, what stood behind it is not, and the text has no trace of it."""
    row = fed(row_with(), [*ids("a", "b"), eos, *ids("c", "a")], size)
    assert (row.output, row.finish, row.text) == ([*ids("a", "b"), eos], "stop", "ab")


def test_extend_returns_what_it_committed() -> None:
    """The caller trims path and cache by it."""
    row = row_with()
    assert row.extend(ids("a", "b")) == tuple(ids("a", "b"))
    assert row.extend([*ids("c"), EOS, *ids("a")]) == (*ids("c"), EOS)
    assert row.tokens == [1, *ids("a", "b", "c"), EOS]


def test_the_first_eos_counts() -> None:
    """A prompt may contain EOS; of two in a block the first one ends."""
    row = row_with(prompt=(EOS, 1))
    assert row.finish is None
    assert row.extend([EOS, OTHER_EOS]) == (EOS,)
    assert row.text == ""


def test_without_eos_ids_nothing_ends_early() -> None:
    """A model without EOS writes to its budget."""
    row = fed(row_with(eos=(), length=4), [EOS, 2, EOS, 2, 2, 2], 3)
    assert (row.output, row.finish) == ([EOS, 2, EOS, 2], "length")


@SIZES
@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        (["world"], "hello ", 3),  # one whole token
        (["lo w"], "hel", 3),  # begins and ends inside tokens
        (["o"], "hell", 1),
        (["ab"], "hello world", 5),
        (["dab"], "hello worl", 5),  # over three tokens
        (["helloworld", "d"], "hello worl", 3),
        (["xyz", "q"], "hello worldabcé", 7),
    ],
)
def test_stop_strings_end_anywhere_inside_a_block(size: int, stop: list[str], text: str, kept: int) -> None:
    """The token that completes it is the last one; the text ends where the stop string begins."""
    tokens = ids("hello", " ", "world", "a", "b", "c", "é")
    row = fed(row_with(stop, length=7), tokens, size)
    assert row.output == tokens[:kept]
    assert row.finish == ("stop" if kept < 7 else "length")
    assert row.text == text


@SIZES
def test_the_earliest_stop_string_wins(size: int) -> None:
    """In the order of the text, not of the list; of two that one token completes, the one that begins first."""
    row = fed(row_with(["world", "lo"]), ids("hello", " ", "world"), size)
    assert (row.text, row.output) == ("hel", ids("hello"))
    for stops in (["d", "bc"], ["bc", "d"], ["c", "d", "bc"]):
        row = fed(row_with(stops), ids("hello", "abcd", "a"), size)
        assert (row.text, row.output) == ("helloa", ids("hello", "abcd"))
    row = fed(row_with(["bcx", "abcde", "cd"]), ids("hello", "abcd"), size)
    assert row.text == "helloab"


def test_eos_comes_before_stop_strings_and_both_before_the_budget() -> None:
    """The reason given is the one that the caller can act on."""
    row = row_with(["b"], length=2)
    row.extend(ids("a", "b"))
    assert (row.finish, row.text) == ("stop", "a")
    row = row_with(length=2)
    row.extend([*ids("a"), EOS])
    assert (row.finish, row.text) == ("stop", "a")


@SIZES
@pytest.mark.parametrize("length", [1, 2, 5, 6])
def test_budget_is_exact(size: int, length: int) -> None:
    """Exactly so many tokens, however large the last block."""
    row = fed(row_with(length=length), ids("a", "b", "c", "a", "b", "c"), size)
    assert (len(row.output), row.finish) == (length, "length")


@SIZES
def test_context_is_exact(size: int) -> None:
    """Prompt and output together fill the context and no more."""
    row = fed(row_with(context=5, prompt=(1, 1)), ids("a", "b", "c", "a", "b"), size)
    assert (len(row.tokens), row.finish) == (5, "length")


def test_room_leaves_a_place_for_the_bonus() -> None:
    """Of budget and context whichever is nearer, less one; no draft at all before the last token."""
    row = row_with(length=4)
    rooms = [row.room]
    for token in ids("a", "b", "c"):
        row.extend([token])
        rooms.append(row.room)
    assert rooms == [3, 2, 1, 0]
    assert row_with(length=100, context=10, prompt=(1, 1, 1)).room == 6


@pytest.mark.parametrize("seed", range(30))
def test_told_pieces_are_the_text(seed: int) -> None:
    """Random tokens, blocks and stop strings: told pieces join to the text, never hold a stop string, end as one block.

    What is told is certain: it is never taken back, and never begins what turns out to be a stop string.
    """
    chance = random.Random(seed)
    tokens = [chance.randrange(1, len(WORDS)) for _ in range(25)]
    everything = Words().decode(tokens)
    place = chance.randrange(len(everything) - 4)
    stops = [everything[place : place + chance.randrange(1, 5)], "zz", "helloz"]
    whole = row_with(stops, length=25)
    whole.extend(tokens)
    row, told = row_with(stops, length=25), ""
    start = 0
    while row.finish is None:
        size = chance.randrange(1, 6)
        row.extend(tokens[start : start + size])
        start += size
        told += row.told()
        assert row.text.startswith(told)
        assert not any(stop in told for stop in stops)
    assert (row.output, row.finish, row.text) == (whole.output, whole.finish, whole.text)
    assert told == row.text == everything[: min(found for stop in stops if (found := everything.find(stop)) >= 0)]


def test_text_that_could_become_a_stop_string_is_held_back() -> None:
    """Until it has become one, or something else, or the end."""
    row = row_with(["lo world"])
    row.extend(ids("hello"))
    assert row.told() == "hel"
    row.extend(ids(" "))
    assert row.told() == ""
    row.extend(ids("a"))
    assert row.told() == "lo a"
    row.extend(ids("lo"))
    assert row.told() == ""
    row.extend([EOS])
    assert row.told() == "lo"
    assert row.told() == ""


@pytest.mark.parametrize("ending", [[EOS], ids("a", "a", "a")])
def test_an_unfinished_character_at_the_end_is_told(ending: list[int]) -> None:
    """Held back while a character may still be completed, and out at the end."""
    row = row_with(length=4)
    row.extend(ids("\ufffd"))
    assert row.told() == ""
    row.extend(ending)
    assert row.told() == row.text == "\ufffd" + Words().decode(ending)


def test_ids_only() -> None:
    """Without a tokenizer there is no text, and everything else works."""
    row = Row(Request((1,), Sampling(), 0, 3), 0, Fixed(1), (EOS,), 100, None)
    row.extend([5, 6, EOS])
    assert (row.output, row.finish, row.text, row.told()) == ([5, 6, EOS], "stop", "", "")


def test_history_follows_the_row() -> None:
    """What the sampling law stands on: everything committed, where the output begins, and what ends it."""
    row = row_with(prompt=(1, 1, 2))
    row.extend([3, 4])
    history = row.history
    assert (list(history.tokens), history.prompt_length, history.eos) == ([1, 1, 2, 3, 4], 3, (EOS, OTHER_EOS))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prompt": ()}, BadPrompt, "empty"),
        ({"prompt": (1,) * 10}, BadPrompt, "shorten"),
        ({"prompt": (1, 12)}, BadPrompt, "vocabulary of 12"),
        ({"prompt": (-1,)}, BadPrompt, "vocabulary of 12"),
        ({"max_new_tokens": 0}, BadOption, "max_new_tokens is 0"),
        ({"stop": ("a", "")}, BadOption, "stop string is empty"),
    ],
)
def test_requests_that_cannot_work(change: dict[str, object], error: type[Exception], message: str) -> None:
    """Refused with the reason; the next smaller case works."""
    good: dict[str, object] = {"prompt": (1,) * 9, "sampling": Sampling(), "seed": 0, "max_new_tokens": 1}
    Request(**good).check(10, 12)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        Request(**{**good, **change}).check(10, 12)  # type: ignore[arg-type]
