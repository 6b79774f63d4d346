"""llama.cpp through llama-cpp-python, plain or with its prompt lookup, which has to be chosen at loading.

See protocol.py."""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import Clock, Request, serve

LOOKUP_TOKENS = {"plain": 0, "lookup2": 2, "lookup10": 10}


class LlamacppModel:
    """One GGUF file in one context, which is emptied before each request."""

    def __init__(self, options: dict[str, Any]) -> None:
        drafted = LOOKUP_TOKENS[options["mode"]]
        drafter = LlamaPromptLookupDecoding(num_pred_tokens=drafted) if drafted else None
        self._llama = llama_cpp.Llama(
            options["model"],
            n_ctx=options["context"],
            n_threads=options["threads"],
            n_threads_batch=options["threads"],
            draft_model=drafter,
            verbose=False,
        )
        self.details = {
            "llama_cpp_python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
            "file_type": self._llama.metadata.get("general.file_type"),
        }

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        self._llama.reset()
        ids: list[int] = []
        for token in self._llama.generate(request.ids, temp=0.0, repeat_penalty=1.0):
            clock.arrived(1)
            ids.append(token)
            if token in request.stop_ids or len(ids) == request.tokens:
                break
        return ids, {}


if __name__ == "__main__":
    serve(LlamacppModel)
