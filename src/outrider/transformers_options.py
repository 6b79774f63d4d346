"""What Transformers' `generate` was asked for, in the loop's own words: prompts, laws, ends; and what is refused.

Names and meanings are those of Transformers 5 (`generation/utils.py`, `configuration_utils.py`). Processors and
stopping criteria are those that `generate` prepared; each sees one row at a time, with the padding that Transformers
would show it, so that penalties and lengths count as they do there. Knows no models and no loop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from .errors import BadOption, BadPrompt
from .sampling import Processor, Sampling

_SERVED = {  # by Transformers' own processors and criteria, or by the loop
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "renormalize_logits", "forced_bos_token_id"),
    *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens", "sequence_bias", "num_return_sequences", "return_dict_in_generate"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "transformers_version"),
}
_MEANINGLESS = {  # beside what is refused, or without it
    *("early_stopping", "length_penalty", "diversity_penalty", "disable_compile", "max_matching_ngram_size"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_lookbehind", "target_lookbehind"),
}
_OFF: dict[str, Any] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "use_cache": True,
    "cache_implementation": "dynamic",
    "guidance_scale": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
}
_REMEDIES = {
    "num_beams": "beams are not speculated on",
    "use_cache": "Outrider keeps keys and values of its own",
    "cache_implementation": "Outrider keeps keys and values of its own",
    "prompt_lookup_num_tokens": "generate_with(drafter='lookup') does the same",
    "assistant_early_exit": "generate_with(drafter='early_exit:E') does the same",
    "use_mtp": "generate_with(drafter='mtp') does the same",
    "output_scores": "outrider.load gives log-probabilities",
    "output_logits": "outrider.load gives log-probabilities",
}
_MODEL_ARGUMENTS = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
_WARPERS = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper")


def check_config(config: Any) -> None:
    """Refuse every option of a `GenerationConfig` that would be ignored.

    Raises:
        BadOption: naming the first of them.
    """
    known = vars(type(config)())  # what a published file has beyond these is nobody's option
    for name, value in vars(config).items():
        served = name.startswith("_") or name in _SERVED or name in _MEANINGLESS or name not in known
        if not served and value not in (None, _OFF.get(name, False)):
            raise BadOption(_refusal(f"{name}={_shown(value)}", _REMEDIES.get(name)))


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse what else `generate` takes and the loop does not.

    Args:
        given: name -> value of `generate`'s own arguments.

    Raises:
        BadOption: naming the first of them.
    """
    if given.get("assistant_model") is not None:
        raise BadOption(_refusal("assistant_model", "name the draft model instead: generate_with(drafter='model:...')"))
    if given.get("synced_gpus"):
        raise BadOption(_refusal("synced_gpus", "a model that is spread over processes generates by itself only"))


def check_inputs(arguments: Mapping[str, Any]) -> None:
    """Refuse inputs of the model that the loop would not give it.

    Args:
        arguments: what `generate` prepared for the model.

    Raises:
        BadOption: naming the first of them.
    """
    for name, value in arguments.items():
        if name not in _MODEL_ARGUMENTS and value is not None:
            raise BadOption(_refusal(name, "text alone is read here, as input_ids with their attention_mask"))
    cache = arguments.get("cache", arguments.get("past_key_values"))
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
        raise BadOption(_refusal("cache", "Outrider keeps keys and values of its own"))


def prompts_of(ids: Tensor, arguments: Mapping[str, Any]) -> list[list[int]]:
    """The rows of a batch without their padding.

    Args:
        ids: [B, L].
        arguments: with `attention_mask`, [B, L] or None for all ones, and `position_ids`.

    Raises:
        BadPrompt: padding anywhere but on the left, or positions of another kind.
    """
    mask = arguments.get("attention_mask")
    ones = torch.ones_like(ids) if mask is None else (mask != 0).to(ids.device, ids.dtype)
    if bool((ones.diff(dim=1) < 0).any()):
        raise BadPrompt("Padding has to stand on the left: make the tokenizer with padding_side='left'.")
    positions = arguments.get("position_ids")
    usual = (ones.cumsum(1) - 1).clamp(min=0)
    if positions is not None and not bool(((positions.to(ids.device) == usual) | (ones == 0)).all()):
        raise BadPrompt("position_ids that do not count from 0 are not served: leave them out.")
    return [row[kept.bool()].tolist() for row, kept in zip(ids, ones, strict=True)]


