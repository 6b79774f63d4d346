"""What a policy looks like, and what it may know of the drafter. Policies see rounds, never models or tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..errors import BadOption
from ..types import Budget, Round


class Policy(Protocol):
    """Says how much to draft next. It belongs to one request."""

    def budget(self) -> Budget:
        """How much the drafter may propose in the next round; asking twice changes nothing."""
        ...

    def observe(self, round_: Round) -> None:
        """Learn from a round of this request."""
        ...


Maker = Callable[[], Policy]
"""Makes a fresh policy for each request. What its policies share, they share through it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy may know of the drafter that it serves.

    Attributes:
        drafter: its name, for messages.
        has_law: it asks `Budget.stop` after each token that it draws.
        makes_trees: it spends `Budget.nodes` on branches.
        reads: it has a model that reads a request's text before its first draft.
    """

    drafter: str = ""
    has_law: bool = True
    makes_trees: bool = False
    reads: bool = False


LONGEST = 20  # tokens that a policy which waits for the drafter's doubts lets it draft, as Transformers does


class Stopping:
    """Draft until the drafter doubts, and at most `LONGEST` tokens. What it doubts is kept: dropping it biases rules
    that use q (ALGORITHMS, section 1)."""

    def __init__(self, stop: Callable[[Tensor, int], bool]) -> None:
        self._budget = Budget(LONGEST, stop=stop)

    def budget(self) -> Budget:
        """See `Policy`."""
        return self._budget

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


def no_argument(name: str, argument: str) -> None:
    """Refuse an argument that would change nothing.

    Raises:
        BadOption: there is one.
    """
    if argument:
        raise BadOption(f"policy {name!r} takes no argument, {argument!r} was given: write just {name!r}.")


def needs_law(name: str, setting: Setting) -> None:
    """Refuse a drafter that never tells how sure it is.

    Raises:
        BadOption: it does not.
    """
    if not setting.has_law:
        raise BadOption(
            f"policy {name!r} asks the drafter how sure it is, and {setting.drafter!r} has no probabilities, so "
            "it would change nothing: use a drafter with a model, or the policy 'goodput'."
        )
