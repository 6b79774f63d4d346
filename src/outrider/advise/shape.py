"""How much memory a model takes, and what would be added to it, from its configuration alone. No weights are read.

The model is laid out on PyTorch's "meta" device, where parameters have shapes and no memory, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModel, first_line
from ..quiet import quiet

_INT8 = 1  # byte of a rounded weight; the scales, one per output, are a thousandth of it


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that memory follows from.

    Attributes:
        parameters: all of them.
        embedding: those of the table of tokens; the output layer's too, unless they are the same.
        layer: those of one decoder layer.
        layers: how many of those.
        width: D, of the hidden states.
        vocabulary: V.
        attention: outputs of queries, keys and values of one layer together.
        keys: numbers that one token leaves in the cache of one layer, keys and values together.
        bytes: of one number.
        int8: whether weights are rounded to int8 (the table of tokens is not).
        mtp_layers: layers of the checkpoint that predict further tokens.
        context: positions at most.
    """

    parameters: int
    embedding: int
    layer: int
    layers: int
    width: int
    vocabulary: int
    attention: int
    keys: int
    bytes: int
    int8: bool = False
    mtp_layers: int = 0
    context: int = 1 << 40

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype, *, int8: bool = False) -> Shape:
        """From a configuration of Transformers.

        Raises:
            UnsupportedModel: it is no decoder-only language model that Transformers can lay out.
        """
        text = config.get_text_config()
        model = _laid_out(config)
        stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == text.num_hidden_layers]
        if not stacks:
            raise UnsupportedModel(
                f"{type(model).__name__} is no plain list of layers, so that its memory cannot be reckoned: leave "
                "--target out."
            )
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        heads, width = int(text.num_attention_heads), int(text.hidden_size)
        shared = int(getattr(text, "num_key_value_heads", None) or heads)
        size = int(getattr(text, "head_dim", None) or width // heads)
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            embedding=table.numel() + (0 if head is table else head.numel()),
            layer=sum(parameter.numel() for parameter in stacks[0][0].parameters()),
            layers=int(text.num_hidden_layers),
            width=width,
            vocabulary=int(text.vocab_size),
            attention=(heads + 2 * shared) * size,
            keys=2 * shared * size,
            bytes=dtype.itemsize,
            int8=int8,
            mtp_layers=int(getattr(text, "num_nextn_predict_layers", 0) or 0),
            context=int(getattr(text, "max_position_embeddings", None) or 1 << 40),
        )

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        if not self.int8:
            return self.parameters * self.bytes
        return (self.parameters - self.embedding) * _INT8 + self.embedding * self.bytes

    def cache(self, tokens: int) -> int:
        """Bytes of keys and values of so many tokens, rows counted together."""
        return tokens * self.layers * self.keys * self.bytes

    def layer_cache(self, tokens: int, layers: int = 1) -> int:
        """The same for other layers of this kind."""
        return tokens * layers * self.keys * self.bytes


def _laid_out(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with quiet(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        reason = first_line(error)[:200]
        raise UnsupportedModel(
            f"This configuration cannot be laid out as a causal language model ({reason}): leave --target out."
        ) from error
    model.tie_weights()
    if model.get_output_embeddings() is None or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{type(model).__name__} is no decoder-only language model: name another target.")
    return model
