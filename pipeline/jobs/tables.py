"""Tables for people that never cut off a cell, since cells hold names and places."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rich.table import Table
from rich.text import Text

TITLE_CHARACTERS_MAX: Final = 76
"""Of a title that makes its table wider; longer ones are wrapped."""


def new_table(title: str, *columns: str, numbers: Collection[str] = ()) -> Table:
    """Return a table without rows; columns that are in `numbers` stand to the right."""
    table = Table(title=Text(title), min_width=min(len(title), TITLE_CHARACTERS_MAX))
    for column in columns:
        table.add_column(
            Text(column), justify="right" if column in numbers else "left", overflow="fold"
        )
    return table


def alarming(text: object) -> Text:
    """Return a highlighted cell."""
    return Text(str(text), style="bold red")