class Reading:
    """The laws and ends of one call, row by row.

    Args:
        config: the `GenerationConfig` that `generate` prepared.
        processors: likewise, a `LogitsProcessorList`.
        criteria: likewise, a `StoppingCriteriaList`.
        device: where criteria are to find ids.

    Attributes:
        samples: tokens are drawn, not chosen.
        longest: of prompt and output together, padding included.
        open_ended: something other than the length may end a row.
    """

    def __init__(self, config: Any, processors: Sequence[Any], criteria: Any, device: torch.device) -> None:
        self.samples = bool(config.do_sample)
        self._copies = int(config.num_return_sequences or 1)
        self._device = device
        self.longest: int = criteria.max_length
        ends = [one.eos_token_id.tolist() for one in criteria if type(one).__name__ == "EosTokenCriteria"]
        self._ends = {token for ids in ends for token in ids}
        own = ("MaxLengthCriteria", "EosTokenCriteria")
        self._criteria = [one for one in criteria if type(one).__name__ not in own]
        self.open_ended = bool(self._ends or self._criteria)
        self._processors = list(processors)
        self._warpers: list[Any] = []
        if self.samples:
            self._take_warpers()

    def sampling(self, row: int, padding: Sequence[int]) -> Sampling:
        """The law of a row.

        Args:
            row: which.
            padding: its padding ids.
        """
        processors, options = list(self._processors), self._warped()
        if processors and type(processors[0]).__name__ == "RepetitionPenaltyLogitsProcessor":
            first = processors[0]
            if (first.prompt_ignore_length is None and not padding) or isinstance(first.prompt_ignore_length, Tensor):
                options["repetition_penalty"] = first.penalty
                processors = processors[1:]
        alone = tuple(self._of_row(processor, row, padding) for processor in processors)
        return Sampling(temperature=options.pop("temperature", float(self.samples)), processors=alone, **options)

    def ending(self, padding: Sequence[int]) -> Callable[[Sequence[int]], bool]:
        """Whether a row ends after the last of these tokens, prompt and output without padding."""

        def ends(tokens: Sequence[int]) -> bool:
            if not self._criteria:
                return tokens[-1] in self._ends
            ids = torch.tensor([[*padding, *tokens]], device=self._device)
            found = [bool(criterion(ids, None).all()) for criterion in self._criteria]  # each may count its calls
            return any(found) or tokens[-1] in self._ends

        return ends

    def _take_warpers(self) -> None:
        """Take the usual warpers from the end of the processors, for the loop's own law has them."""
        if self._processors and type(self._processors[-1]).__name__ == "LogitNormalization":
            self._processors.pop()  # probabilities are normalised anyway
        found = list(takewhile(lambda one: type(one).__name__ in _WARPERS, reversed(self._processors)))[::-1]
        order = [_WARPERS.index(type(one).__name__) for one in found]
        if order == sorted(set(order)):
            self._warpers = found
            del self._processors[len(self._processors) - len(found) :]

    def _warped(self) -> dict[str, Any]:
        """Those warpers as options of `Sampling`."""
        names = dict(zip(_WARPERS, ("temperature", "top_k", "top_p", "min_p"), strict=True))
        return {name: getattr(one, name) for one in self._warpers for name in (names[type(one).__name__],)}

    def _of_row(self, processor: Any, row: int, padding: Sequence[int]) -> Processor:
        """A processor for one row of the batch that it was prepared for."""
        kind = type(processor).__name__
        if kind == "PrefixConstrainedLogitsProcessor":
            processor = copy.copy(processor)
            allowed = processor._prefix_allowed_tokens_fn
            processor._prefix_allowed_tokens_fn = lambda _, ids: allowed(row // self._copies, ids)
            processor._num_beams = 1
        elif kind == "RepetitionPenaltyLogitsProcessor" and isinstance(processor.prompt_ignore_length, Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
        return _Padded(processor, padding) if padding else processor


class _Padded:
    """A processor that sees the row's padding before its tokens."""

    def __init__(self, processor: Processor, padding: Sequence[int]) -> None:
        self._processor, self._padding = processor, list(padding)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        padding = torch.tensor([self._padding], device=ids.device)
        return self._processor(torch.cat([padding, ids], dim=1), scores)


def _refusal(what: str, remedy: str | None) -> str:
    return f"generate's {what} is not served by Outrider: leave it out" + (f" ({remedy})." if remedy else ".")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__
