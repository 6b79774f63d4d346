"""Frequencies of rotary positions (Su et al., 2104.09864), stretched or not. Knows no modules."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SCALINGS = ("linear", "llama3", "yarn")
"""Ways of stretching positions that do not depend on how long a text is, so that keys in a cache stay right."""


def frequencies_of(
    size: int, theta: float, scaling: dict[str, Any] | None, device: torch.device
) -> tuple[Tensor, float]:
    """By how much each pair of a head turns from one position to the next.

    Args:
        size: of a head.
        theta: the base.
        scaling: Transformers' `rope_parameters`, of a kind out of `SCALINGS`; None for none.
        device: of the result.

    Returns:
        [size / 2] float32, and a factor for cosines and sines.
    """
    frequencies, factor = _known(size, theta, "" if scaling is None else json.dumps(scaling, sort_keys=True))
    return frequencies.to(device), factor


@lru_cache(maxsize=64)
def _known(size: int, theta: float, scaling: str) -> tuple[Tensor, float]:
    """On the host; stretched ones as Transformers has them."""
    if not scaling:
        return theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**json.loads(scaling), "rope_theta": theta}
    config = LlamaConfig(hidden_size=size, num_attention_heads=1, head_dim=size, rope_parameters=parameters)
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    return frequencies.float(), float(factor)
