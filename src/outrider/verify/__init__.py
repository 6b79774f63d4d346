"""Rules that decide which draft tokens stay. A rule is one file and one line here."""

from __future__ import annotations

from ..errors import BadOption
from .base import Verifier
from .match import Match
from .rejection import TokenRejection

VERIFIERS: dict[str, type[Verifier]] = {"match": Match, "token": TokenRejection}
DEFAULT = "match"


def make_verifier(spec: str) -> Verifier:
    """The verifier of that name.

    Raises:
        BadOption: there is none.
    """
    if spec not in VERIFIERS:
        raise BadOption(f"There is no verifier {spec!r}: choose one of {', '.join(sorted(VERIFIERS))}.")
    return VERIFIERS[spec]()


__all__ = ["DEFAULT", "VERIFIERS", "Verifier", "make_verifier"]
