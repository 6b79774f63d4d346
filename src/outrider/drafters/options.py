"""Options behind the colon of a spec: "name:first=1,second=2". Knows no drafter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import inf, nan
from typing import Any

from ..errors import BadOption

Reader = Callable[[str], Any]
"""Text -> value; raises ValueError with what the value has to be."""


def read_options(name: str, argument: str, readers: Mapping[str, Reader], path: str | None = None) -> dict[str, Any]:
    """The options of a spec, those alone that are given.

    Args:
        name: the drafter's, for messages.
        argument: what stands behind the colon.
        readers: option -> how to read it.
        path: the option that names a file: it stands last, for everything behind it belongs to it, commas included.

    Raises:
        BadOption: unknown, given twice, or with a value that cannot be used.
    """
    found: dict[str, Any] = {}
    while argument:
        key, _, rest = argument.partition("=")
        if key not in readers or key in found:
            fault = "is given twice" if key in found else "is no option"
            forms = ", ".join(f"{option}=.." for option in readers)
            raise BadOption(
                f"{key!r} {fault} of the drafter {name!r}: write {name}:OPTIONS with commas between {forms}."
            )
        text, _, argument = (rest, "", "") if key == path else rest.partition(",")
        try:
            found[key] = readers[key](text)
        except ValueError as error:
            raise BadOption(f"{name}:{key}={text} cannot be used: {key} has to be {error}.") from error
    return found


def split_specs(text: str, names: Iterable[str]) -> list[str]:
    """Specs at those commas behind which a known name begins; paths and options may have commas of their own.

    What follows the name of a cascade is its own.

    Args:
        text: specs with commas between.
        names: those that are known; package.module:Class is too.
    """
    known = "|".join(re.escape(name) for name in names)
    start = rf",(?=(?:{known})(?:[:,]|$)|[A-Za-z_]\w*(?:\.\w+)+:[A-Za-z_]\w*(?:,|$))"
    specs = [spec for spec in re.split(start, text) if spec]
    inner = next((place for place, spec in enumerate(specs) if spec.startswith("cascade:")), len(specs))
    return [*specs[:inner], *filter(None, [",".join(specs[inner:])])]


def whole(least: int) -> Reader:
    """A `Reader` of a whole number of `least` or more."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"a whole number of {least} or more")
        return int(text)

    return read


def number(least: float) -> Reader:
    """A `Reader` of a finite number of `least` or more."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not least <= value < inf:
            raise ValueError(f"a number of {least:g} or more")
        return value

    return read


def text_path(text: str) -> str:
    """A `Reader` of a path, which is looked at when it is used."""
    if not text:
        raise ValueError("a file")
    return text
