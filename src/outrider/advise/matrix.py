"""The decision matrix as Markdown, for docs/choosing.md: by situation, and by method. Made from the rules alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .methods import METHODS, Method
from .rules import RULES

_MARKS = {3: "+++", 2: "++", 1: "+", -1: "−", -2: "−−", -3: "−−−", None: "out"}


def by_situation() -> str:
    """A row for each rule."""
    rows = (
        (rule.when, ", ".join(f"`{name}`" for name in rule.methods), _MARKS[rule.points], rule.why, rule.source)
        for rule in RULES
    )
    return _table(("where", "for", "", "because", "source"), rows)


def by_method() -> str:
    """A row for each method."""
    rows = (
        (
            f"`{method.name}`",
            method.title,
            str(method.worth),
            _where(method, lambda points: points is not None and points > 0),
            _where(method, lambda points: points is not None and points < 0),
            _where(method, lambda points: points is None),
            method.adds,
        )
        for method in METHODS
    )
    return _table(("", "drafts", "worth", "better where", "worse where", "out where", "memory beside the target"), rows)


def _where(method: Method, wanted: Callable[[int | None], bool]) -> str:
    """The situations of the rules about a method that are of one kind."""
    found = [rule for rule in RULES if method.name in rule.methods and wanted(rule.points)]
    return "; ".join(f"{rule.when} ({_MARKS[rule.points]})" for rule in found)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(headings)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cell for cell in line)} |" for line in lines)


def filled(page: str) -> str:
    """A page with both tables made anew, between their marks.

    Raises:
        ValueError: it has no such marks.
    """
    for name, table in (("by method", by_method()), ("by situation", by_situation())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        first = page.index(begin) + len(begin)
        page = f"{page[:first]}\n\n{table}\n\n{page[page.index(end, first) :]}"
    return page
