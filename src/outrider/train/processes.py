"""How several processes share a run: each with all weights (DDP), or each with its part of them (FSDP).

Accelerate's launcher says which, by its configuration file. Under FSDP weights, gradients and the optimiser's state are
parted, and weights are whole during a pass only. Knows no methods, no batches and no files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from ..errors import BadOption

_REFUSED = {  # of the launcher's configuration; what would be ignored is an error
    "FSDP_OFFLOAD_PARAMS": ("fsdp_offload_params", "false"),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": ("fsdp_cpu_ram_efficient_loading", "false"),
    "FSDP_ACTIVATION_CHECKPOINTING": ("fsdp_activation_checkpointing", "false"),
    "ACCELERATE_MIXED_PRECISION": ("mixed_precision", "no"),
}


def parted() -> bool:
    """Whether the launcher was told to part the weights.

    Raises:
        BadOption: it was told to do so in a way that is not supported.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    if os.environ.get("FSDP_VERSION") != "2":
        raise BadOption("Training parts weights by FSDP 2 only: write fsdp_version: 2, as examples/fsdp.yaml does.")
    for variable, (name, only) in _REFUSED.items():
        found = os.environ.get(variable, only).lower()
        if found != only:
            raise BadOption(
                f"Training under FSDP takes no {name}: {found}: write {only}, as examples/fsdp.yaml does (--bf16 "
                "multiplies in bfloat16)."
            )
    return True


class Shared:
    """A module that several processes train together.

    Args:
        accelerator: Accelerate's.
        module: its parameters are the same in all processes. Under FSDP they are parted in place, so an optimiser is
            made afterwards.

    Raises:
        BadOption: see `parted`.
    """

    def __init__(self, accelerator: Any, module: nn.Module) -> None:
        self._accelerator, self._parted = accelerator, parted()
        self.module: Any = _parted(module, accelerator) if self._parted else accelerator.prepare_model(module)

    def collecting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around a pass and its gradients: they go to the other processes with those of the last batch of a step."""
        if not self._parted:
            return nullcontext() if last else self._accelerator.no_sync(self.module)
        self.module.set_requires_gradient_sync(last)
        return nullcontext()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Every process has all weights in plain modules meanwhile; all of them have to come here."""
        if self._parted:
            self.module.unshard()
        try:
            yield
            self._accelerator.wait_for_everyone()
        finally:
            if self._parted:
                self.module.reshard()


def _parted(module: nn.Module, accelerator: Any) -> nn.Module:
    """The module as one unit of FSDP: its methods are called one by one within a pass, so all weights come at once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = accelerator.device.type
    found: Any = fully_shard(module.to(accelerator.device), mesh=init_device_mesh(device, (accelerator.num_processes,)))
    found.set_force_sum_reduction_for_comms(True)  # gloo knows no mean
    return found  # type: ignore[no-any-return]


def gathered(tensor: Tensor) -> Tensor:
    """A tensor as a whole, of which each process may have a part; all processes have to come here."""
    whole = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A tensor that is whole in every process, parted as another is."""
    if not hasattr(pattern, "full_tensor"):
        return tensor.to(pattern.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(pattern, DTensor)
    whole = tensor.to(pattern.device)
    return distribute_tensor(whole, pattern.device_mesh, pattern.placements)
