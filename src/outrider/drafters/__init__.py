"""Everything that proposes tokens. A drafter is one file and one line here."""

from __future__ import annotations

import importlib
import importlib.util

from .. import features
from ..errors import BadOption
from ..target import Encoder, Target
from .base import Drafter, Setting
from .cascade import Cascade
from .dflash import DFlash
from .eagle import Eagle
from .eagle3 import Eagle3
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .lookup import Lookup
from .medusa import Medusa
from .model import ModelDrafter
from .mtp import Mtp
from .mtp_trained import TrainedMtp
from .none import NoDrafter
from .recycle import Recycle
from .reference import Reference
from .suffix import Suffix
from .trained import Trained
from .translated import Translated

DRAFTERS: dict[str, type[Drafter]] = {
    "none": NoDrafter,
    "lookup": Lookup,
    "suffix": Suffix,
    "reference": Reference,
    "recycle": Recycle,
    "lookahead": Lookahead,
    "model": ModelDrafter,
    "translated": Translated,
    "early_exit": EarlyExit,
    "mtp": Mtp,
    "medusa": Medusa,
    "eagle": Eagle,
    "eagle3": Eagle3,
    "dflash": DFlash,
    "cascade": Cascade,
}
TRAINED: dict[str, type[Trained]] = {kind.method: kind for kind in (Medusa, Eagle, Eagle3, DFlash, TrainedMtp)}
"""Those with a folder of weights, ours or published."""
DEFAULT = "suffix"


def make_drafter(spec: str, setting: Setting) -> Drafter:
    """The drafter of a spec: "name", "name:argument", or "module:Class" for one of your own.

    Raises:
        BadOption: there is no such drafter, or its argument is wrong.
    """
    name, _, argument = spec.partition(":")
    check_encoder(spec, setting.target)
    drafter = drafter_class(spec).from_spec(argument if name in DRAFTERS else "", setting)
    mark = getattr(getattr(setting.target, "config", None), features.MARK, "")
    if mark:
        drafter.note = f"{drafter.note} {features.changed_note(mark)}".lstrip()
    return drafter


def check_encoder(spec: str, target: Target) -> None:
    """Refuse a drafter that does not serve encoder-decoder targets, before anything of it is loaded.

    Raises:
        BadOption: by name, with those that do.
    """
    if isinstance(target, Encoder) and not drafter_class(spec).for_encoders:
        able = ", ".join(name for name, kind in DRAFTERS.items() if kind.for_encoders)
        raise BadOption(f"The drafter {spec!r} does not serve encoder-decoder targets: choose one of {able}.")


def drafter_class(spec: str) -> type[Drafter]:
    """What a spec names, before anything of it is loaded.

    Raises:
        BadOption: there is no such drafter.
    """
    name, _, argument = spec.partition(":")
    if name in DRAFTERS:
        return DRAFTERS[name]
    if argument.isidentifier() and ("." in name or _exists(name)):
        return _imported(name, argument)
    raise BadOption(f"There is no drafter {name!r}: choose one of {', '.join(sorted(DRAFTERS))}, or module:Class.")


def _exists(module: str) -> bool:
    """Whether there is such a module; nothing is imported."""
    return module.isidentifier() and importlib.util.find_spec(module) is not None


def _imported(module: str, name: str) -> type[Drafter]:
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadOption(f"The drafter {module}:{name} cannot be imported ({error}): check the path.") from error
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise BadOption(f"{module}:{name} is no drafter: derive it from outrider.drafters.Drafter.")
    return found


__all__ = ["DEFAULT", "DRAFTERS", "TRAINED", "Drafter", "Setting", "drafter_class", "make_drafter"]
