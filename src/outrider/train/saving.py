"""Where a training run stands, on the disk: weights, optimiser and progress, written in one step and without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from ..checkpoints import latest, replace_folder
from ..errors import BadOption, TrainingStopped
from .processes import gathered, like

_STATE, _TENSORS = "state.json", "state.safetensors"


@dataclass(slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        step: optimiser steps done.
        tokens: answer tokens learnt from, repetitions included.
        best: the highest acceptance length measured; None before the first.
        best_step: when that was.
        curve: what was measured, and the mean loss since the measurement before.
        loss, steps: the sum of the losses since then, and of how many steps.
    """

    step: int = 0
    tokens: int = 0
    best: float | None = None
    best_step: int | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    loss: float = 0.0
    steps: int = 0


def checkpoint_folder(out: Path) -> Path:
    """Where the run that writes to `out` keeps its checkpoint."""
    return out.with_name(out.name + ".training")


def state_of(module: nn.Module, optimiser: optim.Optimizer, *, keep: bool = True) -> dict[str, Tensor]:
    """Weights and the optimiser's state by name, on the host and whole, wherever they lie; all processes of a run have
    to come here.

    Args:
        module: its trainable parameters.
        optimiser: over those, in order.
        keep: this process wants them; the others get nothing.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trainable(module):
        for part, value in {"weight": parameter.detach(), **optimiser.state.get(parameter, {})}.items():
            whole = gathered(value)
            if keep:
                tensors[f"{part}.{name}"] = whole.to("cpu").contiguous()
    return tensors


def save(folder: Path, tensors: Mapping[str, Tensor], progress: Progress, about: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        folder: replaced as a whole.
        tensors: from `state_of`.
        progress: of the run.
        about: what the run was started with; it is continued with the same or not at all.
    """

    def fill(work: Path) -> None:
        save_file(dict(tensors), work / _TENSORS)
        (work / _STATE).write_text(json.dumps({"progress": asdict(progress), "about": dict(about)}, indent=1) + "\n")

    replace_folder(folder, fill)


def restore(folder: Path, module: nn.Module, optimiser: optim.Optimizer, about: Mapping[str, Any]) -> Progress | None:
    """Take a run up where its last checkpoint left it; None if there is none.

    Raises:
        BadOption: it was started with something else.
        TrainingStopped: the checkpoint cannot be read.
    """
    found, known = latest(folder), read_progress(folder)
    if found is None or known is None:
        return None
    progress, there = known
    try:
        tensors = load_file(found / _TENSORS)
        _same(there, json.loads(json.dumps(dict(about))), folder)
        for name, parameter in _trainable(module):
            with torch.no_grad():
                parameter.copy_(like(tensors.pop(f"weight.{name}"), parameter))
            optimiser.state[parameter] = {}
        for name, parameter in _trainable(module):
            for part in ("step", "exp_avg", "exp_avg_sq"):
                value: Tensor = tensors.pop(f"{part}.{name}")
                optimiser.state[parameter][part] = value if part == "step" else like(value, parameter)
        return progress
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _broken(found, error) from error


def read_progress(folder: Path) -> tuple[Progress, dict[str, Any]] | None:
    """How far a run has come and what it was started with; None if there is no checkpoint.

    Raises:
        TrainingStopped: the checkpoint cannot be read.
    """
    found = latest(folder)
    if found is None:
        return None
    try:
        state = json.loads((found / _STATE).read_text())
        return Progress(**state["progress"]), dict(state["about"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(found, error) from error


def _broken(folder: Path, error: Exception) -> TrainingStopped:
    return TrainingStopped(f"The checkpoint in {folder} cannot be read ({error}): remove it to begin anew.")


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _same(there: Mapping[str, Any], given: Mapping[str, Any], folder: Path) -> None:
    for name in sorted(there.keys() | given.keys()):
        if there.get(name) != given.get(name):
            raise BadOption(
                f"The run in {folder} was started with {name} {there.get(name)} and is now given {given.get(name)}: "
                "continue it with the same, remove that folder, or name another --out."
            )
