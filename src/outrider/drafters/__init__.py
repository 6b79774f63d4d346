"""Everything that proposes tokens. A drafter is one file and one line here."""

from __future__ import annotations

import importlib

from ..errors import BadOption
from .base import Drafter, Setting
from .cascade import Cascade
from .early_exit import EarlyExit
from .lookup import Lookup
from .model import ModelDrafter
from .mtp import Mtp
from .none import NoDrafter
from .translated import Translated

DRAFTERS: dict[str, type[Drafter]] = {
    "none": NoDrafter,
    "lookup": Lookup,
    "model": ModelDrafter,
    "early_exit": EarlyExit,
    "translated": Translated,
    "mtp": Mtp,
    "cascade": Cascade,
}
DEFAULT = "lookup"


def make_drafter(spec: str, setting: Setting) -> Drafter:
    """The drafter of a spec: "name", "name:argument", or "package.module:Class" for one of your own.

    Raises:
        BadOption: there is no such drafter, or its argument is wrong.
    """
    name, _, argument = spec.partition(":")
    if name in DRAFTERS:
        return DRAFTERS[name].from_spec(argument, setting)
    if "." in name and argument:
        return _imported(name, argument).from_spec("", setting)
    raise BadOption(
        f"There is no drafter {name!r}: choose one of {', '.join(sorted(DRAFTERS))}, or package.module:Class."
    )


def _imported(module: str, name: str) -> type[Drafter]:
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadOption(f"The drafter {module}:{name} cannot be imported ({error}): check the path.") from error
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise BadOption(f"{module}:{name} is no drafter: derive it from outrider.drafters.Drafter.")
    return found


__all__ = ["DEFAULT", "DRAFTERS", "Drafter", "Setting", "make_drafter"]
