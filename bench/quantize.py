"""What rounding costs: perplexity of the target as it is, in bfloat16 and in int8, on fixed texts.

usage: python bench/quantize.py [--target FOLDER] [--dtypes float32,bfloat16]

The texts are the module documentation of Python's standard library: the same on every machine with the same Python.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Sequence
from typing import Any

import torch

import outrider
from outrider.loading import as_dtype
from outrider.measure import machine
from outrider.types import Tree

MODULES = (
    "argparse",
    "collections",
    "decimal",
    "doctest",
    "fractions",
    "heapq",
    "inspect",
    "pickle",
    "random",
    "typing",
)
LONGEST = 512  # tokens of each text


def perplexity(llm: outrider.Outrider, texts: Sequence[Sequence[int]]) -> tuple[float, list[int]]:
    """Exp of the mean negative log likelihood per token, and the likeliest token at every place."""
    loss, count, choices = 0.0, 0, []
    for ids in texts:
        (scores,) = llm.target.forward([Tree.chain(ids)], llm.target.new_cache(1, len(ids)))
        logs = scores.logits[:-1].float().log_softmax(-1)
        loss -= float(logs.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        count += len(ids) - 1
        choices += scores.logits.argmax(-1).tolist()
    return math.exp(loss / count), choices


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="the first one is the reference")
    options = parser.parse_args()
    texts: list[list[int]] = []
    results: dict[str, Any] = {}
    reference: list[int] = []
    for dtype in options.dtypes.split(","):
        for quantize in (None, "int8"):
            llm = outrider.load(options.target, "none", dtype=as_dtype(dtype), quantize=quantize)
            if not texts:
                documents = [importlib.import_module(name).__doc__ or "" for name in MODULES]
                texts = [llm.tokenizer(document)["input_ids"][:LONGEST] for document in documents]
            value, choices = perplexity(llm, texts)
            reference = reference or choices
            agree = sum(a == b for a, b in zip(reference, choices, strict=True)) / len(choices)
            name = f"{quantize or 'as it is'}, {dtype}"
            results[name] = {"perplexity": value, "same_choice": agree, "pass_bytes": llm.target.pass_bytes}
            size = llm.target.pass_bytes / 1e9
            print(f"{name:24s} perplexity {value:8.3f}   same likeliest token {agree:.1%}   {size:.3f} GB")
            del llm
    tokens = sum(map(len, texts))
    print(
        json.dumps(
            {
                "bench": "quantize",
                "options": vars(options),
                "tokens": tokens,
                "results": results,
                "machine": machine.describe(),
            }
        )
    )


if __name__ == "__main__":
    main()
