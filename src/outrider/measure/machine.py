"""The machine that figures were measured on. Knows nothing of models."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from .. import __version__

_COPIED = 256 << 20  # bytes: far beyond any cache
# What decides how fast linears are: wide registers, and products of bfloat16 and int8 (x86, then Arm; Linux's names).
_DECISIVE = (
    "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8",
    "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """Processor, threads, load and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": cores(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "governor": governor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpu_driver_and_clocks": gpu_state() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "outrider": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def instruction_sets() -> list[str] | None:
    """Those of the processor that decide how fast it multiplies; None where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else [name for name in _DECISIVE if name in flags]


def governor() -> str | None:
    """How Linux sets the processor's frequency ("performance", "powersave", ...); None where it does not tell."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text().strip() if path.is_file() else None


def gpu_state() -> str | None:
    """Driver, clocks now and at most, and power limit of the GPUs, as nvidia-smi tells them; None without it."""
    wanted = "driver_version,clocks.sm,clocks.max.sm,power.limit"
    try:
        found = subprocess.run(
            ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(found.stdout.split("\n")).strip("; ") or None


def cores() -> int:
    """Cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def bandwidth(device: torch.device, repeats: int = 7) -> float:
    """Bytes per second that a large copy reads and writes, the median of several."""
    source = torch.ones(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(repeats + 1):
        started = perf_counter()
        target.copy_(source)
        wait(device)
        seconds.append(perf_counter() - started)
    return 2 * _COPIED / statistics.median(seconds[1:])


def wait(device: torch.device) -> None:
    """Return when the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
