"""What drafters gain on a recording.

usage: python bench/speech.py TARGET AUDIO [DRAFTER ...] [--own-layers N,..] [--language L] [--repeats N]

For plain decoding and each drafter, in turns: acceptance length, tokens per second with and without the encoder's time,
and whether the ids are those of plain decoding. `--own-layers 4` adds a draft model made of the target's first four
decoder layers, untrained; it shares the target's encoder, as a distilled one would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

import outrider
from outrider.measure import machine


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("audio", type=Path)
    parser.add_argument("drafters", nargs="*", default=["lookup"])
    parser.add_argument("--language")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--own-layers", default="", help="decoder layers of a draft model made of the target's")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for layers in filter(None, asked.own_layers.split(",")):
            asked.drafters.append(f"model:{cut(asked.target, int(layers), Path(work) / layers)}")
        measure(asked)


def cut(target: str, layers: int, folder: Path) -> Path:
    """A model of the target's encoder and first decoder layers."""
    model = AutoModelForSpeechSeq2Seq.from_pretrained(target)
    decoder = model.get_decoder()
    decoder.layers = decoder.layers[:layers]
    model.config.decoder_layers = layers
    model.save_pretrained(folder)
    AutoProcessor.from_pretrained(target).save_pretrained(folder)
    return folder


def measure(asked: argparse.Namespace) -> None:
    """Answer, and tell."""
    torch.set_num_threads(machine.cores())
    plain = outrider.load(asked.target, "none", dtype=asked.dtype, policy=asked.policy)
    llms = {"none": plain} | {spec: plain.using(spec) for spec in asked.drafters}
    options: dict[str, Any] = {"audio": str(asked.audio), "language": asked.language}
    for llm in llms.values():
        llm.generate(**options, max_new_tokens=8)  # warm
    seconds: dict[str, list[float]] = {name: [] for name in llms}
    outputs: dict[str, Any] = {}
    for _ in range(asked.repeats):
        for name, llm in llms.items():
            llm.drafter.forget()
            began = perf_counter()
            outputs[name] = llm.generate(**options)
            seconds[name].append(perf_counter() - began)
    found = [_line(name, llm, outputs, seconds) for name, llm in llms.items()]
    print(json.dumps({"cases": found, "configuration": plain.configuration, "machine": machine.describe()}, indent=2))


def _line(
    name: str, llm: outrider.Outrider, outputs: dict[str, Any], seconds: dict[str, list[float]]
) -> dict[str, Any]:
    output, typical = outputs[name], statistics.median(seconds[name])
    stats = output.stats
    in_rounds = stats.draft_seconds + stats.verify_seconds
    return {
        "drafter": llm.drafter.spec,
        "note": llm.drafter.note,
        "same_ids": output.token_ids == outputs["none"].token_ids,
        "acceptance_length": stats.acceptance_length,
        "tokens": stats.tokens,
        "seconds": typical,
        "tokens_per_second": stats.tokens / typical,
        "decoding_tokens_per_second": stats.tokens / in_rounds,
        "speedup": statistics.median(seconds["none"]) / typical,
        "recording_seconds": output.duration,
    }


if __name__ == "__main__":
    main()
