"""The methods of training by name. One is a file and a line here."""

from __future__ import annotations

import inspect

from ..errors import BadOption
from .dflash import DFlashRecipe
from .draft import DraftRecipe
from .eagle import EagleRecipe
from .eagle3 import Eagle3Recipe
from .exit import ExitRecipe
from .layerskip import LayerSkipRecipe
from .medusa import MedusaRecipe
from .medusa2 import Medusa2Recipe
from .mtp import MtpRecipe
from .recipe import Material, Recipe

METHODS: dict[str, type[Recipe]] = {
    "medusa": MedusaRecipe,
    "eagle": EagleRecipe,
    "eagle3": Eagle3Recipe,
    "mtp": MtpRecipe,
    "dflash": DFlashRecipe,
    "exit": ExitRecipe,
    "draft": DraftRecipe,
    "medusa2": Medusa2Recipe,
    "layerskip": LayerSkipRecipe,
}


def recipe_class(method: str) -> type[Recipe]:
    """The method of that name.

    Raises:
        BadOption: there is none.
    """
    if method not in METHODS:
        raise BadOption(f"There is no training method {method!r}: choose one of {', '.join(sorted(METHODS))}.")
    return METHODS[method]


def own_options(method: str) -> dict[str, object]:
    """The options that a method alone has, with their defaults."""
    parameters = inspect.signature(recipe_class(method).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def make_recipe(method: str, material: Material) -> Recipe:
    """A method at work on its material.

    Raises:
        BadOption: there is no such method, or one of its options has a value of another kind.
    """
    kinds = own_options(method)
    for name, value in material.options.items():
        if type(value) is not type(kinds[name]):
            raise BadOption(f"{name} is {value!r}: it has to be a value like {kinds[name]!r}.")
    return recipe_class(method)(material, **material.options)
