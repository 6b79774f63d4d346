"""What each token of a tokenizer spells, byte by byte. Knows tokenizers, not models.

Tokenizers mark spaces in their own ways ("Ġ", "▁") and break rare characters into bytes in their own ways too; as bytes
their pieces can be compared. What is claimed here is tried on a text with several scripts before it is believed.
"""

from __future__ import annotations

from typing import Any

from .errors import VocabularyMismatch

_SAMPLE = "Hello, world! naïve Straße 東京 привет سلام 🍕👩‍🚀\n\n  x = 12\t(y)"
_MARK = b"\n"  # a byte that no piece joins with what follows it
_SPACE = "▁"  # SentencePiece's


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Pieces:
    """A tokenizer as pieces of bytes.

    Args:
        tokenizer: Transformers'.
        whose: named in errors, for example "target".

    Attributes:
        spelled: id -> its bytes; None for special tokens and ids without a token.
        ids: bytes -> the id that spells them; where several do, one that is no single byte's.
        specials: id -> the text of a special token.
        lead: the id that the tokenizer puts before every text of its own accord, or None.

    Raises:
        VocabularyMismatch: its pieces do not spell the texts that it takes apart.
    """

    def __init__(self, tokenizer: Any, whose: str) -> None:
        self._tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        marked = set(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}
        lettered = "Ġ" in "".join(tokenizer.tokenize("a b"))  # else the letter may be there, but for itself
        letters = byte_letters()
        self.spelled: list[bytes | None] = [None] * (1 + max(vocabulary.values(), default=0))
        self.ids: dict[bytes, int] = {}
        self.specials: dict[int, str] = {}
        single: dict[bytes, int] = {}
        for token, index in sorted(vocabulary.items(), key=lambda pair: pair[1]):
            if index in marked:
                self.specials[index] = token
                continue
            if lettered and all(letter in letters for letter in token):
                piece = bytes(letters[letter] for letter in token)
            else:
                piece = token.encode() if lettered else _sentence_piece(token)
            self.spelled[index] = piece
            (single if not lettered and token.startswith("<0x") else self.ids).setdefault(piece, index)
        self.ids = single | self.ids
        self.ids.pop(b"", None)
        begun = [int(token) for token in tokenizer("x")["input_ids"]]
        self.lead = begun[0] if begun and begun[0] in self.specials else None
        self._indents = b"".join(self._spell(self._cut("x"))) == b" x"  # Llama 2's habit of a space before every text
        if self.encode(_SAMPLE.encode(), begins=True) is None:
            raise VocabularyMismatch(
                f"The {whose}'s tokenizer ({type(tokenizer).__name__}) does not spell text piece by piece, so drafts "
                "cannot be carried over: choose a draft model of the target's family, or another one."
            )

    def encode(self, text: bytes, *, begins: bool) -> list[tuple[int, int]] | None:
        """The tokens of a text.

        Args:
            text: valid UTF-8.
            begins: it stands at the beginning of a text or behind a special token; otherwise other text precedes it.

        Returns:
            (id, where in `text` it ends) each; None where the tokenizer would change the text (normalisation).
        """
        mark = _MARK if self._indents and not begins else b""
        source = mark + text
        ids = self._cut(source.decode())
        parts = self._spell(ids)
        whole = b"".join(parts)
        extra = len(whole) - len(source)
        if len(parts) < len(ids) or extra not in (0, 1) or whole != b" "[:extra] + source:
            return None
        found, end = [], -extra - len(mark)
        for token, part in zip(ids, parts, strict=True):
            start, end = end, end + len(part)
            if mark and end <= 0:
                continue
            if mark and start < 0:
                return None
            found.append((token, end))
        return found

    def turns(self) -> tuple[int | None, int | None]:
        """The special tokens that open and close a turn in the tokenizer's chat template, where it has them."""
        word = "Hello"
        if not getattr(self._tokenizer, "chat_template", None):
            return None, None
        try:
            text = self._tokenizer.apply_chat_template([{"role": "user", "content": word}], tokenize=False)
        except Exception:  # a template is a program of the model's authors and raises what it likes
            return None, None
        before, _, after = text.rpartition(word)
        opening = (token for token in self._cut(before) if token in self.specials and token != self.lead)
        closing = (token for token in self._cut(after) if token in self.specials)
        return next(opening, None), next(closing, None)

    def _cut(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def _spell(self, ids: list[int]) -> list[bytes]:
        """Their bytes; special tokens have none and are left out."""
        return [part for part in (self.spelled[token] for token in ids) if part is not None]


def _sentence_piece(token: str) -> bytes:
    """SentencePiece's own spelling: "▁" is a space, "<0xF0>" a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()
