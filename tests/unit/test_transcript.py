"""Two tokenizers of one text: what their tokens spell, how text is told again, and how drafts come back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from alphabets import SCRIPTS, Alphabet, byte_level, sentence_piece

from outrider.drafters.transcript import Pairing, Transcript
from outrider.errors import VocabularyMismatch
from outrider.pieces import Pieces

MAKERS: dict[str, Any] = {
    "bytes": lambda: byte_level(400),
    "more bytes": lambda: byte_level(700, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    "pieces": lambda: sentence_piece(500),
    "indented pieces": lambda: sentence_piece(600, indents=True),
}
PAIRS = [(target, draft) for target in MAKERS for draft in MAKERS if target != draft]


@pytest.fixture(scope="module")
def known() -> dict[str, tuple[Any, Pieces]]:
    """Each tokenizer with its pieces, made once."""
    made = {name: make() for name, make in MAKERS.items()}
    return {name: (tokenizer, Pieces(tokenizer, name)) for name, tokenizer in made.items()}


def paired(known: Any, target: str, draft: str) -> Pairing:
    """The pairing of two of them."""
    (one, pieces), (other, others) = known[target], known[draft]
    ends = [(tokenizer.eos_token_id,) for tokenizer in (one, other)]
    return Pairing(pieces, others, ends[0], ends[1], (len(one), len(other)))


def spell(pieces: Pieces, ids: list[int]) -> bytes:
    """The bytes of these ids, special tokens apart."""
    return b"".join(pieces.spelled[token] or b"" for token in ids)


@pytest.mark.parametrize("name", MAKERS)
def test_pieces_spell_what_the_tokenizer_decodes(known: Any, name: str) -> None:
    """Every script, emoji included, from its bytes; the first of `encode`'s places is 0 or the first token's end."""
    tokenizer, pieces = known[name]
    for text in SCRIPTS:
        found = pieces.encode(text.encode(), begins=True)
        assert found is not None
        ids = [token for token, _ in found]
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert spell(pieces, ids).decode().removeprefix(" ") == text.removeprefix(" ")
        assert [end for _, end in found] == sorted(end for _, end in found)
        assert found[-1][1] == len(text.encode())
        behind = pieces.encode(text.encode(), begins=False)
        assert behind is not None
        assert spell(pieces, [token for token, _ in behind]) == text.encode(), "no space is put before text within text"


def test_a_tokenizer_that_changes_text_is_refused() -> None:
    """One that forgets case cannot carry drafts over."""
    from tokenizers import normalizers

    tokenizer = byte_level(300)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(VocabularyMismatch, match="draft model's tokenizer"):
        Pieces(tokenizer, "draft model")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_the_transcript_always_spells_the_targets_text(known: Any, target: str, draft: str, seed: int) -> None:
    """To the byte, after every commit, in the middle of characters too; what it says is unchanged is unchanged."""
    chance = random.Random(seed)
    tokenizer, pieces = known[target]
    pairing = paired(known, target, draft)
    ids = [
        token for text in chance.sample(SCRIPTS, 3) for token in tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    at = chance.randrange(1, 20)
    transcript = Transcript(pairing, ids[:at])
    while at < len(ids):
        before, size = list(transcript.ids), chance.choice([1, 1, 2, 5])
        changed = transcript.extend(ids[at : at + size])
        at += size
        assert transcript.ids[:changed] == before[:changed]
        assert transcript.ids != before
        told = spell(pairing.draft, transcript.ids)
        assert told.removeprefix(b" ") == spell(pieces, ids[:at]).removeprefix(b" ")


@pytest.mark.parametrize(
    ("target", "draft"), [("pieces", "bytes"), ("bytes", "pieces"), ("more bytes", "bytes"), ("bytes", "more bytes")]
)
def test_text_is_told_as_the_draft_model_would_cut_it(known: Any, target: str, draft: str) -> None:
    """Token by token or at once: the ids are those that the draft model's own tokenizer gives for the whole text."""
    tokenizer, own = known[target][0], known[draft][0]
    for text in SCRIPTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        slowly = Transcript(paired(known, target, draft), ids[:1])
        for token in ids[1:]:
            slowly.extend([token])
        at_once = Transcript(paired(known, target, draft), ids)
        assert slowly.ids == at_once.ids == own(text)["input_ids"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_right_drafts_come_back_as_the_targets_own_tokens(known: Any, target: str, draft: str, seed: int) -> None:
    """Whatever was committed, whole characters or not: the rest of the text, drafted, is the target's rest."""
    chance = random.Random(seed)
    pairing = paired(known, target, draft)
    tokenizer, _ = known[target]
    for text in SCRIPTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        at = chance.randrange(1, len(ids))
        transcript = Transcript(pairing, ids[:at])
        rest = spell(pairing.target, ids[at:])
        drafted = [token for token, _ in pairing.encode(rest, begins=False)]
        back = transcript.back(drafted)
        assert back == ids[at:], (text, at)
        assert transcript.back(drafted) == back, "looking changes nothing"


def test_a_draft_that_is_no_text_comes_back_empty(known: Any) -> None:
    """Bytes that cannot follow, and a character that stays unfinished."""
    pairing = paired(known, "pieces", "bytes")
    ids = known["pieces"][0]("fox", add_special_tokens=False)["input_ids"]
    bare = {bytes([byte]): pairing.draft.ids[bytes([byte])] for byte in range(256)}
    transcript = Transcript(pairing, ids)
    assert transcript.back([]) == []
    assert transcript.back([bare[b"\x9f"], bare[b"a"]]) == []
    assert transcript.back([bare[b"\xf0"], bare[b"\x9f"]]) == []


def test_special_tokens_are_told_by_name_by_role_or_as_text(known: Any) -> None:
    """Equal names, turns that open and close, ends, a beginning once; what has no counterpart is spelled."""
    pairing = paired(known, "pieces", "bytes")
    target, draft = known["pieces"][0], known["bytes"][0]
    name = draft.convert_tokens_to_ids
    chat = target.apply_chat_template(
        [{"role": "user", "content": "the fox"}], add_generation_prompt=True, tokenize=False
    )
    ids = target(chat, add_special_tokens=False)["input_ids"]
    told = Transcript(pairing, ids).ids
    assert draft.decode(told) == "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>model\n"
    assert told.count(name("<|im_start|>")) == 2, "as a special token, not as text"
    assert Transcript(pairing, [target.eos_token_id]).ids == [name("<|im_end|>")]
    assert pairing.back(name("<|im_end|>")) == target.convert_tokens_to_ids("<end_of_turn>")
    assert Transcript(pairing, ids).back([name("<|im_end|>")]) == [target.convert_tokens_to_ids("<end_of_turn>")]

    other = paired(known, "more bytes", "pieces")
    chatml = known["more bytes"][0]
    ids = chatml("<|endoftext|>the fox<|im_end|>", add_special_tokens=False)["input_ids"]
    said = known["pieces"][0].decode(Transcript(other, ids).ids)
    assert said == "<bos><|endoftext|>the fox<end_of_turn>", "its own beginning, and as text what it has no name for"

    same = paired(known, "more bytes", "bytes")
    ids = chatml("<|im_start|>fox<|im_end|>", add_special_tokens=False)["input_ids"]
    assert draft.decode(Transcript(same, ids).ids) == "<|im_start|>fox<|im_end|>"


def test_shared_tokens_spell_the_same_and_no_two_are_one(known: Any) -> None:
    """The map is injective; its coverage counts ordinary tokens; widths beyond the vocabularies share nothing."""
    for target, draft in PAIRS:
        pairing = paired(known, target, draft)
        shared = pairing.shared.tolist()
        taken = [token for token in shared if token >= 0]
        assert len(set(taken)) == len(taken)
        spelled = 0
        for index, token in enumerate(shared):
            if token >= 0 and pairing.draft.spelled[index] is not None:
                assert pairing.draft.spelled[index] == pairing.target.spelled[token]
                spelled += 1
        assert pairing.coverage == spelled / len(pairing.draft.ids)
        assert 0.1 < pairing.coverage <= 1
    pieces = known["bytes"][1]
    assert Pairing(pieces, pieces, (), (), (len(pieces.spelled),) * 2).coverage == 1
    wide = Pairing(pieces, pieces, (), (), (100, len(pieces.spelled) + 50))
    assert wide.shared.shape == (len(pieces.spelled) + 50,)
    assert int(wide.shared.max()) < 100
    assert set(wide.shared[-50:].tolist()) == {-1}


def test_bytes_without_a_token_are_left_out() -> None:
    """A draft model that cannot spell something is told the rest."""
    pairing = Pairing(Alphabet(["a", "b", "c"]), Alphabet(["a", "c"]), (), (), (3, 2))
    transcript = Transcript(pairing, [0, 1, 2])
    assert transcript.ids == [0, 1]
    assert transcript.extend([1]) == 2
    assert transcript.extend([0]) == 2
    assert transcript.ids == [0, 1, 0]
    assert Transcript(pairing, [1]).ids == [0], "never empty"
