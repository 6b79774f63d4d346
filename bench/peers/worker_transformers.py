"""Transformers' own `generate`, in the project's environment: plain, with prompt lookup, or with a draft model that has
another tokenizer (universal assisted decoding). See protocol.py."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from protocol import Clock, Request, serve
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

LOOKUP_TOKENS = 10


class Arrivals(BaseStreamer):
    """Tells the clock of the tokens that arrive; the first that Transformers hands over are the prompt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Tokens came."""
        if self._prompt_seen:
            self._clock.arrived(value.numel())
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is left to tell."""


class TransformersModel:
    """One model; the draft model, if there is one, is loaded with it."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._dtype = getattr(torch, options["dtype"])
        self._model, tokenizer = self._load(options["model"])
        self._modes: dict[str, dict[str, Any]] = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}}
        if options["assistant"]:
            assistant, assistant_tokenizer = self._load(options["assistant"])
            self._modes["assisted"] = {"assistant_model": assistant}
            if assistant_tokenizer.get_vocab() != tokenizer.get_vocab():
                self._modes["assisted"] |= {"tokenizer": tokenizer, "assistant_tokenizer": assistant_tokenizer}
        self.details = {"dtype": options["dtype"], "transformers": transformers.__version__, "torch": torch.__version__}

    def _load(self, folder: str) -> tuple[Any, Any]:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=self._dtype, local_files_only=True)
        return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        inputs = torch.tensor([request.ids])
        out = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=request.tokens,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=request.stop_ids,
            streamer=Arrivals(clock),
            **self._modes[request.mode],
        )
        return out[0, len(request.ids) :].tolist(), {}


if __name__ == "__main__":
    serve(TransformersModel)
