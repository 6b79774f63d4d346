"""OpenVINO GenAI on the CPU, plain or with its prompt lookup, which has to be chosen at loading. See protocol.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import Clock, Request, serve

LOOKUP = {"num_assistant_tokens": 7, "max_ngram_size": 3}


class Arrivals(openvino_genai.StreamerBase):
    """Tells the clock of the tokens that arrive."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def write(self, token: int | Sequence[int]) -> openvino_genai.StreamingStatus:
        """Tokens came."""
        self._clock.arrived(1 if isinstance(token, int) else len(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing is left to tell."""


class OpenvinoModel:
    """One pipeline over a folder that optimum-intel exported. Prefix caching is off: see worker_outrider.py."""

    def __init__(self, options: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = options["context"]
        scheduler.cache_size = 1
        self._lookup = options["mode"] == "lookup"
        extra = {"prompt_lookup": True} if self._lookup else {}
        self._pipeline = openvino_genai.LLMPipeline(
            options["model"], "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=options["threads"], **extra
        )
        self.details = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        config = openvino_genai.GenerationConfig(
            max_new_tokens=request.tokens,
            do_sample=False,
            stop_token_ids=set(request.stop_ids),
            **(LOOKUP if self._lookup else {}),
        )
        ids = openvino.Tensor(np.array([request.ids], dtype=np.int64))
        out = self._pipeline.generate(ids, config, Arrivals(clock))
        return list(out.tokens[0]), {}


if __name__ == "__main__":
    serve(OpenvinoModel)
