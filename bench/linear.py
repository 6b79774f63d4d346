"""One linear by the number of its rows, in each kind of weights: whether a pass over several tokens costs one token.

usage: python bench/linear.py [--outputs N] [--inputs N] [--repeats N]

Several linears of the same size take turns, so that none is still in a cache when it is read again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from time import perf_counter

import torch

from outrider.measure import machine
from outrider.native import Panels

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 64)
KINDS = {"float32": (torch.float32, False), "bfloat16": (torch.bfloat16, False), "int8": (torch.bfloat16, True)}
_BYTES = 192 << 20  # of weights at least, several times what caches hold


def main() -> None:
    """Measure, and print milliseconds by rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=17920)
    parser.add_argument("--inputs", type=int, default=1536)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(machine.cores())
    found = {kind: measured(kind, options.outputs, options.inputs, options.repeats) for kind in KINDS}
    for kind, times in found.items():
        print(f"{kind:9}", "  ".join(f"{rows}: {time:.2f} ({time / times[1]:.2f})" for rows, time in times.items()))
    print(json.dumps({"bench": "linear", "milliseconds": found, "machine": machine.describe()}))


def measured(kind: str, outputs: int, inputs: int, repeats: int) -> dict[int, float]:
    """Medians in milliseconds."""
    dtype, int8 = KINDS[kind]
    linears: list[Panels] = []
    while not linears or sum(linear.nbytes for linear in linears) < _BYTES:
        linears.append(Panels(outputs, inputs, dtype, int8=int8))
        linears[-1].put(torch.randn(outputs, inputs).to(dtype))
    given = {rows: torch.randn(rows, inputs).to(dtype) for rows in ROWS}
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(repeats):
        for rows, x in given.items():
            begun = perf_counter()
            for linear in linears:
                linear.multiply(x, None)
            times[rows].append((perf_counter() - begun) / len(linears) * 1e3)
    return {rows: statistics.median(found) for rows, found in times.items()}


if __name__ == "__main__":
    main()
