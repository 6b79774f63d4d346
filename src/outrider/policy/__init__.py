"""How long to draft. A policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadOption
from . import confidence, entropy, fixed, goodput, heuristic
from .base import Maker, Policy, Setting
from .fixed import Fixed
from .goodput import Goodput
from .heuristic import Heuristic

POLICIES: dict[str, Callable[[str, Setting], Maker]] = {
    "confidence": confidence.make,
    "entropy": entropy.make,
    "fixed": fixed.make,
    "goodput": goodput.make,
    "heuristic": heuristic.make,
}
DEFAULT = "goodput"


def make_policy(spec: str, setting: Setting | None = None) -> Maker:
    """A maker of fresh policies, one per request, from a spec like "fixed:5".

    Args:
        spec: name, or name:argument.
        setting: the drafter that they will serve; left out, only the spec itself is looked at.

    Raises:
        BadOption: no such policy, a bad argument, or a drafter with which it would change nothing.
    """
    name, _, argument = spec.partition(":")
    if name not in POLICIES:
        raise BadOption(f"There is no policy {name!r}: choose one of {', '.join(sorted(POLICIES))}.")
    return POLICIES[name](argument, setting or Setting())


__all__ = ["DEFAULT", "POLICIES", "Fixed", "Goodput", "Heuristic", "Maker", "Policy", "Setting", "make_policy"]
