"""Figures from rounds, and from nothing else. Each has one definition, given here; knows no models and no terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from .types import Round


@dataclass(frozen=True, slots=True)
class Stats:
    """What a run of rounds amounts to. Accepted tokens are counted after trimming at EOS, stop strings and budgets.

    Attributes:
        rounds: passes of the target that committed tokens (prefill apart).
        drafted: tokens proposed.
        accepted: tokens proposed and kept.
        tokens: tokens committed.
        acceptance_length: tokens committed per round, bonus included, over the rounds that had a draft; 1 at worst.
            None if no round had one.
        acceptance_rate: accepted / drafted; None if nothing was drafted.
        survival: s_k, share of rounds with a draft in which tokens 1..k were all kept (vLLM's "per position").
        conditional: a_k = s_k / s_(k-1), the chance of token k once those before it were kept.
        tokens_per_pass: tokens / rounds, rounds without a draft included.
        draft_seconds, verify_seconds: wall time of drafting and of the target's passes.
        mean_tv, mean_kl: under a relaxed rule, how far the laws that the committed tokens were drawn from lie from the
            target's, on average over the tokens (`types.Divergence`); None under a lossless one.
    """

    rounds: int
    drafted: int
    accepted: int
    tokens: int
    acceptance_length: float | None
    acceptance_rate: float | None
    survival: tuple[float, ...]
    conditional: tuple[float, ...]
    tokens_per_pass: float
    draft_seconds: float
    verify_seconds: float
    mean_tv: float | None
    mean_kl: float | None

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Stats:
        """The figures of these rounds."""
        every = list(rounds)
        with_draft = [round_ for round_ in every if round_.drafted]
        drafted = sum(round_.drafted for round_ in every)
        accepted = [round_.accepted for round_ in with_draft]
        tokens = sum(len(round_.tokens) for round_ in every)
        away = [divergence for round_ in every for divergence in round_.divergence]
        reached = [sum(kept >= k for kept in accepted) for k in range(max(accepted, default=0) + 1)]
        return cls(
            rounds=len(every),
            drafted=drafted,
            accepted=sum(accepted),
            tokens=tokens,
            acceptance_length=sum(len(r.tokens) for r in with_draft) / len(with_draft) if with_draft else None,
            acceptance_rate=sum(accepted) / drafted if drafted else None,
            survival=tuple(count / len(with_draft) for count in reached[1:]),
            conditional=tuple(now / before for before, now in pairwise(reached)),
            tokens_per_pass=tokens / len(every) if every else 0.0,
            draft_seconds=sum(round_.draft_seconds for round_ in every),
            verify_seconds=sum(round_.verify_seconds for round_ in every),
            mean_tv=sum(divergence.tv for divergence in away) / len(away) if away else None,
            mean_kl=sum(divergence.kl for divergence in away) / len(away) if away else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: where `mean_kl` is infinite it is null beside a `mean_tv` that is not."""
        return {item.name: finite(getattr(self, item.name)) for item in fields(self)}


def finite(value: Any) -> Any:
    """A figure as JSON can say it: None for infinity."""
    return None if value == math.inf else value
