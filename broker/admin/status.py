"""The subcommand `status`: one table of all groups, once or again and again."""

from __future__ import annotations

import argparse
import math
from typing import Final

import trio

from broker.admin.ask import NobodyAnsweredError
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.looks import Looks
from broker.admin.options import add_json, add_namesrv_or_brokers
from broker.admin.printing import console as new_console
from broker.admin.status_json import health_json
from broker.admin.status_table import StatusTable
from broker.admin.watching import keep_watching, printer

WATCH_S: Final = 2.0
WATCH_S_MIN: Final = 0.2
WATCH_S_MAX: Final = 3600.0


def run_status(options: argparse.Namespace) -> int:
    """Show the status; return the exit code of the last look.

    Raises:
        NobodyAnsweredError: without --watch: neither a name server nor a broker has answered.
    """
    return trio.run(_show_once if options.watch is None else _watch, options)


class _StatusLooks:
    """The looks of one command.

    Attributes:
        problem: why the last look has found nobody; empty: somebody has answered.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.problem = "nobody was asked yet"
        self._looks = Looks(options.namesrv or (), options.brokers or (), options.expect or ())
        self._is_strict: bool = options.strict
        self._is_well = False

    async def look(self) -> StatusTable:
        """Look once."""
        look = await self._looks.look()
        self.problem = look.problem
        self._is_well = look.health.is_whole if self._is_strict else look.health.is_led
        return StatusTable(look.health, look.at_s, look.remark)

    def exit_code(self) -> int:
        """Return what the last look means for a script."""
        if self.problem:
            return EXIT_UNKNOWN
        return EXIT_OK if self._is_well else EXIT_DIFFERENT


async def _show_once(options: argparse.Namespace) -> int:
    looks = _StatusLooks(options)
    table = await looks.look()
    if looks.problem:
        raise NobodyAnsweredError(looks.problem)
    printer(new_console(), _json_of if options.json else None, is_stream=False)(table)
    return looks.exit_code()


async def _watch(options: argparse.Namespace) -> int:
    """Look again and again until a signal, every `options.watch` seconds, or less often where an answer is missing."""
    looks, console = _StatusLooks(options), new_console()
    await keep_watching(
        looks.look,
        printer(console, _json_of if options.json else None, is_stream=True),
        interval_s=options.watch,
        out=console,
        is_live=not options.json,
    )
    return looks.exit_code()


def _json_of(table: StatusTable) -> dict[str, object]:
    look: dict[str, object] = {"at_ms": round(table.at_s * 1000), "remark": table.remark}
    return look | health_json(table.health)


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add its options; its exit code is about leaders by default, so that a restart of one member alarms nobody."""
    add_namesrv_or_brokers(command)
    command.add_argument(
        "--watch",
        nargs="?",
        type=watch_s,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"look again every so many seconds ({WATCH_S:g}) until Ctrl-C or q",
    )
    command.add_argument(
        "--expect",
        action="append",
        metavar="GROUP",
        help="exit code 1 also if nothing is seen of this group; may be given several times",
    )
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit code 1 also if a member is away, behind, stopping or in trouble, or a name server is away",
    )
    add_json(command)


def watch_s(text: str) -> float:
    """Read the time between two looks.

    Raises:
        argparse.ArgumentTypeError: it is no number, too short, or too long.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not WATCH_S_MIN <= seconds <= WATCH_S_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {WATCH_S_MIN:g} to {WATCH_S_MAX:g}"
        )
    return seconds


STATUS = Command(
    "status",
    "all groups: who leads and since when, who is away, behind or stopping, log, disk, clients",
    _add_options,
    run_status,
    "status -n 127.0.0.1:9876 --strict",
    fields="at_ms, remark, led, whole, name_servers: [address, problem],\n"
    "groups: [name, led, whole, leader, term, leads_ms, commit_index, members: [id, address, state, reason,\n"
    "  lag_entries, lag_bytes, term, commit_index, applied_index, log_bytes, free_bytes, clients, role_ms, up_ms,\n"
    "  version, stopping, troubles: [...]]]",
)
