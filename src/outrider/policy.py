"""How long to draft. A policy belongs to one request and learns from its rounds; nothing is written anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .errors import BadOption
from .types import Budget, Round

DEFAULT = "heuristic"


class Policy(Protocol):
    """Says how much to draft next."""

    def budget(self) -> Budget:
        """How much the drafter may propose in the next round."""
        ...

    def observe(self, round_: Round) -> None:
        """Learn from a round of this request."""
        ...


class Fixed:
    """The same length every round."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def budget(self) -> Budget:
        """See `Policy`."""
        return Budget(self._depth)

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


class Heuristic:
    """Transformers' rule: start at 5, two more when all were accepted, otherwise one less, never under 1.

    Source: Gante, "Assisted Generation", Hugging Face blog, 2023.
    """

    def __init__(self, start: int = 5) -> None:
        self._depth = start

    def budget(self) -> Budget:
        """See `Policy`."""
        return Budget(self._depth)

    def observe(self, round_: Round) -> None:
        """Lengthen after full acceptance, shorten otherwise; a round without a draft says nothing."""
        if round_.drafted:
            self._depth = self._depth + 2 if round_.accepted == round_.drafted else max(1, self._depth - 1)


def _fixed(argument: str) -> Callable[[], Policy]:
    try:
        depth = int(argument)
    except ValueError:
        depth = -1
    if depth < 1:
        raise BadOption(
            f"policy 'fixed:{argument}' has no usable length: write fixed:K with K of 1 or more, "
            "or use the drafter 'none' for plain decoding."
        )
    return lambda: Fixed(depth)


def _heuristic(argument: str) -> Callable[[], Policy]:
    if argument:
        raise BadOption(f"policy 'heuristic' takes no argument, {argument!r} was given: write just 'heuristic'.")
    return Heuristic


POLICIES: dict[str, Callable[[str], Callable[[], Policy]]] = {"fixed": _fixed, "heuristic": _heuristic}


def make_policy(spec: str) -> Callable[[], Policy]:
    """A maker of fresh policies, one per request, from a spec like "fixed:5".

    Raises:
        BadOption: no such policy, or a bad argument.
    """
    name, _, argument = spec.partition(":")
    if name not in POLICIES:
        raise BadOption(f"There is no policy {name!r}: choose one of {', '.join(sorted(POLICIES))}.")
    return POLICIES[name](argument)
