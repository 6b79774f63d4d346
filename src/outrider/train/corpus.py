"""Answers as batches: which go together in which order, and the states that the target has at their tokens.

The order follows from seed and epoch, so a run that is taken up again sees what it would have seen. States are computed
by the target's own forward pass as it serves, or read from where they were stored. Knows no heads and no losses.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import BadOption
from ..features import depth_of, side_by_side
from ..kv import KVCache
from ..target import Target, prefill
from .answers import Answer

_WINDOW = 64  # answers among which those of like length come together
_LEAST = 8  # answer tokens that make an answer worth training on
_PIECE = 24  # slots of a piece of text
_TENSORS = ("ids", "answer", "features", "last")  # of a batch


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts with the target's states at their tokens; short ones are padded at the end.

    Attributes:
        ids: [B, N] int64.
        answer: [B, N] bool, the tokens that the target wrote.
        features: [B, N, n * D] float32, the tapped states side by side.
        last: [B, N, D] float32, the target's last states, normed.
        seed: for what a method draws at random on this batch.
        done: share of the run that lies behind it, for methods that change on their way.
    """

    ids: Tensor
    answer: Tensor
    features: Tensor
    last: Tensor
    seed: int = 0
    done: float = 0.0

    @property
    def tokens(self) -> int:
        """How many the target wrote."""
        return int(self.answer.sum())

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        moved = {name: getattr(self, name).to(device) for name in _TENSORS}
        return replace(self, **moved)


def teaches(answer: Answer, longest: int) -> bool:
    """Whether enough of an answer is left when its text is cut to `longest` tokens."""
    return min(longest - len(answer.prompt), len(answer.answer)) >= _LEAST


def usable(answers: Sequence[Answer], longest: int, *, held_out: bool = False) -> list[Answer]:
    """Those for training (or those held out), cut to `longest` tokens; those of which too little is left go.

    Raises:
        BadOption: nothing is left.
    """
    kept = [
        answer.model_copy(update={"answer": answer.answer[: longest - len(answer.prompt)]})
        for answer in answers
        if answer.held_out == held_out and teaches(answer, longest)
    ]
    if not kept and not held_out:
        raise BadOption(
            f"No answer is left to train on: all are held out, longer than {longest} tokens in the prompt alone, or "
            f"shorter than {_LEAST}: make more data, or raise --longest."
        )
    return kept


def whole(answers: Iterable[Answer]) -> list[Answer]:
    """The same texts with all that comes after their first token as the answer: what the target would have written in a
    prompt's place can be learnt there, too."""
    return [answer.model_copy(update={"prompt": answer.ids[:1], "answer": answer.ids[1:]}) for answer in answers]


def draft_vocabulary(answers: Sequence[Answer], size: int, vocabulary: int, ends: Sequence[int]) -> Tensor:
    """[size] int64, rising: the ends of text, and the tokens that answers have most often.

    Where answers have fewer tokens than that, the lowest other ids fill up.
    """
    if size >= vocabulary:
        return torch.arange(vocabulary)
    counts = Counter(token for answer in answers for token in answer.answer)
    ranked = dict.fromkeys([*ends, *(token for token, _ in counts.most_common()), *range(vocabulary)])
    return torch.tensor(sorted(list(ranked)[:size]))


def spare_token(answers: Sequence[Answer], vocabulary: int) -> int:
    """The highest id that no text has, or else the rarest one: vocabularies end in tokens that nobody uses."""
    counts = Counter(token for answer in answers for token in answer.ids)
    return min(reversed(range(vocabulary)), key=lambda token: counts[token])


def order(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Which answers make the batches of an epoch, so many tokens at most, padding included; one answer at least."""
    choice = random.Random(f"{seed} {epoch}")
    places = list(range(len(lengths)))
    choice.shuffle(places)
    batches: list[list[int]] = []
    for start in range(0, len(places), _WINDOW):
        batch: list[int] = []
        for place in sorted(places[start : start + _WINDOW], key=lambda place: (lengths[place], place)):
            if batch and (len(batch) + 1) * lengths[place] > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(place)
        batches.append(batch)
    choice.shuffle(batches)
    return batches


class Features(Protocol):
    """Where the states of a text come from.

    Attributes:
        target: whose they are.
    """

    target: Target

    def __call__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """[N, n * D] tapped and [N, D] last states at these tokens, float32."""
        ...


class OnlineFeatures:
    """States computed as they are needed, by the pass that serves.

    Attributes:
        target: whose states.

    Args:
        target: see above.
        taps: which layers'.
    """

    def __init__(self, target: Target, taps: tuple[int, ...]) -> None:
        self.target, self._taps, self._last = target, taps, depth_of(target)

    def __call__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Features`."""
        cache: KVCache = self.target.new_cache(1, len(ids))
        hidden = prefill(self.target, list(ids), cache, taps=tuple({*self._taps, self._last}))
        last = hidden[self._last].float()
        return side_by_side(hidden, self._taps).float() if self._taps else last[:, :0], last


def collate(answers: Sequence[Answer], states: Features, seed: int = 0) -> Batch:
    """A batch of these answers."""
    found = [states(answer.ids) for answer in answers]
    ids = pad_sequence([torch.tensor(answer.ids) for answer in answers], batch_first=True)
    answer = torch.zeros(ids.shape, dtype=torch.bool)
    for row, one in enumerate(answers):
        answer[row, len(one.prompt) : len(one.ids)] = True
    features, last = (pad_sequence(list(parts), batch_first=True) for parts in zip(*found, strict=True))
    return Batch(ids.to(last.device), answer.to(last.device), features, last, seed)


def pieces(batch: Batch, share: float) -> Batch:
    """A share of a batch, in short pieces of its texts: a step learns from more texts for as much work.

    Args:
        batch: the texts.
        share: of its slots, above 0 and below 1.

    Returns:
        A row for each piece, drawn by the batch's seed among those with tokens that the target wrote.
    """
    size = batch.ids.shape[1]
    length = min(size, _PIECE)
    chance = torch.Generator().manual_seed(batch.seed)
    first = -int(torch.randint(length, (), generator=chance))  # so that texts are not cut in the same places each time
    starts = torch.arange(first, size, length).clamp(0, size - length)
    slots = starts[:, None] + torch.arange(length)
    there = batch.answer.cpu()[:, slots].any(-1).nonzero()  # row and piece
    drawn = there[torch.randperm(len(there), generator=chance)[: max(1, round(share * len(there)))]]
    row, slot = drawn[:, :1].to(batch.ids.device), slots[drawn[:, 1]].to(batch.ids.device)
    return replace(batch, **{name: getattr(batch, name)[row, slot] for name in _TENSORS})
