"""vLLM's engine on the CPU, plain or with a drafter, which has to be chosen at loading. See protocol.py."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
import vllm
from protocol import Clock, Request, serve
from vllm import LLM, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
COUNTERS = "vllm:spec_decode_"


class VllmModel:
    """One engine. Prefix caching is off: see worker_outrider.py.

    The option `engine` has further options of `LLM`; with `disable_log_stats` false answers bring vLLM's counters.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        ngram = {"speculative_config": NGRAM} if options["mode"] == "ngram" else {}
        more = {**ngram, **options.get("engine", {})}
        self._counts = more.get("disable_log_stats") is False
        self._llm = LLM(
            model=options["model"],
            dtype=options["dtype"],
            max_model_len=options["context"],
            max_num_seqs=1,
            enable_prefix_caching=False,
            generation_config="vllm",
            **more,
        )
        self._numbers = count()
        self.details = {"dtype": options["dtype"], "vllm": vllm.__version__, "torch": torch.__version__}

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        sampling = SamplingParams(temperature=0.0, max_tokens=request.tokens, stop_token_ids=request.stop_ids)
        engine, before = self._llm.llm_engine, self._counters()
        engine.add_request(str(next(self._numbers)), {"prompt_token_ids": request.ids}, sampling)
        ids: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                ids = list(output.outputs[0].token_ids)
                clock.arrived(len(ids))
        return ids, {name: value - before.get(name, 0) for name, value in self._counters().items()}

    def _counters(self) -> dict[str, int]:
        """vLLM's sums over drafts so far."""
        if not self._counts:
            return {}
        metrics = [metric for metric in self._llm.get_metrics() if metric.name.startswith(COUNTERS)]
        return {one.name.removeprefix(COUNTERS): one.value for one in metrics if hasattr(one, "value")}


if __name__ == "__main__":
    serve(VllmModel)
