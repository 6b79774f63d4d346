"""Runs in vLLM's environment: one engine, greedy answers and vLLM's own counters, as JSON. See vllm_process.py.

usage: python run_vllm.py '{"model": FOLDER, "prompts": [[ids], ...], "tokens": N, "engine": {...options of LLM...}}'

Prompts are served one after another and then all together.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from vllm import LLM, SamplingParams

SMALL = {"enforce_eager": True, "enable_prefix_caching": False, "max_model_len": 512, "max_num_seqs": 4}
PREFIX = "vllm:spec_decode_"


def counters(llm: LLM) -> dict[str, int]:
    """vLLM's sums over drafts so far."""
    metrics = [metric for metric in llm.get_metrics() if metric.name.startswith(PREFIX)]
    return {one.name.removeprefix(PREFIX): one.value for one in metrics if hasattr(one, "value")}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of a job."""
    options = {"dtype": "float32", "generation_config": "vllm", "disable_log_stats": False, **SMALL, **job["engine"]}
    llm = LLM(model=job["model"], **options)
    sampling = SamplingParams(temperature=0.0, max_tokens=job["tokens"])

    def write(prompts: list[list[int]]) -> list[list[int]]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    alone = []
    for prompt in job["prompts"]:
        before = counters(llm)
        (ids,) = write([prompt])
        since = {name: value - before.get(name, 0) for name, value in counters(llm).items()}
        alone.append({"ids": ids, "counters": since})
    return {"alone": alone, "together": write(job["prompts"])}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to standard error
    json.dump(main(json.loads(sys.argv[1])), answers)
    answers.write("\n")
    answers.close()
