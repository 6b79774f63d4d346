"""How fast speculation can be, in arithmetic: tokens per pass from acceptance, speed from tokens and seconds.

Knows no models, no clocks and no rounds. `survival` stands for s_1, s_2, ..., the chances that draft tokens 1..k are
all accepted; `conditional` for a_1, a_2, ..., the chance of token k once those before it were accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul

from .errors import BadOption


def survival(conditional: Iterable[float]) -> tuple[float, ...]:
    """s_k from a_k: s_k = a_1 * ... * a_k."""
    return tuple(accumulate(conditional, mul))


def acceptance_length(survival: Sequence[float]) -> float:
    """Tokens per pass, the target's own token included: 1 + s_1 + ... + s_D. Holds for acceptance of any shape."""
    return 1 + sum(survival)


def acceptance_length_iid(rate: float, depth: int) -> float:
    """The same where every token is accepted with one chance, independently: (1 - a^(D+1)) / (1 - a).

    Only for that case. Acceptance that decays with depth has no such rate: fed with a mean, the formula is far off, and
    `acceptance_length` is the one to use.

    Raises:
        BadOption: a rate outside 0 to 1, or a negative depth.

    Source: Leviathan et al., 2211.17192, equation 1.
    """
    _check(rate, depth)
    return acceptance_length(survival([rate] * depth))


def goodput(tokens: float, verify_seconds: float, draft_seconds: float = 0.0) -> float:
    """Tokens per second of rounds that take so long and commit so many tokens on average."""
    return tokens / (verify_seconds + draft_seconds)


def speedup(length: float, plain_seconds: float, verify_seconds: float, draft_seconds: float = 0.0) -> float:
    """Against plain decoding, which commits one token per pass.

    Args:
        length: tokens per pass, from `acceptance_length`.
        plain_seconds: of a pass over one token.
        verify_seconds: of a pass over the whole draft.
        draft_seconds: of drafting it.
    """
    return goodput(length, verify_seconds, draft_seconds) / goodput(1, plain_seconds)


def naive(rate: float, depth: int) -> float:
    """WRONG, and kept to be shown next to the exact value: the widely copied "speedup" K*a / (1 + K*(1-a)).

    It takes tokens to be accepted apart from those before them, counts no token of the target's own and no cost of
    drafting. It calls one draft token a slowdown at every rate, and it grows with the depth, so it cannot choose one.

    Raises:
        BadOption: a rate outside 0 to 1, or a negative depth.
    """
    _check(rate, depth)
    return depth * rate / (1 + depth * (1 - rate))


def _check(rate: float, depth: int) -> None:
    if not 0 <= rate <= 1:
        raise BadOption(f"An acceptance rate of {rate} is none: give a number from 0 to 1.")
    if depth < 0:
        raise BadOption(f"A draft of {depth} tokens is none: give 0 or more.")
