"""Runs in vLLM's environment: one engine, greedy answers to prompts served together, and its own counters, as JSON.

usage: python run_vllm.py '{"model": FOLDER, "prompts": [[ids], ...], "tokens": N, "engine": {...options of LLM...}}'
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from vllm import LLM, SamplingParams

SMALL = {"enforce_eager": True, "enable_prefix_caching": False, "max_model_len": 512, "max_num_seqs": 4}


def counters(llm: LLM) -> dict[str, Any]:
    """vLLM's counters of speculation, by name; those per position as lists."""
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            found[metric.name.removeprefix("vllm:spec_decode_")] = getattr(metric, "values", None) or getattr(
                metric, "value", None
            )
    return found


def main(job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of a job."""
    options = {"dtype": "float32", "generation_config": "vllm", "disable_log_stats": False, **SMALL, **job["engine"]}
    llm = LLM(model=job["model"], **options)
    sampling = SamplingParams(temperature=0.0, max_tokens=job["tokens"], stop_token_ids=job.get("stop_ids") or None)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling, use_tqdm=False)
    return {"ids": [list(output.outputs[0].token_ids) for output in outputs], "counters": counters(llm)}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to standard error
    json.dump(main(json.loads(sys.argv[1])), answers)
    answers.write("\n")
    answers.close()
