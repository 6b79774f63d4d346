"""Prompts to measure on. Knows files of prompts, not models.

A prompt's text is never shown or logged; reports carry its id and its category.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..text import Prompt


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        id: unique among those that are measured together.
        category: its kind.
        prompt: text to be continued, chat messages, or ids.
    """

    id: str
    category: str
    prompt: Prompt

    def fitted(self, tokenizer: Any) -> Prompt:
        """As this tokenizer can take it: without a chat template, a user's only message stands for itself."""
        if isinstance(self.prompt, str) or getattr(tokenizer, "chat_template", None) or len(self.prompt) != 1:
            return self.prompt
        (only,) = self.prompt
        return only["content"] if isinstance(only, dict) and isinstance(only.get("content"), str) else self.prompt
