"""Outrider, in the project's own environment; the modes are drafters. See protocol.py."""

from __future__ import annotations

from typing import Any

import torch
from protocol import Clock, Request, serve

import outrider


class OutriderModel:
    """One target; each drafter that is asked for is put around the same weights. Nothing of a prompt is kept: one that
    comes again would cost nothing."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._plain = outrider.load(
            options["model"],
            drafter="none",
            dtype=options["dtype"],
            quantize=options["quantize"],
            offline=True,
            prefix_memory=0,
        )
        self._made = {"none": self._plain}
        self.details = {**self._plain.configuration, "outrider": outrider.__version__, "torch": torch.__version__}

    def generate(self, request: Request, clock: Clock) -> tuple[list[int], dict[str, Any]]:
        """See protocol.Model."""
        if request.mode not in self._made:
            self._made[request.mode] = self._plain.using(drafter=request.mode)
        stream = self._made[request.mode].stream(request.ids, max_new_tokens=request.tokens)
        for piece in stream:
            clock.arrived(len(piece.round.tokens))
        return stream.output.token_ids, stream.output.stats.as_dict()


if __name__ == "__main__":
    serve(OutriderModel)
