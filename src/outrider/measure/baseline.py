"""Transformers' own `generate` as a case of a bench, in turns with the others: who wishes to know what it is worth to
leave it. Knows nothing of Outrider's loop.

Tokens arrive when `generate` hands them to its streamer. Prompt lookup is its own drafter without a model
(https://huggingface.co/docs/transformers/main/en/generation_strategies), for one prompt at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Any

import torch
from torch import Tensor

from . import held
from .prompts import BenchPrompt
from .results import PROMPT_LOOKUP, Case, Sample
from .runner import WARM_UP, Plan, Turn


class Transformers:
    """A model with Transformers' own loop around it.

    Args:
        model: a `PreTrainedModel`.
        eos: ids that end an answer; those of the target that it is compared with.
        encoded: the ids of a prompt.
        decode: ids to text, without special tokens.
    """

    def __init__(
        self,
        model: Any,
        eos: tuple[int, ...],
        encoded: Callable[[BenchPrompt], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.model, self._eos, self._encoded, self._decode = model, eos, encoded, decode

    def warm_up(self, case: Case, prompts: Sequence[BenchPrompt], plan: Plan) -> None:
        """A few tokens, which do not count."""
        ids = [self._encoded(prompt) for prompt in prompts[: case.batch]]
        self._generate(case, ids, min(WARM_UP, plan.max_new_tokens), plan.seed)

    def serve(self, case: Case, turn: Turn, plan: Plan, unused: int = 0) -> list[Sample]:
        """Answer a batch; see `runner.run`."""
        prompts, seed = [self._encoded(prompt) for prompt in turn.prompts], plan.seed + turn.repeat
        tells, began = held.reset_peak(self.model.device), time()
        rows, arrivals = self._generate(case, prompts, plan.max_new_tokens, seed)
        peak = held.peak(self.model.device) if tells else None
        return [
            Sample(
                case=turn.case,
                prompt=prompt.id,
                category=prompt.category,
                repeat=turn.repeat,
                prompt_tokens=len(ids),
                seconds=came[-1][0],
                rounds=(),
                arrivals=tuple(came),
                ids=tuple(row),
                text=self._decode(row),
                finish_reason="stop" if row[-1] in self._eos else "length",
                seed=seed,
                group=turn.group if len(turn.prompts) > 1 else None,
                started=began,
                peak_memory=None if peak is None else peak - unused,
            )
            for prompt, ids, row, came in zip(turn.prompts, prompts, rows, arrivals, strict=True)
        ]

    @torch.no_grad()
    def _generate(
        self, case: Case, prompts: Sequence[Sequence[int]], max_new_tokens: int, seed: int
    ) -> tuple[list[list[int]], list[list[tuple[float, int]]]]:
        """Ids of each answer, and its (seconds, tokens) as they came."""
        from transformers import GenerationConfig

        longest, pad = max(map(len, prompts)), self.model.generation_config.pad_token_id or 0
        ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        warm = case.temperature > 0
        settings = GenerationConfig(
            do_sample=warm,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self._eos) or None,
            pad_token_id=pad,
            **({"temperature": case.temperature, "top_k": 0, "top_p": 1.0} if warm else {}),
            **({"prompt_lookup_num_tokens": case.k} if case.drafter == PROMPT_LOOKUP else {}),
        )
        torch.manual_seed(seed)
        clock, device = _Clock(len(prompts)), self.model.device
        out = self.model.generate(
            ids.to(device), attention_mask=seen.to(device), generation_config=settings, streamer=clock
        )
        rows = [self._ended(row) for row in out[:, longest:].tolist()]
        return rows, [clock.until(len(row)) for row in rows]

    def _ended(self, row: list[int]) -> list[int]:
        """An answer without what pads it."""
        end = next((place for place, token in enumerate(row) if token in self._eos), len(row) - 1)
        return row[: end + 1]


class _Clock:
    """Notes when tokens came; a streamer, as `generate` wants one.

    Args:
        rows: prompts that are answered.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._began = rows, perf_counter()
        self._events: list[tuple[float, int]] = []
        self._asked = False

    def put(self, value: Tensor) -> None:
        """A token of every row, or several of the only one; before them the prompts."""
        if not self._asked:
            self._asked = True
            return
        self._events.append((perf_counter() - self._began, value.numel() // self._rows))

    def end(self) -> None:
        """Nothing more comes."""

    def until(self, tokens: int) -> list[tuple[float, int]]:
        """The arrivals of a row that has so many tokens; later ones pad it."""
        found, left = [], tokens
        for at, count in self._events:
            if left:
                found.append((at, min(count, left)))
                left -= found[-1][1]
        return found
