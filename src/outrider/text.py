"""Token ids to text as they come, and where text ends. Knows tokenizers, not models.

Text is only ever appended to: a piece is held back while it ends in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .errors import BadOption, BadPrompt

Message = dict[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]
Prediction = str | Sequence[int]


class Tokenizer(Protocol):
    """What the house uses of a Transformers tokenizer."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """Text of these ids."""
        ...


class Detokenizer:
    """Incremental decoding: joined, the pieces equal the text of all ids.

    A token's text can depend on its neighbour (byte pieces of one character, leading spaces), so each step decodes a
    short window twice, with and without the new token, and takes the difference.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start, self._done = 0, 0  # window start; ids whose text is out
        self.text = ""

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._done])
        after = self._decode(self._ids[self._start :])
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        return self._emit(after[len(before) :])

    def flush(self) -> str:
        """What was held back at the end, unfinished characters included."""
        before = self._decode(self._ids[self._start : self._done])
        return self._emit(self._decode(self._ids[self._start :])[len(before) :])

    def _emit(self, piece: str) -> str:
        self._start, self._done = self._done, len(self._ids)
        self.text += piece
        return piece

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class StopText:
    """Finds the earliest stop string in growing text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)

    def find(self, text: str, new: int) -> int | None:
        """Where the earliest stop string begins that ends within the last `new` characters, or None."""
        start = max(0, len(text) - new - self._longest + 1)
        found = [place for stop in self._stops if (place := text.find(stop, start)) >= 0]
        return min(found, default=None)

    def safe(self, text: str) -> int:
        """How many characters of the text cannot turn out to be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return len(text) - length
        return len(text)


def encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Ids of a prompt: raw text, chat messages through the tokenizer's template, or ids as they are.

    Raises:
        BadPrompt: empty, not text, or messages for a tokenizer without a chat template.
    """
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt)["input_ids"])
        if not prompt or not ids:
            raise BadPrompt("The prompt is empty: give at least one token to continue.")
        return [int(token) for token in ids]
    if not prompt:
        raise BadPrompt("The prompt is empty: give at least one token to continue.")
    if all(isinstance(part, dict) for part in prompt):
        if not getattr(tokenizer, "chat_template", None):
            raise BadPrompt("This model's tokenizer has no chat template: give the prompt as plain text instead.")
        try:
            text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the model's authors and raises what it likes
            raise BadPrompt(f"The chat template refuses these messages ({error}): use role and content.") from error
        # The template writes the special tokens itself: adding them here would double them.
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    if all(isinstance(part, int) for part in prompt):
        return [part for part in prompt if isinstance(part, int)]
    raise BadPrompt("A prompt is a string, a list of messages or a list of token ids; a batch is a list of those.")


def encode_prediction(tokenizer: Any, prediction: Prediction, *, encoded: bool = False) -> tuple[int, ...]:
    """Ids of a text that the caller expects, without special tokens; ids as they are.

    Args:
        tokenizer: the target's.
        prediction: the text.
        encoded: of an encoder-decoder target, whose tokenizer has another side for answers; those have special tokens.

    Raises:
        BadOption: empty, or text without a tokenizer.
    """
    if isinstance(prediction, str) and tokenizer is None:
        raise BadOption("A prediction in text needs a tokenizer: pass tokenizer= to load, or give token ids.")
    ids: Sequence[int]
    if not isinstance(prediction, str):
        ids = prediction
    elif encoded:
        ids = tokenizer(text_target=prediction)["input_ids"]
    else:
        ids = tokenizer(prediction, add_special_tokens=False)["input_ids"]
    if not ids:
        raise BadOption("The prediction is empty: leave it out.")
    return tuple(ids)


def as_predictions(
    prediction: Prediction | Sequence[Prediction] | None, prompts: int, batched: bool
) -> list[Prediction | None]:
    """A prediction for each prompt: one text or list of ids without a batch, a list of as many with one.

    Raises:
        BadOption: it does not go with the prompts.
    """
    if prediction is None:
        return [None] * prompts
    if isinstance(prediction, str) or all(isinstance(part, int) for part in prediction):
        if not batched:
            return [prediction]  # type: ignore[list-item]
    elif batched and len(prediction) == prompts:
        return list(prediction)  # type: ignore[arg-type]
    raise BadOption("prediction goes with the prompts: one text for one prompt, a list of as many for a batch.")


def as_batch(prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether a list was given.

    A list of messages and a list of ids are one prompt; a list of strings, of such lists, is a batch.
    """
    if isinstance(prompts, str):
        return [prompts], False
    if prompts and all(isinstance(part, dict | int) for part in prompts):
        return [prompts], False  # type: ignore[list-item]
    return list(prompts), True  # type: ignore[arg-type]
