"""How much memory keys and values may take, and what a request will take of it. Knows no requests under way.

Rows of a batch sit in one cache, as long as its longest row needs. A batch that was joined has half as many rows again
ready for others, and while it moves a layer of the old one is there too. So a batch is counted as twice its rows times
its longest row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import psutil
import torch

from ..drafters import Drafter
from ..encoder_decoder import EncoderDecoderTarget
from ..engine import SPARE
from ..errors import BadOption
from ..features import width_of
from ..kv import BLOCK
from ..target import Target, token_bytes
from ..types import Source

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_size(text: str, option: str) -> int:
    """Bytes of a size such as "8GiB", "512MB" or "1000000".

    Raises:
        BadOption: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(k|m|g|t|ki|mi|gi|ti)?b?", text.strip().lower())
    if found is None:
        raise BadOption(f"{option} is {text!r}: write a size such as 8GiB or 512MB.")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def half_of_what_is_free(device: torch.device) -> int:
    """Bytes: half of the memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return int(psutil.virtual_memory().available) // 2


def drafter_bytes(drafter: Drafter, target: Target) -> int:
    """Bytes that a drafter costs per token of a request: of its own, and of the target's states that it taps, which are
    kept for the next request."""
    states = len(drafter.taps) * width_of(target) * target.dtype.itemsize if drafter.taps else 0
    return drafter.token_bytes + states


class Room:
    """The memory for keys and values of requests under way.

    Args:
        budget: bytes.
        target: whose keys they are.
    """

    def __init__(self, budget: int, target: Target) -> None:
        self.budget, self._context, self._per_token = budget, target.context, token_bytes(target)
        self._target = target

    def per_slot(self, drafter_bytes: int) -> int:
        """Bytes that one token of one request takes, where the drafter keeps so many of its own."""
        return self._per_token + 2 * drafter_bytes  # a drafter's cache grows by doubling

    def slots(self, tokens: int) -> int:
        """Slots that a request of so many tokens, prompt and answer, will be given."""
        return -(-(min(tokens, self._context) + SPARE) // BLOCK) * BLOCK

    def source_slots(self, source: Source | None) -> int:
        """Slots whose memory is what an encoder makes of a source; 0 for a target without an encoder."""
        if source is None or not isinstance(self._target, EncoderDecoderTarget):
            return 0
        return -(-self._target.source_bytes(source) // self._per_token)

    def needed(self, rows: Sequence[tuple[int, int]]) -> int:
        """Bytes that rows of these (slots, bytes per slot) take together at most."""
        return 2 * len(rows) * max(slots for slots, _ in rows) * max(each for _, each in rows) if rows else 0

    def fits(self, rows: Sequence[tuple[int, int]]) -> bool:
        """Whether these rows may be under way together."""
        return self.needed(rows) <= self.budget
