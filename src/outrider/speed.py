"""How fast speculation can be, in arithmetic: tokens per pass from acceptance, speed from tokens and seconds.

Knows no models, no clocks and no rounds. `survival` stands for s_1, s_2, ..., the chances that draft tokens 1..k are
all accepted; `conditional` for a_1, a_2, ..., the chance of token k once those before it were accepted; `ranks` for
r_0, r_1, ..., the chances that a node's likeliest, second, ... child is the target's next token. The derivations are in
docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import mul

from .errors import BadOption


def survival(conditional: Iterable[float]) -> tuple[float, ...]:
    """s_k from a_k: s_k = a_1 * ... * a_k."""
    return tuple(accumulate(conditional, mul))


def conditional(survival: Iterable[float]) -> tuple[float, ...]:
    """a_k from s_k: a_k = s_k / s_(k-1), up to the first s_k that is 0."""
    found = []
    for before, now in pairwise((1.0, *survival)):
        if not before:
            break
        found.append(now / before)
    return tuple(found)


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


def tree_length(parents: Sequence[int], ranks: Sequence[float]) -> float:
    """Tokens per pass with a tree, the target's own token included: 1 + the sum over nodes of the chance of their path.

    A node's path is kept with the product of the r_b of the ranks on it, if what happens at one node says nothing of
    the next. Trees whose branches follow the drafter's own confidence are accepted more often than that.

    Args:
        parents: of each node, node 0 first (-1); siblings in the order of their ranks, as in `types.Tree`.
        ranks: r_0, r_1, ...; a child beyond them is never the right one.

    Raises:
        BadOption: chances that are none, or that sum to more than 1.

    Source: Chen et al. (Sequoia), 2402.12374, section 3.1.
    """
    if any(not 0 <= chance <= 1 for chance in ranks) or sum(ranks) > 1 + 1e-9:
        raise BadOption(
            f"Chances by rank of {tuple(ranks)} are none: give numbers from 0 to 1 with a sum of at most 1."
        )
    below = [0] * len(parents)  # children seen so far
    chances = [1.0] * len(parents)
    for node, parent in enumerate(parents[1:], 1):
        rank = below[parent]
        below[parent] += 1
        chances[node] = chances[parent] * (ranks[rank] if rank < len(ranks) else 0.0)
    return sum(chances)


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


def break_even(plain_seconds: float, verify_seconds: float, draft_seconds: float = 0.0) -> float:
    """Tokens per pass, the target's own included, above which speculation is faster than plain decoding.

    See `speedup`, of which this is the inverse: the length at which it is 1.
    """
    return (verify_seconds + draft_seconds) / plain_seconds


def naive(rate: float, depth: int) -> float:
    """WRONG, and kept to be shown next to the exact value: the widely copied "speedup" K*a / (1 + K*(1-a)).

    It takes tokens to be accepted apart from those before them, counts no token of the target's own and no cost of
    drafting. It calls one draft token a slowdown at every rate, and it grows with the depth, so it cannot choose one.

    Raises:
        BadOption: a rate outside 0 to 1, or a negative depth.
    """
    _check(rate, depth)
    return depth * rate / (1 + depth * (1 - rate))


def free_tokens(
    flops: float,
    bandwidth: float,
    weight_bytes: float,
    parameters: float,
    *,
    batch: int = 1,
    context: int = 0,
    kv_bytes: float = 0.0,
) -> float:
    """Tokens per request and pass up to which a pass takes as long as it takes to read what it needs: the roofline.

    An estimate for a machine that is not at hand, from its data sheet; on one that is, `outrider costs` measures it.
    As the batch grows it tends to what the keys and values alone allow, which grows with the context.

    Args:
        flops: floating-point operations per second that the machine reaches.
        bandwidth: bytes per second that it reads.
        weight_bytes: read by every pass.
        parameters: multiplied with every token.
        batch: requests in a pass.
        context: tokens that each has behind it.
        kv_bytes: of keys and values, per token of context.

    Raises:
        BadOption: no speed, no parameters or no request.

    Source: Chen et al. (MagicDec), 2408.11049; the roofline is Williams et al., CACM 52(4), 2009.
    """
    if min(flops, bandwidth, parameters, batch) <= 0:
        raise BadOption("free_tokens needs a machine with speed, a model with parameters and a batch of 1 or more.")
    seconds = (weight_bytes + batch * context * kv_bytes) / bandwidth
    return flops * seconds / (2 * parameters * batch)


def _check(rate: float, depth: int) -> None:
    if not 0 <= rate <= 1:
        raise BadOption(f"An acceptance rate of {rate} is none: give a number from 0 to 1.")
    if depth < 0:
        raise BadOption(f"A draft of {depth} tokens is none: give 0 or more.")
