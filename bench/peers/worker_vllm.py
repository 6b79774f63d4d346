"""vLLM's engine on the CPU, plain or with its n-gram drafter, which has to be chosen at loading. See protocol.py."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
import vllm
from protocol import Clock, Request, serve
from vllm import LLM, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


class VllmModel:
    """One engine. Prefix caching is off: see worker_outrider.py."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._engine = LLM(
            model=options["model"],
            dtype=options["dtype"],
            max_model_len=options["context"],
            max_num_seqs=1,
            enable_prefix_caching=False,
            generation_config="vllm",
            speculative_config=NGRAM if options["mode"] == "ngram" else None,
        ).llm_engine
        self._numbers = count()
        self.details = {"dtype": options["dtype"], "vllm": vllm.__version__, "torch": torch.__version__}

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        sampling = SamplingParams(temperature=0.0, max_tokens=request.tokens, stop_token_ids=request.stop_ids)
        self._engine.add_request(str(next(self._numbers)), {"prompt_token_ids": request.ids}, sampling)
        ids: list[int] = []
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                ids = list(output.outputs[0].token_ids)
                clock.arrived(len(ids))
        return ids, {}


if __name__ == "__main__":
    serve(VllmModel)
