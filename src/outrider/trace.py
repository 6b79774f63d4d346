"""Rounds as people want to see them: coloured text, a table, JSON. Knows rounds, not how they came about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from .stats import finite
from .text import Detokenizer, Tokenizer
from .types import Origin, Round

STYLES: dict[Origin, str] = {"accepted": "green", "corrected": "yellow", "bonus": "cyan", "plain": ""}
LEGEND = "accepted draft tokens, the target's corrections, bonus tokens"


class Painter:
    """Gives streamed text the colours of where it came from.

    Text arrives from `Row.told`, which may hold some back; the painter follows it character by character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._words = Detokenizer(tokenizer)
        self._waiting: list[tuple[str, Origin]] = []

    def paint(self, text: str, round_: Round) -> list[tuple[str, Origin]]:
        """The pieces of `text`, which this round made certain, each with its origin."""
        for token, origin in zip(round_.tokens, round_.origins, strict=True):
            self._waiting.append((self._words.push(token), origin))
        if round_.finish:
            self._waiting.append((self._words.flush(), round_.origins[-1]))
        painted: list[tuple[str, Origin]] = []
        left = len(text)
        while left and self._waiting:
            piece, origin = self._waiting.pop(0)
            painted.append((piece[:left], origin))
            if len(piece) > left:
                self._waiting.insert(0, (piece[left:], origin))
            left -= min(left, len(piece))
        return [(piece, origin) for piece, origin in painted if piece]


def coloured(spans: Iterable[tuple[str, Origin]]) -> Text:
    """Spans as rich text."""
    return Text.assemble(*((piece, STYLES[origin]) for piece, origin in spans))


def legend() -> Text:
    """What the colours mean."""
    parts = LEGEND.split(", ")
    styles = (STYLES["accepted"], STYLES["corrected"], STYLES["bonus"])
    return Text(", ").join(Text(part, style) for part, style in zip(parts, styles, strict=True))


def as_json(round_: Round) -> dict[str, Any]:
    """A round for JSON: the whole draft, what was kept of it, and what was committed."""
    return {
        "request": round_.request,
        "round": round_.number,
        "start": round_.start,
        "draft_tokens": round_.tree.tokens[1:].tolist(),
        "draft_parents": round_.tree.parents[1:].tolist(),
        "path": list(round_.path),
        "tokens": list(round_.tokens),
        "origins": list(round_.origins),
        "finish": round_.finish,
        "draft_seconds": round_.draft_seconds,
        "verify_seconds": round_.verify_seconds,
        "divergence": [{"tv": away.tv, "kl": finite(away.kl)} for away in round_.divergence],
    }


def table(rounds: Sequence[Round], prompt: Sequence[int], tokenizer: Tokenizer) -> Table:
    """The table of rounds: prefix, drafted, accepted, rejected, and the target's own token."""
    view = Table(title="Rounds", title_justify="left", show_lines=False)
    for heading in ("round", "prefix ends", "drafted", "accepted", "rejected", "target's own"):
        view.add_column(heading, overflow="fold", justify="right" if heading == "round" else "left")
    written = list(prompt)
    for round_ in rounds:
        drafted = round_.tree.tokens[1:].tolist()
        kept = set(round_.path)
        own = round_.tokens[round_.accepted :]
        view.add_row(
            str(round_.number + 1),
            _words(written[-3:], tokenizer),
            _words(drafted, tokenizer),
            Text(_words(round_.tokens[: round_.accepted], tokenizer), STYLES["accepted"]),
            Text(_words([t for n, t in enumerate(drafted, 1) if n not in kept], tokenizer), "red strike"),
            Text(
                f"{_words(own, tokenizer)} ({round_.origins[-1]})" if own else "",
                STYLES[round_.origins[-1]],
            ),
        )
        written += round_.tokens
    return view


def _words(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Tokens one by one, so that their borders can be seen."""
    return "·".join(repr(tokenizer.decode([token], skip_special_tokens=False))[1:-1] for token in tokens)
