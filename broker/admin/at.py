"""`dledger-admin at`: offsets, lag, open transactions, locks and what waits for its time, as they were at a time.

The state of then is folded by `broker/story`; here is what is shown of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import islice
from typing import Any, Final

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK
from broker.admin.options import add_consumer_group, add_json, add_topic, count, moment
from broker.admin.printing import NONE, at, number, print_json, print_line, print_table
from broker.admin.progress import progress_bars
from broker.admin.store_option import HOW_READ, add_store, with_store
from broker.story.moment import Moment, moment_at
from broker.story.past import (
    LockRow,
    OffsetRow,
    TransactionRow,
    WaitingRow,
    locks,
    offsets,
    transactions,
    waiting,
)
from broker.story.places import StorePlaces
from broker.story.real_topics import of_topic
from dledger import UsageError

_ROW_TYPES: Final[dict[str, type[OffsetRow | TransactionRow | LockRow | WaitingRow]]] = {
    "offsets": OffsetRow,
    "transactions": TransactionRow,
    "locks": LockRow,
    "timers": WaitingRow,
}
_OF_GROUPS: Final = ("offsets", "locks")
"""The kinds that consumer groups have; the rest belongs to none."""

_TEXTS: Final = ("group", "topic", "transaction_id", "client_id")

ROWS: Final = 1000
ROWS_MAX: Final = 1_000_000


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument(
        "kinds",
        nargs="*",
        metavar="WHAT",
        help="offsets (with lag), transactions (that are open), locks, timers (what waits for its time); if none is "
        "named all of them, and with --group those that belong to groups: offsets and locks",
    )
    command.add_argument(
        "--time", type=moment, required=True, metavar="TIME", help="behind what was stored by then"
    )
    add_store(command)
    add_consumer_group(command, required=False, text="only of this group: offsets and locks")
    add_topic(
        command, required=False, text="only of this topic; of what waits the log is read for it"
    )
    command.add_argument(
        "--limit",
        type=count(1, ROWS_MAX),
        default=ROWS,
        metavar="N",
        help="at most so many rows of each (%(default)s)",
    )
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Show what held then.

    Raises:
        UsageError: a kind is none, or groups have none of that kind.
    """
    kinds = _kinds(options)

    def act(places: StorePlaces) -> int:
        with (
            progress_bars("folding", is_shown=not options.json) as (progress,),
            moment_at(places, options.time, progress) as then,
        ):
            found = {
                kind: list(islice(_rows(kind, then, places, options), options.limit + 1))
                for kind in kinds
            }
            if options.json:
                print_json(_as_json(then, found, options))
                return EXIT_OK
        _print(then, found, options)
        return EXIT_OK

    return with_store(options.store, act)


def _kinds(options: argparse.Namespace) -> list[str]:
    """Return the kinds of rows that are asked for.

    Raises:
        UsageError: one is none, or is asked for by a group and belongs to none.
    """
    unknown = [each for each in options.kinds if each not in _ROW_TYPES]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is none of: {', '.join(_ROW_TYPES)}")
    of_none = [each for each in options.kinds if each not in _OF_GROUPS]
    if options.consumer_group is not None and of_none:
        raise UsageError(
            f"{of_none[0]} belong to no consumer group: with --group there are {' and '.join(_OF_GROUPS)}"
        )
    known = _ROW_TYPES if options.consumer_group is None else _OF_GROUPS
    return [each for each in known if not options.kinds or each in options.kinds]


def _rows(
    kind: str, then: Moment, places: StorePlaces, options: argparse.Namespace
) -> Iterator[Any]:
    state, group, topic = then.state, options.consumer_group, options.topic
    if kind == "offsets":
        return offsets(state, group, topic)
    if kind == "transactions":
        return transactions(state, topic)
    if kind == "locks":
        return locks(state, group, topic)
    return waiting(state) if topic is None else of_topic(places, waiting(state), topic)


def _as_json(
    then: Moment, found: dict[str, list[Any]], options: argparse.Namespace
) -> dict[str, object]:
    rows = {kind: [asdict(each) for each in some[: options.limit]] for kind, some in found.items()}
    return {
        "time_ms": options.time,
        "entry": then.index,
        "stored_ms": then.at_ms or None,
        "is_last": then.is_last,
        "cut": [kind for kind, some in found.items() if len(some) > options.limit],
        **rows,
    }


def _print(then: Moment, found: dict[str, list[Any]], options: argparse.Namespace) -> None:
    """Print a table for each kind of rows."""
    print_line(
        f"{options.store} after entry {number(then.index)}, stored {at(then.at_ms)}"
        f"{', the last one in its log' if then.is_last else ''}"
    )
    for kind, some in found.items():
        names = [each.name for each in fields(_ROW_TYPES[kind])]
        headings = [each.removesuffix("_ms").replace("_", " ") for each in names]
        if not some:
            print_line(f"{kind}: none")
            continue
        rows = [
            [_cell(name, getattr(row, name)) for name in names] for row in some[: options.limit]
        ]
        right = [
            heading
            for heading, name in zip(headings, names, strict=True)
            if name not in _TEXTS and not name.endswith("_ms")
        ]
        print_table(kind, headings, rows, right=right)
        if len(some) > options.limit:
            print_line(f"there are more {kind}: --limit", "yellow")


def _cell(name: str, value: str | int | None) -> str:
    if name.endswith("_ms"):
        return at(value if isinstance(value, int) else None)
    if isinstance(value, str):
        return value
    return NONE if value is None else number(value)


_FIELDS: Final = """\
time_ms, entry, stored_ms, is_last (the log has nothing later), cut: [...],
offsets: [group, topic, queue, offset, end, lag, in_flight],
transactions: [topic, transaction_id, half_offset, physical_offset, stored_ms, checks, checked_ms],
locks: [group, topic, queue, client_id, free_ms],
timers: [due_ms, physical_offset, level (null: a due time of its own), topic (null without --topic)]"""

AT = Command(
    "at",
    "offsets, lag, open transactions, locks and timers as they were at a time, from a store",
    _add_options,
    _run,
    "at offsets locks --time 03:12 --store data/n0",
    details=HOW_READ,
    fields=_FIELDS,
)
