"""Text as it comes: pieces join to the whole whatever the tokenizer splits, and stop strings are found."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outrider.errors import BadPrompt
from outrider.text import Detokenizer, StopText, as_batch, encode

TEXTS = [
    "plain words, nothing else",
    "naïve café, Größe, Übermut",
    "emoji 👍🏽 and a family 👨‍👩‍👧‍👦 in the middle",
    "日本語のテキスト",
    "a\u0301 combining, \u200d joiner, \n\n newlines\t and  spaces ",
    "🙂",
    "ends with an emoji 🎉",
]


@pytest.fixture(scope="module")
def byte_level() -> PreTrainedTokenizerFast:
    """One token per byte: every character beyond ASCII is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<begin>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", bos_token="<begin>")


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """Tokens with a leading space that decoding drops at the very beginning, as in SentencePiece."""
    vocabulary = {"▁the": 0, "▁cat": 1, "s": 2, "▁": 3, "!": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pieces_of(tokenizer: Any, ids: list[int]) -> list[str]:
    """What comes out token by token, the flush at the end last."""
    words = Detokenizer(tokenizer)
    pieces = [words.push(token) for token in ids]
    pieces.append(words.flush())
    assert words.text == "".join(pieces)
    return pieces


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(byte_level: PreTrainedTokenizerFast, text: str) -> None:
    """Whole characters only, each out with its last byte, and nothing left for the end."""
    ids = byte_level(text)["input_ids"]
    assert len(ids) == len(text.encode())
    pieces = pieces_of(byte_level, ids)
    assert "".join(pieces) == text == byte_level.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(text)
    assert pieces[-1] == ""


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_join_to_the_full_decode(byte_level: PreTrainedTokenizerFast, seed: int) -> None:
    """Broken characters anywhere, special tokens among them: still what decoding all at once gives."""
    chance = random.Random(seed)
    ids = [chance.randrange(len(byte_level)) for _ in range(60)]
    assert "".join(pieces_of(byte_level, ids)) == byte_level.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_unfinished_character_comes_with_the_flush(byte_level: PreTrainedTokenizerFast, cut: int) -> None:
    """Held back until the end, then shown as what it is."""
    ids = byte_level("ok 🎉")["input_ids"]
    *pieces, last = pieces_of(byte_level, ids[:-cut])
    assert "".join(pieces) == "ok "
    assert last == byte_level.decode(ids[:-cut])[3:]
    assert "\ufffd" in last


def test_special_tokens_have_no_text(byte_level: PreTrainedTokenizerFast) -> None:
    """Also in the middle of a character, which they interrupt for nobody."""
    ids = byte_level("é")["input_ids"]
    begin, end = byte_level.bos_token_id, byte_level.eos_token_id
    assert "".join(pieces_of(byte_level, [begin, *ids, end])) == "é"


def test_leading_spaces(words: PreTrainedTokenizerFast) -> None:
    """A space belongs to the word that follows it, except at the very beginning."""
    pieces = pieces_of(words, [0, 1, 2, 0, 3, 4, 1])
    assert "".join(pieces) == words.decode([0, 1, 2, 0, 3, 4, 1]) == "the cats the ! cat"
    assert pieces[:4] == ["the", " cat", "s", " the"]


@pytest.mark.parametrize("seed", range(10))
def test_random_words_join_to_the_full_decode(words: PreTrainedTokenizerFast, seed: int) -> None:
    """Spaces alone, doubled or at the end included."""
    ids = random.Random(seed).choices(range(5), k=25)
    assert "".join(pieces_of(words, ids)) == words.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("seed", range(40))
def test_stop_text_finds_what_a_search_from_the_start_finds(seed: int) -> None:
    """Grown in random pieces over a small alphabet, against plain search; and the safe part is safe."""
    chance = random.Random(seed)
    stops = ["".join(chance.choices("ab", k=chance.randrange(2, 6))) for _ in range(chance.randrange(1, 4))]
    finder, text = StopText(stops), ""
    for _ in range(30):
        piece = "".join(chance.choices("ab", k=chance.randrange(1, 4)))
        text += piece
        expected = min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
        assert finder.find(text, len(piece)) == expected
        if expected is not None:
            return
        safe = finder.safe(text)
        beginnings = [k for k in range(len(text)) if any(stop.startswith(text[k:]) for stop in stops)]
        assert safe == min(beginnings, default=len(text))


def test_no_stop_strings() -> None:
    """Nothing is found and nothing held back."""
    finder = StopText([])
    assert finder.find("anything", 3) is None
    assert finder.safe("anything") == 8


def test_encode_text_and_ids(byte_level: PreTrainedTokenizerFast) -> None:
    """Raw text through the tokenizer, ids as they are."""
    assert encode(byte_level, "hi") == byte_level("hi")["input_ids"]
    assert encode(byte_level, [5, 6]) == [5, 6]


def test_encode_messages_through_the_template(byte_level: PreTrainedTokenizerFast) -> None:
    """With the generation prompt; special tokens of the template are single ids and are not doubled."""
    import copy

    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = (
        "<begin>{% for m in messages %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    (hi, more) = tokenizer("h>")["input_ids"]
    assert encode(tokenizer, [{"role": "user", "content": "h"}]) == [begin, hi, end, more]
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(BadPrompt, match="roles must alternate"):
        encode(tokenizer, [{"role": "user", "content": "h"}])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ([{"role": "user", "content": "x"}], "no chat template"),
        ([1, "two"], "string, a list of messages or a list of token ids"),
        ([{"role": "user"}, 3], "string, a list of messages or a list of token ids"),
    ],
)
def test_prompts_that_cannot_be_read(byte_level: PreTrainedTokenizerFast, prompt: Any, message: str) -> None:
    """In one sentence, with the remedy."""
    with pytest.raises(BadPrompt, match=message):
        encode(byte_level, prompt)


def test_what_is_a_batch() -> None:
    """A string, a list of messages and a list of ids are one prompt; lists of those are batches."""
    message = {"role": "user", "content": "x"}
    for single in ("text", [message, message], [1, 2, 3]):
        assert as_batch(single) == ([single], False)
        assert as_batch([single, single]) == ([single, single], True)
    assert as_batch([]) == ([], True)
