"""Put the demo model's drafters into the package, in bfloat16: what `bench/train_demo.py` trained, with model cards.

usage: python bench/ship_demo.py [--runs runs/demo] --how '--rounds 2-3 --after 0' eagle3-3 medusa-3
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from outrider import checkpoints
from outrider.commands.keeper import alike
from outrider.drafters.trained import SHIPPED

COMMANDS = """
## How it was made

    python bench/train_demo.py --gsm8k gsm8k_train.jsonl {how}
    python bench/ship_demo.py --how '{how}' {folder}

Weights are float32 in training and bfloat16 here. Prompts texts-N.jsonl are by `bench/passages.py`, about paragraphs of
OpenStax's "U.S. History" (osbooks-us-history, 046331cf) and "Introduction to Sociology" (d35d5f3b), both CC BY 4.0,
and of German laws (bundestag/gesetze, public domain).
"""


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"))
    parser.add_argument("folders", nargs="+", help="METHOD-ROUND, as bench/train_demo.py names them")
    parser.add_argument(
        "--how", required=True, help="its options, for the cards: '--rounds 0', '--rounds 2-3 --after 0'"
    )
    options = parser.parse_args()
    for folder in options.folders:
        method = folder.partition("-")[0]
        found = checkpoints.read(options.runs / folder, method)
        narrow = {name: tensor.to(torch.bfloat16) for name, tensor in found.tensors.items()}
        use = checkpoints.Use(f"{method} drafter for the demo model", "demo", method)
        made = COMMANDS.format(how=options.how, folder=folder)
        manifest = found.manifest.model_copy(update={"training": shorter(found.manifest.training)})
        card = checkpoints.card(manifest, manifest.training, use) + made
        checkpoints.write(SHIPPED / method, replace(found, tensors=narrow, manifest=manifest), card)
        size = (SHIPPED / method / checkpoints.WEIGHTS).stat().st_size
        print(
            f"{SHIPPED / method}: {size / 1e6:.1f} MB, acceptance length {found.manifest.training['acceptance_length']}"
        )


def shorter(facts: dict[str, Any]) -> dict[str, Any]:
    """Where a drafter comes from, with the data of its first goes said as today's: each answerer once."""
    found = {name: shorter(value) if name == checkpoints.EARLIER and value else value for name, value in facts.items()}
    pairs = [text.partition(", answered by ") for text in facts.get("data", ())]
    if pairs and all(said for _, said, _ in pairs):
        found["data"] = alike((prompts, re.sub(r"[][]|(?<=\d)\.0", "", who)) for prompts, _, who in pairs)
    return found


if __name__ == "__main__":
    main()
