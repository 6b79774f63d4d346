"""How a request is put to an encoder-decoder target: the prompt goes to the encoder, the answer begins behind the
model's own start, under what the model's generation configuration demands of every output.

Taken over are those fields that Transformers' `generate` heeds in greedy decoding: forced first and last tokens,
suppressed and bad tokens, n-grams that may not come again, penalties for repetition, a least length. Beams, sampling
and the greatest length are the caller's to say (`Sampling`, `max_new_tokens`). Knows no audio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from .encoder_decoder import EncoderDecoderTarget
from .errors import BadPrompt
from .row import Request
from .sampling import Processor, Sampling
from .target import Target
from .types import Source


def addressed(target: Target, request: Request, words: Sequence[int] = ()) -> Request:
    """A request as its target wants it; as it is for a decoder-only one.

    Args:
        target: the model.
        request: its prompt is what the user gave.
        words: that text as the answer would write it; see `Source`.

    Raises:
        BadPrompt: the encoder cannot read the prompt; or it reads audio.
    """
    if not isinstance(target, EncoderDecoderTarget):
        return request
    if target.bins:
        raise BadPrompt("This target reads audio: pass audio= (--audio FILE), or choose a target for text.")
    ids = request.prompt
    if not ids:
        raise BadPrompt("The prompt is empty: give at least one token to read.")
    if len(ids) > target.source_context:
        raise BadPrompt(
            f"The prompt has {len(ids)} tokens and the target's encoder reads {target.source_context}: shorten it."
        )
    if not all(0 <= token < target.vocabulary for token in ids):
        raise BadPrompt(
            f"The prompt has ids outside the target's vocabulary of {target.vocabulary}: check its tokenizer."
        )
    sampling = demanded(target, request.sampling, len(target.start), request.max_new_tokens, ids)
    return replace(request, prompt=target.start, source=Source(ids, words=tuple(words)), sampling=sampling)


def words(tokenizer: Any, prompt: object) -> list[int]:
    """A source's text in the tokens that the decoder would write it with; nothing for a prompt that is no text."""
    if tokenizer is None or not isinstance(prompt, str):
        return []
    return [int(token) for token in tokenizer(text_target=prompt, add_special_tokens=False)["input_ids"]]


def demanded(
    target: EncoderDecoderTarget, sampling: Sampling, start: int, max_new_tokens: int, source: Sequence[int]
) -> Sampling:
    """What the caller wants, under what the model demands.

    Args:
        target: whose generation configuration is heeded.
        sampling: the caller's.
        start: how many tokens stand before the answer.
        max_new_tokens: at most so many; where the configuration forces a last token, it is the last of these.
        source: the encoder's ids; empty for audio.
    """
    config = target.generation
    never = {int(token): -math.inf for token in getattr(config, "suppress_tokens", None) or ()}
    processors = _processors(config, start, min(start + max_new_tokens, target.context), source)
    if not never and not processors:
        return sampling
    return replace(
        sampling, logit_bias={**sampling.logit_bias, **never}, processors=(*processors, *sampling.processors)
    )


def _processors(config: Any, start: int, end: int, source: Sequence[int]) -> list[Processor]:
    """Transformers' own, in the order in which `generate` applies them."""
    import transformers as t

    def value(name: str) -> Any:
        return getattr(config, name, None)

    read = torch.tensor([list(source)], dtype=torch.int64)
    first = value("forced_bos_token_id")
    eos = value("eos_token_id")
    rules: list[tuple[bool, Any]] = [
        (
            bool(source) and (value("encoder_repetition_penalty") or 1.0) != 1.0,
            lambda: t.EncoderRepetitionPenaltyLogitsProcessor(value("encoder_repetition_penalty"), read),
        ),
        (
            (value("repetition_penalty") or 1.0) != 1.0,
            lambda: t.RepetitionPenaltyLogitsProcessor(value("repetition_penalty")),
        ),
        (bool(value("no_repeat_ngram_size")), lambda: t.NoRepeatNGramLogitsProcessor(value("no_repeat_ngram_size"))),
        (
            bool(source) and bool(value("encoder_no_repeat_ngram_size")),
            lambda: t.EncoderNoRepeatNGramLogitsProcessor(value("encoder_no_repeat_ngram_size"), read),
        ),
        (bool(value("bad_words_ids")), lambda: t.NoBadWordsLogitsProcessor(value("bad_words_ids"), eos)),
        (bool(value("min_length")) and eos is not None, lambda: t.MinLengthLogitsProcessor(value("min_length"), eos)),
        (
            bool(value("min_new_tokens")) and eos is not None,
            lambda: t.MinNewTokensLengthLogitsProcessor(start, value("min_new_tokens"), eos),
        ),
        (first is not None, lambda: t.ForcedBOSTokenLogitsProcessor(first)),
        (
            value("forced_eos_token_id") is not None,
            lambda: t.ForcedEOSTokenLogitsProcessor(end, value("forced_eos_token_id")),
        ),
        (
            bool(value("begin_suppress_tokens")),
            lambda: t.SuppressTokensAtBeginLogitsProcessor(
                value("begin_suppress_tokens"), start if start > 1 or first is None else start + 1
            ),
        ),
    ]
    return [make() for wanted, make in rules if wanted]
