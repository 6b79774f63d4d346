"""Telling a target's tokens again in a draft model's tokens, and the draft model's back. Knows no models.

What the two tokenizers share are the bytes that their tokens spell (Timor et al., 2502.05202). The text that a request
has so far is re-encoded from a few tokens before its end, since new text can change how the last tokens are cut; what
lies further back stays, and so do the keys that the draft model has for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch

from ..pieces import Pieces

_BEHIND = 8  # tokens re-encoded with new text


class Pairing:
    """How the tokens of two tokenizers correspond.

    Args:
        target, draft: their pieces.
        target_ends, draft_ends: ids that end an output, the usual one first.
        widths: of the target's and the draft model's logits.

    Attributes:
        shared: [width of the draft model's logits] int64, the target's id for the same token, or -1. No two are equal.
        coverage: share of the draft model's ordinary tokens that the target has too.
    """

    def __init__(
        self,
        target: Pieces,
        draft: Pieces,
        target_ends: Sequence[int],
        draft_ends: Sequence[int],
        widths: tuple[int, int],
    ) -> None:
        self.target, self.draft = target, draft
        self._told: dict[int, list[int]] = {}
        self._back: dict[int, int] = {}
        self._pair_specials(target_ends, draft_ends)
        self._longest = max(map(len, draft.ids), default=0)
        shared = torch.full((widths[1],), -1)
        for piece, index in draft.ids.items():
            token = target.ids.get(piece, widths[0])
            if index < widths[1] and token < widths[0]:
                shared[index] = token
        self.coverage = int((shared >= 0).sum()) / max(1, len(draft.ids))
        taken = set(shared.tolist())
        for index, token in self._back.items():
            if index < widths[1] and token < widths[0] and token not in taken:
                shared[index] = token
                taken.add(token)
        self.shared = shared

    def _pair_specials(self, target_ends: Sequence[int], draft_ends: Sequence[int]) -> None:
        """Special tokens of the same name mean the same; ends mean ends, and openings of a turn each other."""
        names = {name: index for index, name in self.draft.specials.items()}
        (opens, closes), (draft_opens, draft_closes) = self.target.turns(), self.draft.turns()
        ends = [token for token in (closes, *target_ends) if token is not None]
        other_ends = [token for token in (draft_closes, *draft_ends) if token is not None]
        for token, name in self.target.specials.items():
            if token == self.target.lead:
                self._told[token] = []  # the draft model's text begins in its own way
            elif name in names:
                self._told[token] = [names[name]]
                self._back[names[name]] = token
            elif token in ends and other_ends:
                self._told[token] = [other_ends[0]]
            elif token == opens and draft_opens is not None:
                self._told[token] = [draft_opens]
        for token in other_ends:
            if ends:
                self._back.setdefault(token, ends[0])

    def told(self, special: int) -> list[int] | None:
        """The draft model's ids for a special token of the target; None where it has to be told as text."""
        return self._told.get(special)

    def back(self, token: int) -> int | None:
        """The target's id for a special token of the draft model."""
        return self._back.get(token)

    def encode(self, text: bytes, *, begins: bool) -> list[tuple[int, int]]:
        """The draft model's ids for any bytes, with the place in `text` where each ends.

        Its tokenizer's own where that leaves the text as it is; the longest pieces that fit, one after another, where
        it would not, and for a character of which only some bytes are there yet.
        """
        valid = valid_length(text)
        found = self.draft.encode(text[:valid], begins=begins)
        if found is None:
            return self._longest_first(text, 0)
        if valid < len(text):
            found = found[:-1]  # it may be one with the bytes that follow
            found += self._longest_first(text, found[-1][1] if found else 0)
        return found

    def _longest_first(self, text: bytes, start: int) -> list[tuple[int, int]]:
        found = []
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self.draft.ids), None)
            if end is not None:
                found.append((self.draft.ids[text[start:end]], end))
            start = end or start + 1  # a byte without a token cannot be told
        return found


