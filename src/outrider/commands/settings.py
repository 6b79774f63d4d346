"""What to load, as the options of the command line say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import policy as policies
from ..api import Outrider, load
from ..drafters import Setting as DrafterSetting
from ..engine import PREFILL_CHUNK
from ..errors import BadOption
from ..measure import machine
from ..measure.results import PLAIN
from ..prefix import PREFIX_MEMORY

WITH_MODELS = ("model", "translated", "cascade")  # drafters that run models of their own


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

    def given(self, drafter: str) -> dict[str, Any]:
        """How models are loaded, as far as it was said: keys of `config.Config`.

        Args:
            drafter: for which; without a model of its own, nothing is said of that.
        """
        names = ["target", "dtype", "device", "offline", "quantize", "device_map", "compile"]
        names += ["draft_device", "draft_quantize"] * (drafter.partition(":")[0] in WITH_MODELS)
        found = {name: value for name in names if (value := getattr(self, name))}
        return found if self.fast is None else found | {"fast": self.fast}

    def load(self) -> Outrider:
        """Load it, refusing options that would change nothing.

        Raises:
            UsageError: see `api.load`.
        """
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


def model_holder(settings: Settings, specs: Sequence[str]) -> str:
    """The drafter that a target is loaded with, of which several drafters are made: one that has the model which
    --draft-device and --draft-quantize are about; draft models are shared, so the others draft with the same one.
    Else none.

    Raises:
        BadOption: no drafter has a model.
    """
    if settings.draft_device is None and settings.draft_quantize is None:
        return PLAIN
    holders = [spec for name in WITH_MODELS for spec in specs if spec.partition(":")[0] == name]
    if not holders:
        raise BadOption(
            "No drafter here runs a model of its own, so --draft-device and --draft-quantize would change nothing: "
            "leave them out."
        )
    return holders[0]


def drafter_setting(llm: Outrider) -> DrafterSetting:
    """Where a trained drafter's folder is opened: one that needs no other model."""

    def no_model(spec: str) -> Any:
        raise BadOption(f"A trained drafter needs no other model, {spec} was asked for.")

    return DrafterSetting(llm.target, llm.tokenizer, no_model, llm.folder)


def decoder_only(llm: Outrider, command: str) -> None:
    """Refuse a target that a command does not serve.

    Raises:
        BadOption: it is an encoder-decoder model.
    """
    if llm.encodes:
        raise BadOption(
            f"outrider {command} serves decoder-only targets, and this one has an encoder: use outrider generate, "
            "bench, costs or serve with it."
        )
