"""What to load, as the options of the command line say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import policy as policies
from ..api import Outrider, load
from ..engine import PREFILL_CHUNK
from ..errors import BadOption
from ..measure import machine
from ..prefix import PREFIX_MEMORY


@dataclass(frozen=True, slots=True)
class Settings:
    """What to load; see `api.load`. A policy of None was not asked for."""

    target: str
    drafter: str
    verifier: str
    policy: str | None
    dtype: str | None
    device: str | None
    offline: bool
    trust_remote_code: bool
    fast: bool | None = None
    quantize: str | None = None
    device_map: str | None = None
    compile: bool = False
    prefill_chunk: int = PREFILL_CHUNK
    draft_device: str | None = None
    draft_quantize: str | None = None
    prefix_memory: int = PREFIX_MEMORY

    def given(self) -> dict[str, Any]:
        """How the target is loaded, as far as it was said: keys of `config.Config`."""
        names = ("target", "dtype", "device", "offline", "quantize", "device_map", "compile")
        found = {name: value for name in names if (value := getattr(self, name))}
        return found if self.fast is None else found | {"fast": self.fast}

    def load(self) -> Outrider:
        """Load it, refusing options that would change nothing."""
        if self.drafter == "none" and self.policy is not None:
            raise BadOption(
                "The drafter 'none' drafts nothing, so --policy would change nothing: leave one of them out."
            )
        torch.set_num_threads(machine.cores())  # those that this process may use, whatever the environment says
        return load(
            self.target,
            self.drafter,
            self.verifier,
            self.policy or policies.DEFAULT,
            dtype=self.dtype,
            device=self.device,
            offline=self.offline,
            trust_remote_code=self.trust_remote_code,
            fast="auto" if self.fast is None else self.fast,
            quantize=self.quantize,
            device_map=self.device_map,
            compile=self.compile,
            prefill_chunk=self.prefill_chunk,
            draft_device=self.draft_device,
            draft_quantize=self.draft_quantize,
            prefix_memory=self.prefix_memory,
        )