class Transcript:
    """One request's tokens, told in the draft model's.

    Attributes:
        ids: the draft model's ids of the text so far; never empty.
    """

    def __init__(self, pairing: Pairing, tokens: Sequence[int]) -> None:
        self._pairing = pairing
        lead = pairing.draft.lead
        self.ids = [] if lead is None else [lead]
        self._first = len(self.ids)  # of those told since the last special token
        self._ends: list[int] = []  # where each of those ends in `_run`
        self._run = bytearray()  # text since then
        self._recent: deque[bytes] = deque(maxlen=_BEHIND)  # pieces of the target's last tokens, special ones apart
        self._fresh = True  # nothing stands before those
        self.extend(tokens)
        if not self.ids:
            self.ids.append(0)
            self._first = 1

    def extend(self, tokens: Iterable[int]) -> int:
        """Tell what the target has committed; the first place of `ids` that is another one than before."""
        pairing, changed = self._pairing, len(self.ids)
        for token in tokens:
            spelled = pairing.target.spelled
            piece = spelled[token] if token < len(spelled) else None
            if piece is None:
                told, piece = pairing.told(token), pairing.target.specials.get(token, "").encode()
                self._recent.clear()
                self._fresh = True
                if told is not None:
                    changed = min(changed, self._tell())
                    self.ids += told
                    self._first, self._ends, self._run = len(self.ids), [], bytearray()
                    continue
            else:
                self._fresh = self._fresh and len(self._recent) < _BEHIND
                self._recent.append(piece)
            self._run += piece
        return min(changed, self._tell())

    def _tell(self) -> int:
        """Re-encode the end of the run; the first place of `ids` that is another one than before."""
        kept = max(0, len(self._ends) - _BEHIND)
        while kept and (end := self._ends[kept - 1]) < len(self._run) and _inside(self._run[end]):
            kept -= 1
        start = self._ends[kept - 1] if kept else 0
        told = self._pairing.encode(bytes(self._run[start:]), begins=kept == 0)
        place = self._first + kept
        before, after = self.ids[place:], [token for token, _ in told]
        self.ids[place:] = after
        self._ends[kept:] = [start + end for _, end in told]
        pairs = enumerate(zip_longest(before, after))
        return place + next((at for at, (old, new) in pairs if old != new), len(after))

    def back(self, drafted: Sequence[int]) -> list[int]:
        """The target's ids for what the draft model goes on with, as far as they can be told.

        The target's last tokens are encoded with the new text, and what follows them counts. Where the seam would lie
        inside a token, the new text is encoded alone.
        """
        text, special = b"", None
        for token in drafted:
            spelled = self._pairing.draft.spelled
            piece = spelled[token] if token < len(spelled) else None
            if piece is None:
                special = self._pairing.back(token)
                break
            text += piece
        recent, fresh = list(self._recent), self._fresh
        while recent and _inside(recent[0][0]):
            recent, fresh = recent[1:], False
        window = b"".join(recent)
        whole = window + text
        valid = valid_length(whole)
        told = self._behind(whole[:valid], len(window), fresh)
        if told is None:
            told = self._behind(text[: max(0, valid - len(window))], 0, fresh and not window) or []
        if special is not None and valid == len(whole):
            told.append(special)
        return told

    def _behind(self, text: bytes, seam: int, begins: bool) -> list[int] | None:
        """The target's ids for what follows the first `seam` bytes; None where no token ends there."""
        found = self._pairing.target.encode(text, begins=begins)
        if found is None:
            return None
        if seam == 0:
            return [token for token, _ in found]
        place = next((place for place, (_, end) in enumerate(found, 1) if end == seam), None)
        return None if place is None else [token for token, _ in found[place:]]


def valid_length(text: bytes) -> int:
    """How many bytes of a text are whole characters, from its beginning."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(text)


def _inside(byte: int) -> bool:
    """Whether a byte continues a character."""
    return byte & 0xC0 == 0x80
