"""`dledger-admin retention`: where each member's log begins, what keeps it, and the pins; removes a pin.

It must not judge what is due: the group does (docs/retention.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

import trio
from rich.filesize import decimal

from broker.admin.ask import NodeAnswer, ask_all
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED, EXIT_UNKNOWN
from broker.admin.facts import read_object_in, whole_number
from broker.admin.nodes import addresses_of
from broker.admin.options import add_nodes_of_group
from broker.admin.pins import PinRefusedError, unpin_log
from broker.admin.printing import print_error, print_json, print_line, print_table

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
            print_error(error)
            return EXIT_UNCHANGED if error.is_definite else EXIT_UNKNOWN
        print_error(f"the pin {options.drop_pin!r} is removed")
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
        print_json({"nodes": rows, "pins": pins, "problems": problems})
    else:
        _print(rows, pins, problems)
    return EXIT_UNKNOWN if problems else EXIT_OK


def _pins(answers: list[NodeAnswer]) -> dict[str, Mapping[object, object]]:
    """Return the pins as the member says that has applied most; none where nobody knows of pins."""
    told = [each.table for each in answers if each.table.get("raftPins")]
    if not told:
        return {}
    newest = max(told, key=lambda table: whole_number(table.get("raftAppliedIndex", "")) or 0)
    pins = read_object_in(newest, "raftPins")
    return {name: pin for name, pin in pins.items() if isinstance(pin, dict)}


def _print(
    rows: list[dict[str, str]], pins: dict[str, Mapping[object, object]], problems: list[str]
) -> None:
    """Print a table of the members, one of the pins if there are any, and who did not answer."""
    headings = [heading for heading, _ in _COLUMNS]
    print_table("what is kept of the log", headings, [tuple(row.values()) for row in rows])
    if pins:
        headings = ["name", "state", "from position", "keeps", "put", "holds for", "by"]
        print_table("pins", headings, [_pin_row(name, pin) for name, pin in pins.items()])
    for problem in problems:
        print_line(problem, "yellow")


def _pin_row(name: str, pin: Mapping[object, object]) -> tuple[str, ...]:
    """Return the row of a pin; what a broker sends of it may be anything."""
    return (
        name,
        str(pin.get("state")),
        str(pin.get("position")),
        f"{_size(pin.get('bytes'))} of {_size(pin.get('keepBytes'))}",
        f"{_hours(pin.get('ageMs'))} ago",
        _hours(pin.get("keepMs")),
        str(pin.get("by")),
    )


def _size(value: object) -> str:
    size_bytes = whole_number(str(value))
    return "?" if size_bytes is None else decimal(size_bytes)


def _hours(value: object) -> str:
    span_ms = whole_number(str(value))
    return "?" if span_ms is None else f"{span_ms / 3_600_000:.1f} h"


RETENTION = Command(
    "retention",
    "where each node's log begins, what keeps what is due, and the pins",
    _add_options,
    run_retention,
    "retention -n 127.0.0.1:9876",
)
