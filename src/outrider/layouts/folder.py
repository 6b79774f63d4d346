"""A published folder as it lies there: config.json and safetensors in one file or several. Nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..checkpoints import CONFIG
from ..errors import ModelNotFound

_LARGEST_CONFIG = 1 << 20  # bytes
_LARGEST_WEIGHTS = 64 << 30  # bytes
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds.

    Attributes:
        folder: it.
        config: config.json.
        tensors: by the names that they have there.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def where(self) -> Path:
        """The config's file, for messages."""
        return self.folder / CONFIG


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        ModelNotFound: there is none, or it cannot be read.
    """
    path = folder / CONFIG
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ValueError("it is larger than a config can be")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{path} cannot be read ({error}): name the folder of a drafter.") from error
    return found


def read_folder(folder: Path) -> Found:
    """A folder with its weights.

    Raises:
        ModelNotFound: there are none in safetensors, or they cannot be read.
    """
    config = read_config(folder)
    files = _files(folder)
    if sum(file.stat().st_size for file in files) > _LARGEST_WEIGHTS:
        raise ModelNotFound(f"The files in {folder} are larger than a drafter's can be: check what they are.")
    tensors: dict[str, Tensor] = {}
    try:
        for file in files:
            tensors |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"The weights in {folder} cannot be read ({error}): check that they are whole.") from error
    return Found(folder, config, tensors)


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    try:
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            files = sorted(folder / str(name) for name in names)
            outside = [file for file in files if file.parent != folder or not file.is_file()]
            if outside:
                raise ModelNotFound(f"{index} names {outside[0].name}, which is not there: check that all files came.")
            return files
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelNotFound(f"{index} cannot be read ({error}): check that it is whole.") from error
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        several = ", ".join(file.name for file in found)
        raise ModelNotFound(f"{folder} holds several files of weights ({several}) and no {_INDEX}: leave one.")
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise ModelNotFound(
            f"{pickled[0]} is a pickle, which can run code, so it is not read. If you trust it, convert it once: "
            'python -c "import torch, safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in '
            f"torch.load('{pickled[0]}', weights_only=True).items()}}, '{folder / 'model.safetensors'}')\""
        )
    raise ModelNotFound(f"{folder} holds no weights (*.safetensors): name the folder of a drafter.")
