"""`outrider doctor`: what this installation can do, what is missing for which feature, and what would help."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ..loading import progress
from ..measure import environment

_GIB = 1 << 30


def run(*, show: bool) -> dict[str, Any]:
    """Look at machine and installation, and show what was found."""
    with progress("Looking (kernels are compiled once, which takes half a minute)"):
        found = environment.survey()
    if show:
        _show(found)
    return found


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    machine, kernels, cache = found["machine"], found["kernels"], found["cache"]
    console.print(
        f"outrider {machine['outrider']}, torch {machine['torch']}, transformers {machine['transformers']}, "
        f"python {machine['python']}"
    )
    console.print(f"{machine['cpu']}: {machine['cores']} cores, {machine['threads']} threads")
    if machine["instruction_sets"] is not None:
        console.print(f"instruction sets: {' '.join(machine['instruction_sets']) or 'none that matter'}")
    for name, value in found["environment"].items():
        console.print(f"{name}={value}")
    console.print(_devices(found["devices"]))
    there = f"compiled by {kernels['compiler']}" if kernels["available"] else f"missing: {kernels['reason']}"
    console.print(f"CPU kernels: {there}")
    state = f"{cache['free'] / _GIB:.0f} GiB free" if cache["writable"] else "cannot be written"
    console.print(f"cache folder: {cache['folder']} ({state})")
    if found["features"]:
        console.print(_features(found["features"]))
    else:
        console.print("Outrider is not installed by pip, so its extras are not known.")
    for sentence in found["advice"]:
        console.print(f"- {sentence}")


def _devices(devices: list[dict[str, Any]]) -> Table:
    grid = Table(title="devices", title_justify="left")
    for name in ("device", "memory", "bandwidth of a copy", "weights by default"):
        grid.add_column(name)
    for device in devices:
        memory = "?" if device["memory"] is None else f"{device['memory'] / _GIB:.1f} GiB"
        grid.add_row(device["device"], memory, f"{device['bandwidth'] / 1e9:.1f} GB/s", device["weights"])
    return grid


def _features(features: list[dict[str, Any]]) -> Table:
    grid = Table(title="features", title_justify="left")
    for name in ("for", "", "what is missing", "remedy"):
        grid.add_column(name)
    for feature in features:
        state = "missing" if feature["missing"] else "ready"
        grid.add_row(feature["purpose"], state, ", ".join(feature["missing"]), feature["remedy"])
    return grid
