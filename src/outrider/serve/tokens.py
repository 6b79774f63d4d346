"""What single tokens look like, for log-probabilities and traces. Knows tokenizers, not models."""

from __future__ import annotations

from typing import Any

from ..pieces import Pieces


class TokenTexts:
    """Text and bytes of one token at a time.

    Args:
        tokenizer: Transformers'.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._spelled: list[bytes | None] = []
        try:
            self._spelled = Pieces(tokenizer, "target").spelled
        except Exception:  # a tokenizer that does not spell piece by piece: then bytes are those of the text
            self._spelled = []

    def text(self, token: int) -> str:
        """Its text; a token that is part of a character shows as a replacement mark."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def bytes(self, token: int) -> list[int]:
        """Its bytes, which joined with its neighbours' make valid text."""
        spelled = self._spelled[token] if token < len(self._spelled) else None
        return list(self.text(token).encode() if spelled is None else spelled)
