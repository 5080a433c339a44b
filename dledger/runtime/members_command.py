"""`dledger members`: who belongs to a group, and changes of that."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from dledger.codec.client_rpc import MembersAnswer
from dledger.config import Peer, parse_peers
from dledger.errors import ConfigError, DLedgerError, UsageError
from dledger.raft.ids import NodeId
from dledger.runtime.client import Client
from dledger.runtime.commands import (
    EXIT_DONE,
    EXIT_UNKNOWN,
    TABLE_WIDTH,
    exit_code_of,
    print_error,
    print_line,
)
from dledger.runtime.member_orders import WAIT_S, OperatorOrders

DESCRIPTION = """\
Show or change the members of a running group. All changes go through the leader, one at a time, and each command may be
given again: what was done already is not done twice (docs/members.md).
"""


def describe_members(
    members: argparse.ArgumentParser, of_clients: list[argparse.ArgumentParser]
) -> None:
    """Add the verbs of `members` to its parser, each with the options of `of_clients`."""
    verbs = members.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("list", parents=of_clients, help="show who they are, and how far each is")
    adding = verbs.add_parser("add", parents=of_clients, help="add a node that runs with --join")
    adding.add_argument(
        "new", metavar="ID-HOST:PORT", help="the node, for example n3-10.0.0.4:20911"
    )
    adding.add_argument(
        "--learner", action="store_true", help="it stays a learner: it follows, and is not counted"
    )
    removing = verbs.add_parser(
        "remove", parents=of_clients, help="remove a member, also a dead one"
    )
    removing.add_argument("id", metavar="ID")
    replacing = verbs.add_parser(
        "replace", parents=of_clients, help="add a node, then remove the one whose place it takes"
    )
    replacing.add_argument("id", metavar="OLD", help="the member that leaves, running or not")
    replacing.add_argument("new", metavar="NEW-HOST:PORT", help="the node that takes its place")
    promoting = verbs.add_parser("promote", parents=of_clients, help="make a voter of a learner")
    promoting.add_argument("id", metavar="ID")
    for waiting in (adding, replacing):
        waiting.add_argument(
            "--wait",
            type=float,
            default=WAIT_S,
            metavar="SECONDS",
            help="how long to wait until the new one votes (%(default)g); 0: not at all",
        )


def new_member(text: str) -> Peer:
    """Read the one member that is to be added.

    Raises:
        ConfigError, UsageError: it is something else.
    """
    peers = parse_peers(text)
    if len(peers) != 1:
        raise UsageError(f"{text!r} names {len(peers)} members; they are changed one by one")
    return peers[0]


async def members(
    client: Client, options: argparse.Namespace, *, report: Callable[[str], None] = print_error
) -> int:
    """Carry out one verb, and print who the members are then; return the exit code.

    Args:
        client: of the group.
        options: of the command line.
        report: prints what went wrong, and each step while the order is under way.

    Raises:
        UsageError, ConfigError: it makes no sense.
        DLedgerError: of `list` only: nobody could say who they are.
    """
    as_json = bool(options.json)
    orders = OperatorOrders(
        client,
        wait_s=getattr(options, "wait", 0.0),
        report=report if not as_json else lambda _: None,
    )
    try:
        seen = await _carry_out(client, orders, options)
    except DLedgerError as error:
        if isinstance(error, UsageError | ConfigError) or options.verb == "list":
            raise
        code = exit_code_of(error)
        unknown = "; `members list` shows what holds" if code == EXIT_UNKNOWN else ""
        report(f"{error}{unknown}")
        return code
    print_members(client.group, seen, as_json=as_json)
    return EXIT_DONE


async def _carry_out(
    client: Client, orders: OperatorOrders, options: argparse.Namespace
) -> MembersAnswer:
    """Give the one order of the command line."""
    match options.verb:
        case "add":
            return await orders.add(new_member(options.new), is_learner=options.learner)
        case "remove":
            return await orders.remove(NodeId(options.id))
        case "replace":
            return await orders.replace(NodeId(options.id), new_member(options.new))
        case "promote":
            return await orders.promote(NodeId(options.id))
        case _:
            return await client.members()


def print_members(group: str, seen: MembersAnswer, *, as_json: bool) -> None:
    """Print who the members are, as a table or as JSON."""
    if as_json:
        print_line(json.dumps({"group": group, **members_fields(seen)}))
        return
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    console.print(members_table(group, seen))


def members_fields(seen: MembersAnswer) -> dict[str, object]:
    """Return the members as JSON; the names are an interface for scripts."""
    return {
        "leader_id": seen.leader_id,
        "term": seen.term,
        "index": seen.index,
        "is_committed": seen.is_committed,
        "last_index": seen.last_index,
        "members": [
            {
                "id": name,
                "kind": _kind(name, seen),
                "address": seen.addresses.get(name, ""),
                "leads": name == seen.leader_id,
                "is_connected": name not in seen.silent,
                "lacking": _lacking(name, seen),
            }
            for name in (*seen.voters, *seen.learners)
        ],
    }


def members_table(group: str, seen: MembersAnswer) -> Table:
    """Build the table for people."""
    table = Table(title=f"members of {group}", title_justify="left")
    for name in ("member", "address", "kind", "leads"):
        table.add_column(name)
    table.add_column("lacks", justify="right")
    table.add_column("connected")
    for name in (*seen.voters, *seen.learners):
        is_silent = name in seen.silent
        table.add_row(
            name,
            seen.addresses.get(name, ""),
            _kind(name, seen),
            "yes" if name == seen.leader_id else "",
            str(_lacking(name, seen)),
            "no" if is_silent else "yes",
            style="red" if is_silent else None,
        )
    by = f"since entry {seen.index}" if seen.index else "as the group began"
    table.caption = by + ("" if seen.is_committed else ", which is not committed yet")
    return table


def _kind(name: str, seen: MembersAnswer) -> str:
    if name in seen.voters:
        return "voter"
    return "joining" if name in seen.joining else "learner"


def _lacking(name: str, seen: MembersAnswer) -> int:
    """Return how many entries of the leader's log a member lacks."""
    match_index = seen.last_index if name == seen.leader_id else seen.match_indexes.get(name, 0)
    return max(0, seen.last_index - match_index)
