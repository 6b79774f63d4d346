"""A published config.json, key by key: what is missing, of another kind, or not understood is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModel

HARMLESS = frozenset(
    {
        "_name_or_path",
        "add_cross_attention",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bad_words_ids",
        "base_model_name_or_path",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "dtype",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "length_penalty",
        "max_length",
        "max_position_embeddings",
        "max_window_layers",
        "min_length",
        "model_type",
        "name_or_path",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "pruned_heads",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "use_bfloat16",
        "use_cache",
        "version",
    }
)
"""Keys that Transformers writes into every config, or that say nothing of what a head computes."""

_REQUIRED = object()
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}


class Keys:
    """The keys of a config that nobody has read yet; null counts as absent.

    Args:
        found: the config.
        where: the file.
        inside: the key that holds this table, with a dot behind it; empty for the file itself.
    """

    def __init__(self, found: Mapping[str, Any], where: Path, inside: str = "") -> None:
        self._rest = {name: value for name, value in found.items() if value is not None}
        self._where, self._inside = where, inside

    def take(self, name: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of a key, of this kind (an int is a float too).

        Raises:
            UnsupportedModel: missing without a default, or of another kind.
        """
        if name not in self._rest:
            if default is _REQUIRED:
                raise self.strange(name, "is missing", _KINDS[kind])
            return default
        value = self._rest.pop(name)
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not fits:
            raise self.strange(name, f"is {value!r}", _KINDS[kind])
        return value

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """A number of things, 1 or more."""
        value = self.take(name, int, default)
        if isinstance(value, int) and value < 1:
            raise self.strange(name, f"is {value}", "1 or more")
        return int(value)

    def ids(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        found = self.take(name, list, None)
        if not found:
            return None
        if not all(type(one) is int for one in found):
            raise self.strange(name, f"is {found!r}", "whole numbers")
        return tuple(found)

    def table(self, name: str) -> Keys:
        """The keys below a key; none where it is absent."""
        return Keys(self.take(name, dict, {}), self._where, f"{self._inside}{name}.")

    def expect(self, name: str, *allowed: Any) -> None:
        """That a key, if it is there, has one of these values.

        Raises:
            UnsupportedModel: it has another.
        """
        if name in self._rest and (value := self._rest.pop(name)) not in allowed:
            raise self.strange(name, f"is {value!r}", " or ".join(map(_json, allowed)))

    def finish(self, harmless: Iterable[str] = ()) -> None:
        """That nothing is left over that could mean something.

        Raises:
            UnsupportedModel: something is.
        """
        for name in sorted(self._rest.keys() - HARMLESS - set(harmless)):
            raise self.strange(name, f"is {self._rest[name]!r}", "no such key")

    def strange(self, name: str, what: str, expected: str) -> UnsupportedModel:
        """The error of a key: its name, what it is, and what was expected."""
        return strange(self._where, self._inside + name, what, expected)


def strange(where: Path, name: str, what: str, expected: str) -> UnsupportedModel:
    """The error of a key or a tensor: its name, what it is, and what was expected."""
    return UnsupportedModel(
        f"{where}: {name} {what}; {expected} was expected. If you know what it means, say so with "
        "outrider import --set NAME=VALUE (null leaves a key out)."
    )


def _json(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
