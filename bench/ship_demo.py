"""Put the demo model's drafters into the package, in bfloat16: what `bench/train_demo.py` trained, with model cards.

usage: python bench/ship_demo.py [--runs runs/demo] [--methods eagle3,medusa]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from outrider import checkpoints
from outrider.drafters.trained import SHIPPED

KINDS = 3  # folders of data in a round of bench/train_demo.py
COMMANDS = """
## How it was made

    python bench/train_demo.py --gsm8k gsm8k_train.jsonl --rounds {rounds}
    python bench/ship_demo.py

Weights are float32 in training and bfloat16 here.
"""


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"))
    parser.add_argument("--methods", default="eagle3,medusa")
    options = parser.parse_args()
    for method in options.methods.split(","):
        found = checkpoints.read(options.runs / method, method)
        narrow = {name: tensor.to(torch.bfloat16) for name, tensor in found.tensors.items()}
        rounds = len(found.manifest.training["data"]) // KINDS
        use = checkpoints.Use(f"{method} drafter for the demo model", "demo", method)
        card = checkpoints.card(found.manifest, found.manifest.training, use) + COMMANDS.format(rounds=rounds)
        checkpoints.write(SHIPPED / method, replace(found, tensors=narrow), card)
        size = (SHIPPED / method / checkpoints.WEIGHTS).stat().st_size
        print(
            f"{SHIPPED / method}: {size / 1e6:.1f} MB, acceptance length {found.manifest.training['acceptance_length']}"
        )


if __name__ == "__main__":
    main()
