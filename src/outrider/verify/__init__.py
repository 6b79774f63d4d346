"""Rules that decide which draft tokens stay. A rule is one file and one line here."""

from __future__ import annotations

from ..errors import BadOption
from .base import Verifier
from .block import Block
from .ensemble import Ensemble
from .lenience import Lenience
from .match import Match
from .rejection import TokenRejection
from .traversal import Traversal
from .typical import Typical

VERIFIERS: dict[str, type[Verifier]] = {
    "match": Match,
    "token": TokenRejection,
    "block": Block,
    "traversal": Traversal,
    "ensemble": Ensemble,
    "typical": Typical,
    "lenience": Lenience,
}
DEFAULT = "match"


def make_verifier(spec: str) -> Verifier:
    """The verifier of a spec: "name" or "name:argument".

    Raises:
        BadOption: there is none, or its argument is wrong.
    """
    name, _, argument = spec.partition(":")
    if name not in VERIFIERS:
        raise BadOption(f"There is no verifier {name!r}: choose one of {', '.join(sorted(VERIFIERS))}.")
    return VERIFIERS[name].from_spec(argument)


__all__ = ["DEFAULT", "VERIFIERS", "Verifier", "make_verifier"]
