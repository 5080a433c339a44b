"""What all subcommands print alike: tables, JSON, lines about what went wrong.

Whatever a broker sends is shown as text: no markup, no control characters. It must not know any subcommand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.admin.command import PROGRAM
from broker.times import local_and_utc
from dledger.runtime.commands import TABLE_WIDTH
from dledger.runtime.visible_text import visible

TEXT_SHOWN_MAX: Final = 300
ERROR_SHOWN_MAX: Final = 4800
"""Of a line that says why something failed: it may name many nodes, each with a reason."""

NONE: Final = "-"
"""Stands for what there is not, or is not known."""


def console() -> Console:
    """Return a console for the width that there is; a pipe has none, and gets TABLE_WIDTH."""
    return Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)


def shown(text: str, length_max: int = TEXT_SHOWN_MAX) -> str:
    """Return text of others so that it stays on its line and in its place."""
    cut = text if len(text) <= length_max else text[: length_max - 3] + "..."
    return visible(cut)


def number(value: int | None) -> str:
    """Return a number with thin groups of three, as people read it."""
    return NONE if value is None else f"{value:,}".replace(",", " ")


def at(at_ms: int | None) -> str:
    """Return a time in ms since 1970, local and UTC; that of nothing as a dash."""
    return NONE if at_ms is None or at_ms <= 0 else local_and_utc(at_ms)


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Iterable[str] = (),
    style: str = "",
) -> None:
    """Print rows under their headings; those in `right` hold numbers, and `style` is the title's."""
    numbers = frozenset(right)
    table = Table(title=Text(shown(title), style=style), title_justify="left")
    for heading in headings:
        table.add_column(
            Text(shown(heading)), justify="right" if heading in numbers else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(each if isinstance(each, Text) else Text(shown(each)) for each in row))
    console().print(table)


def print_line(text: str, style: str = "") -> None:
    """Print a line beside a table, as long as it is."""
    console().print(Text(shown(text, 4 * TEXT_SHOWN_MAX), style=style), soft_wrap=True)


def print_text(line: str) -> None:
    """Print a line as it is, however long."""
    sys.stdout.write(f"{line}\n")


def print_json(value: object) -> None:
    """Print one JSON object for scripts."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_error(error: Exception | str) -> None:
    """Print a line that is no result; servers have a say in what went wrong, so it is shown as text of others."""
    sys.stderr.write(f"{PROGRAM}: {shown(str(error), ERROR_SHOWN_MAX)}\n")
