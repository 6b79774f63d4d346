"""Figures from rounds, and from nothing else. Each has one definition, given here; knows no models and no terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

from .types import Round


class Tally(NamedTuple):
    """What a round comes to, in counts: all that its figures are made of.

    Attributes:
        drafted, accepted, tokens: as in `types.Round`; `tokens` is how many were committed.
        draft_seconds, verify_seconds: as in `types.Round`.
        tv, kl: sums over the committed tokens; None where no rule was relaxed.
    """

    drafted: int
    accepted: int
    tokens: int
    draft_seconds: float
    verify_seconds: float
    tv: float | None = None
    kl: float | None = None

    @classmethod
    def of(cls, round_: Round) -> Tally:
        """That of one round."""
        seconds = (round_.draft_seconds, round_.verify_seconds)
        away = round_.divergence
        sums = (sum(d.tv for d in away), sum(d.kl for d in away)) if away else (None, None)
        return cls(round_.drafted, round_.accepted, len(round_.tokens), *seconds, *sums)


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
        return cls.of_tallies([Tally.of(round_) for round_ in rounds])

    @classmethod
    def of_tallies(cls, every: Sequence[Tally]) -> Stats:
        """The same from the rounds' counts, where those are what was kept."""
        with_draft = [round_ for round_ in every if round_.drafted]
        drafted = sum(round_.drafted for round_ in every)
        accepted = [round_.accepted for round_ in with_draft]
        tokens = sum(round_.tokens for round_ in every)
        away = [round_ for round_ in every if round_.tv is not None]
        relaxed = sum(round_.tokens for round_ in away)
        reached = [sum(kept >= k for kept in accepted) for k in range(max(accepted, default=0) + 1)]
        return cls(
            rounds=len(every),
            drafted=drafted,
            accepted=sum(accepted),
            tokens=tokens,
            acceptance_length=sum(r.tokens for r in with_draft) / len(with_draft) if with_draft else None,
            acceptance_rate=sum(accepted) / drafted if drafted else None,
            survival=tuple(count / len(with_draft) for count in reached[1:]),
            conditional=tuple(now / before for before, now in pairwise(reached)),
            tokens_per_pass=tokens / len(every) if every else 0.0,
            draft_seconds=sum(round_.draft_seconds for round_ in every),
            verify_seconds=sum(round_.verify_seconds for round_ in every),
            mean_tv=sum(round_.tv or 0.0 for round_ in away) / relaxed if away else None,
            mean_kl=sum(round_.kl or 0.0 for round_ in away) / relaxed if away else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: where `mean_kl` is infinite it is null beside a `mean_tv` that is not."""
        return {item.name: finite(getattr(self, item.name)) for item in fields(self)}


def finite(value: Any) -> Any:
    """A figure as JSON can say it: None for infinity."""
    return None if value == math.inf else value
