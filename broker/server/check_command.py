"""`dledger-broker --check`: what would hold, from where, and what is wrong. It opens no store and no port."""

from __future__ import annotations

import sys
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker.command_line import EXIT_OK, EXIT_USAGE
from broker.server.config import Reading
from broker.server.settings.reading import Setting
from dledger.runtime.commands import TABLE_WIDTH

_DEFAULT: Final = "default"


class CheckReport(msgspec.Struct, frozen=True):
    """The answer of `--check --json`.

    Attributes:
        ok: a start with these settings would not be refused for them.
        mistakes: what is wrong, all of it.
        warnings: what a start would warn of.
        settings: every setting that would hold, or is given and not used.
    """

    ok: bool
    mistakes: tuple[str, ...]
    warnings: tuple[str, ...]
    settings: tuple[Setting, ...]


def check(reading: Reading, *, as_json: bool) -> int:
    """Print what came of reading the settings; return the exit status."""
    is_right = reading.config is not None
    if as_json:
        report = CheckReport(is_right, reading.mistakes, reading.warnings, reading.settings)
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        width = None if sys.stdout.isatty() else TABLE_WIDTH
        _print(reading, Console(width=width, highlight=False))
    return EXIT_OK if is_right else EXIT_USAGE


def _print(reading: Reading, console: Console) -> None:
    """Print a table of the settings, what is given before what has its default, then what is wrong."""
    table = Table(title="what would hold" if reading.config else "what was read")
    for heading in ("key", "value", "from", "effect"):
        table.add_column(heading, overflow="fold")
    for setting in sorted(reading.settings, key=lambda each: each.origin == _DEFAULT):
        table.add_row(
            *map(escape, (setting.key, setting.value, setting.origin, setting.effect)),
            style="dim" if setting.origin == _DEFAULT else None,
        )
    console.print(table)
    for color, texts in (("yellow", reading.warnings), ("red", reading.mistakes)):
        for text in texts:
            console.print(f"[{color}]{escape(text)}[/{color}]", soft_wrap=True)
    count = len(reading.mistakes)
    verdict = f"{count} mistakes: it would not start" if count else "no mistakes"
    console.print(verdict.replace("1 mistakes", "1 mistake") if count == 1 else verdict)
