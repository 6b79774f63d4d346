"""One request under way: its tokens, its text, and where it ends. Knows no models.

`extend` is the only place where output grows, for plain decoding and for blocks of any size alike: EOS, then the
earliest stop string, then the budget, then the context. Ids, text, statistics and cache length all follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .drafters import Drafter
from .errors import BadOption, BadPrompt
from .policy import Policy
from .sampling import History, Sampling
from .text import Detokenizer, StopText, Tokenizer
from .types import FinishReason, Source


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody wants.

    Attributes:
        prompt: ids, at least one.
        sampling: how tokens are chosen.
        seed: the noise is keyed by it.
        max_new_tokens: exactly how many tokens may be written, EOS included.
        stop: strings that end the output; they are not part of its text.
        prediction: ids that the caller expects to be written, for drafters that use them.
        logprobs: how many of the likeliest tokens `Round.logprobs` lists beside each that is written; None: no list.
        ignore_eos: the ids that end the target's output do not end this one, as benchmarks of fixed length want it.
        until: asked after each token, with prompt and output; True ends the output there.
        source: what an encoder-decoder target reads before it writes; None for decoder-only targets.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    prediction: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    until: Callable[[Sequence[int]], bool] | None = None
    source: Source | None = None

    def check(self, context: int, vocabulary: int) -> None:
        """Refuse what cannot work, before any work.

        Raises:
            BadPrompt, BadOption: with the remedy.
        """
        if not self.prompt:
            raise BadPrompt("The prompt is empty: give at least one token to continue.")
        if len(self.prompt) >= context:
            raise BadPrompt(
                f"The prompt has {len(self.prompt)} tokens and the target's context holds {context}, with no room for "
                "an answer: shorten the prompt."
            )
        if not all(0 <= token < vocabulary for token in self.prompt):
            raise BadPrompt(f"The prompt has ids outside the target's vocabulary of {vocabulary}: check its tokenizer.")
        if not all(0 <= token < vocabulary for token in self.prediction):
            raise BadOption(f"The prediction has ids outside the vocabulary of {vocabulary}: check its tokenizer.")
        if self.max_new_tokens < 1:
            raise BadOption(f"max_new_tokens is {self.max_new_tokens}: it has to be 1 or more.")
        if not all(self.stop):
            raise BadOption("A stop string is empty: leave it out.")
        if self.logprobs is not None and not 0 <= self.logprobs <= vocabulary:
            raise BadOption(f"logprobs is {self.logprobs}: it has to be between 0 and {vocabulary}.")
        self.sampling.check(vocabulary)


class Row:
    """A request in a batch.

    Attributes:
        tokens: prompt and committed output; the last one is pending.
        finish: why it ended, or None while it runs.
        error: what went wrong with it, if that is why it ended.
        drafter: who drafts for it; its `state` is that one's.
        rounds: how many it has had.
        reused: prompt tokens whose keys were known already.
        states: the target's at the layers that the drafter taps, by layer and in parts, of the tokens whose keys are
            in the cache; None where nobody will ask for them.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        policy: Policy,
        eos: tuple[int, ...],
        context: int,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.request, self.index, self.policy = request, index, policy
        self.tokens = list(request.prompt)
        self.finish: FinishReason | None = None
        self.error: Exception | None = None
        self.rounds = 0
        self.reused = 0
        self.drafter: Drafter  # set, as its state is, when the row joins a batch
        self.state: Any = None
        self.states: list[dict[int, Tensor]] | None = None
        self._eos, self._context = () if request.ignore_eos else eos, context
        self._words = Detokenizer(tokenizer) if tokenizer is not None else None
        self._stops = StopText(request.stop)
        self._cut: int | None = None
        self._told = 0

    @property
    def output(self) -> list[int]:
        """The ids written so far."""
        return self.tokens[len(self.request.prompt) :]

    def known_states(self, count: int) -> dict[int, Tensor]:
        """[count, D] by tapped layer, of the first tokens."""
        parts = self.states or []
        taps = parts[-1].keys() if parts else ()
        return {tap: torch.cat([part[tap] for part in parts if tap in part])[:count] for tap in taps}

    @property
    def history(self) -> History:
        """What the sampling law stands on."""
        return History(self.tokens, len(self.request.prompt), self._eos)

    @property
    def room(self) -> int:
        """How many tokens a draft may have: the bonus token takes one place of the budget and of the context."""
        written = len(self.tokens) - len(self.request.prompt)
        return min(self.request.max_new_tokens - written, self._context - len(self.tokens)) - 1

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Commit tokens one by one until the output ends; returns those that were committed."""
        kept = 0
        for token in tokens:
            self.tokens.append(token)
            kept += 1
            self.finish = self._ending(token)
            if self.finish:
                break
        if self.finish and self._words is not None and self._cut is None:
            self._words.flush()
        return tuple(tokens[:kept])

    def _ending(self, token: int) -> FinishReason | None:
        if token in self._eos:
            return "stop"
        ended = self.request.until is not None and self.request.until(self.tokens)
        if self._words is not None:
            piece = self._words.push(token)
            if piece and self.request.stop:
                self._cut = self._stops.find(self._words.text, len(piece))
                if self._cut is not None:
                    return "stop"
        if ended:
            return "stop"
        return "length" if self.room < 0 else None

    @property
    def text(self) -> str:
        """The text written so far, without stop strings and special tokens."""
        if self._words is None:
            return ""
        return self._words.text[: self._cut]

    def told(self) -> str:
        """What of the text is certain and has not been told yet; all of it once the row has ended."""
        if self._words is None:
            return ""
        text = self.text
        end = len(text) if self.finish else self._stops.safe(text)
        piece = text[self._told : max(end, self._told)]
        self._told += len(piece)
        return piece
