"""What somebody who has to choose a drafter knows. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..errors import BadOption

Hardware = Literal["cpu", "gpu"]
Goal = Literal["latency", "throughput"]
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LARGE_BATCH = 8  # from here on the rows of a batch fill a pass by themselves


@dataclass(frozen=True, slots=True)
class Situation:
    """The answers; None where there is none.

    Attributes:
        memory: bytes that models and caches may take.
        hardware: what the target runs on.
        batch: requests served together.
        goal: how fast one answer comes, or how much all of them together.
        can_train: whether a head or a model may be trained for the target.
        small_model: whether there is a smaller model with the target's tokenizer.
        text_in_prompt: whether the answer repeats what is in the prompt.
        must_be_exact: whether the output has to be the target's own.
        temperature: of the sampling.
        has_mtp: whether the target's checkpoint has layers that predict several tokens; from its configuration.
    """

    memory: int | None = None
    hardware: Hardware | None = None
    batch: int = 1
    goal: Goal | None = None
    can_train: bool | None = None
    small_model: bool | None = None
    text_in_prompt: bool | None = None
    must_be_exact: bool | None = None
    temperature: float | None = None
    has_mtp: bool | None = None

    @property
    def large_batch(self) -> bool:
        """Whether plain decoding alone keeps the machine busy."""
        return self.batch >= _LARGE_BATCH


def parse_memory(text: str) -> int:
    """Bytes from "16GiB", "24 GB" or "512M"; units of 1024 each, as memory is sold.

    Raises:
        BadOption: it is no size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = float(found[1]) * (1 << _UNITS[found[2].upper()]) if found else 0.0
    if size < 1:
        raise BadOption(f"--memory is {text!r}: write a size like 16GiB.")
    return int(size)


def as_size(size: float) -> str:
    """Bytes for people."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size:.0f} bytes"
