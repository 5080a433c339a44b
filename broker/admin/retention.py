"""`dledger-admin retention`: where each member's log begins, what keeps it, and the pins; removes a pin.

It must not judge what is due: the group does (docs/retention.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

import trio
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from broker.admin.ask import NodeAnswer, ask_all
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED, EXIT_UNKNOWN
from broker.admin.nodes import addresses_of
from broker.admin.options import add_nodes_of_group
from broker.admin.pins import PinRefusedError, unpin_log
from dledger.runtime.commands import TABLE_WIDTH

_COLUMNS: Final = (
    ("node", "raftNode"),
    ("role", "raftRole"),
    ("first entry", "raftKeptFromIndex"),
    ("at position", "commitLogMinOffset"),
    ("given back to", "raftFirstIndex"),
    ("last forgotten", "raftForgotten"),
    ("kept by", "raftForgettingHeldUp"),
)
_TEXT_SHOWN_MAX: Final = 300


def _add_options(command: argparse.ArgumentParser) -> None:
    add_nodes_of_group(command)
    command.add_argument(
        "--drop-pin", metavar="NAME", help="remove this pin first: retention goes on without it"
    )


def run_retention(options: argparse.Namespace) -> int:
    """Carry out the command; return its exit code.

    Raises:
        ClientUsageError: an address is none.
        NobodyAnsweredError: nobody could be asked, or could remove the pin.
    """
    addresses = trio.run(addresses_of, options)
    if options.drop_pin is not None:
        try:
            trio.run(unpin_log, addresses, options.drop_pin)
        except PinRefusedError as error:
            sys.stderr.write(f"dledger-admin: {error}\n")
            return EXIT_UNCHANGED if error.is_definite else EXIT_UNKNOWN
        sys.stderr.write(f"the pin {options.drop_pin!r} is removed\n")
    return _show(trio.run(ask_all, addresses), as_json=options.json)


def _show(answers: list[NodeAnswer], *, as_json: bool) -> int:
    """Print a row per node and one per pin; return EXIT_UNKNOWN if any node is missing."""
    rows = [
        {heading: each.table.get(key, "")[:_TEXT_SHOWN_MAX] for heading, key in _COLUMNS}
        for each in answers
        if each.table
    ]
    problems = [f"{each.address}: {each.problem}" for each in answers if not each.table]
    pins = _pins(answers)
    if as_json:
        json.dump({"nodes": rows, "pins": pins, "problems": problems}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(rows, pins, problems)
    return EXIT_UNKNOWN if problems else EXIT_OK


def _pins(answers: list[NodeAnswer]) -> dict[str, dict[str, object]]:
    """Return the pins as the member says that has applied most; none where nobody knows of pins."""
    told = [each.table for each in answers if each.table.get("raftPins")]
    if not told:
        return {}
    newest = max(told, key=lambda table: int(table.get("raftAppliedIndex", "0")))
    try:
        pins = json.loads(newest["raftPins"])
    except ValueError:
        return {}
    return pins if isinstance(pins, dict) else {}


def _print(
    rows: list[dict[str, str]], pins: dict[str, dict[str, object]], problems: list[str]
) -> None:
    """Print a table of the members, one of the pins if there are any, and who did not answer."""
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    table = Table(title="what is kept of the log")
    for heading, _ in _COLUMNS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(escape, row.values()))
    console.print(table)
    if pins:
        console.print(_pin_table(pins))
    for problem in problems:
        console.print(f"[yellow]{escape(problem)}[/]")


def _pin_table(pins: dict[str, dict[str, object]]) -> Table:
    """Return the pins as a table; what a broker sends of them may be anything."""
    table = Table(title="pins")
    for heading in ("name", "state", "from position", "keeps", "put", "holds for", "by"):
        table.add_column(heading)
    for name, pin in pins.items():
        table.add_row(
            escape(name),
            escape(str(pin.get("state"))),
            escape(str(pin.get("position"))),
            f"{_size(pin.get('bytes'))} of {_size(pin.get('keepBytes'))}",
            f"{_hours(pin.get('ageMs'))} ago",
            _hours(pin.get("keepMs")),
            escape(str(pin.get("by"))),
        )
    return table


def _size(value: object) -> str:
    return decimal(value) if isinstance(value, int) else "?"


def _hours(value: object) -> str:
    return f"{value / 3_600_000:.1f} h" if isinstance(value, int) else "?"


RETENTION = Command(
    "retention",
    "where each node's log begins, what keeps what is due, and the pins",
    _add_options,
    run_retention,
    "retention -n 127.0.0.1:9876",
)
