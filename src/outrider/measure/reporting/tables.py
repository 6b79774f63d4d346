"""A table, and its Markdown. Knows nothing of what stands in it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import NamedTuple

from .wording import clean

_MARKS = re.compile(r"([\\`*_\[\]|~])")


class Column(NamedTuple):
    """A heading; figures are set flush right."""

    name: str
    figure: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings; the first cell of a row is its heading.

    Attributes:
        key: for links and file names.
        caption: what the table shows.
        columns, rows: of equal width.
        terms: (term, definition) of what the headings say.
    """

    key: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    terms: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"The table {self.key} has rows that do not fit its {len(self.columns)} columns.")

    def without_empty(self, empty: str) -> Table:
        """The same without columns in which no row has anything to say; the first one stays."""
        kept = [
            place
            for place, _ in enumerate(self.columns)
            if place == 0 or any(row[place] not in ("", empty) for row in self.rows)
        ]
        gone = {column.name for place, column in enumerate(self.columns) if place not in kept}
        return Table(
            self.key,
            self.caption,
            tuple(self.columns[place] for place in kept),
            tuple(tuple(row[place] for place in kept) for row in self.rows),
            tuple(term for term in self.terms if term[0] not in gone),
        )


def plainly(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return html.escape(_MARKS.sub(r"\\\1", " ".join(clean(text).split())), quote=False)


def markdown(table: Table) -> str:
    """The table with its caption and definitions."""
    lines = [f"**{plainly(table.caption)}**", ""]
    lines.append("| " + " | ".join(plainly(column.name) for column in table.columns) + " |")
    lines.append("|" + "|".join(" ---: " if column.figure else " --- " for column in table.columns) + "|")
    lines += ["| " + " | ".join(plainly(cell) for cell in row) + " |" for row in table.rows]
    if table.terms:
        lines.append("")
        lines += [f"- *{plainly(term)}*: {plainly(meaning)}." for term, meaning in table.terms]
    return "\n".join(lines) + "\n"
