"""The law of short texts: what the target itself would write, exactly, and what the loop writes, by counting.

The target's law of a few tokens is worked out by plain passes, one prefix after another. Top-k keeps the texts few, so
that every one of them is expected often enough to be counted; the temperature is the lowest at which the first token is
not all but certain, so that there is something to count. Whole texts are counted, for the law of single tokens misses
faults that show in their joint law only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..row import Request
from ..sampling import History, Sampling
from ..target import Target
from ..types import Round, Tree
from .chi_square import Text
from .rounding import LogitsOf, plain_logits
from .trials import OnePrompt, Parts, wants_prediction

TOP_K, LENGTH = 3, 3
_TEMPERATURES = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
_CERTAIN = 0.6  # a likeliest first token above that leaves too little to the others
_TRIED = 8  # texts that show whether anything is drafted after a prompt
_ROWS, _BYTES = 8, 512 << 20  # served together: at most so many, and no more than these bytes of keys and values


@dataclass(frozen=True, slots=True)
class ShortTexts:
    """Texts of a few tokens after one prompt.

    Attributes:
        prompt: ids.
        sampling: how they are drawn.
        law: text -> its probability; they sum to 1.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    law: dict[Text, float]

    def request(self, seed: int, prediction: Text = ()) -> Request:
        """One of them, to be written."""
        return Request(self.prompt, self.sampling, seed, LENGTH, prediction=prediction)

    @property
    def likeliest(self) -> Text:
        """The text with the highest probability."""
        return max(self.law, key=lambda text: self.law[text])


def short_texts(target: Target, prompt: Sequence[int]) -> ShortTexts:
    """The target's own law after a prompt, at the lowest temperature that leaves the first token open."""
    known: dict[Text, torch.Tensor] = {}
    plain = plain_logits(target)

    def logits_of(ids: Sequence[int]) -> torch.Tensor:
        text = tuple(ids)
        if text not in known:
            known[text] = plain(text)
        return known[text]

    sampling = Sampling(temperature=_TEMPERATURES[-1], top_k=TOP_K)
    for temperature in _TEMPERATURES:
        tried = Sampling(temperature=temperature, top_k=TOP_K)
        if max(chance for _, chance in _following(logits_of, tried, prompt, (), target.eos)) <= _CERTAIN:
            sampling = tried
            break
    law = dict(_texts(logits_of, sampling, prompt, target.eos))
    return ShortTexts(tuple(prompt), sampling, law)


def _texts(
    logits_of: LogitsOf, sampling: Sampling, prompt: Sequence[int], eos: tuple[int, ...]
) -> Iterator[tuple[Text, float]]:
    """Every text that the target could write, to the length or the end of sequence."""
    open_: list[tuple[Text, float]] = [((), 1.0)]
    while open_:
        text, weight = open_.pop()
        if len(text) == LENGTH or (text and text[-1] in eos):
            yield text, weight
            continue
        open_ += [
            ((*text, token), weight * chance) for token, chance in _following(logits_of, sampling, prompt, text, eos)
        ]


def _following(
    logits_of: LogitsOf, sampling: Sampling, prompt: Sequence[int], text: Text, eos: tuple[int, ...]
) -> list[tuple[int, float]]:
    """What may follow, and with which probability."""
    ids = [*prompt, *text]
    law = sampling.law(logits_of(ids)[None], Tree.chain(ids[-1:]), History(ids, len(prompt), eos)).probs[0].double()
    support = law.nonzero().squeeze(-1)
    return list(zip(support.tolist(), (law[support] / law.sum()).tolist(), strict=True))


def rows_together(target: Target) -> int:
    """How many short requests may be served together without filling the memory."""
    cache = target.new_cache(1, 1)
    target.forward([Tree.chain([0])], cache)
    return max(1, min(_ROWS, _BYTES // max(1, cache.nbytes)))


def prediction_for(parts: Parts, texts: ShortTexts) -> Text:
    """What a drafter that follows a prediction is told: the likeliest text. Nothing to others."""
    return texts.likeliest if wants_prediction(parts.drafter) else ()


def promising(parts: Parts, prompts: Sequence[Sequence[int]]) -> ShortTexts | None:
    """The short texts after the first prompt behind which this drafter drafts anything; None where it never does."""
    for prompt in prompts:
        texts = short_texts(parts.target, prompt)
        _, rounds = count(parts, texts, _TRIED)
        if any(round_.drafted for round_ in rounds):
            return texts
    return None


def count(
    parts: Parts, texts: ShortTexts, samples: int, advance: Callable[[], None] = lambda: None
) -> tuple[Counter[Text], list[Round]]:
    """How often each text is written with the seeds 0, 1, 2, ..., and in which rounds."""
    expected = prediction_for(parts, texts)
    requests = [texts.request(seed, expected) for seed in range(samples)]
    known = OnePrompt(parts.target, texts.prompt, parts.drafter.taps)
    served = parts.serve(requests, rows_together(parts.target), advance, known)
    rounds = [round_ for written in served for round_ in written.rounds]
    return Counter(tuple(written.ids) for written in served), rounds
