"""`dledger-admin members`: who belongs to a broker group's log, and changes of that (docs/members.md).

The brokers say where members speak to each other; there the leader is asked, as `dledger members` asks it. So a group
with a secret wants it here, too. What a verb does is the log's to say.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import trio

from broker.admin.ask import NobodyAnsweredError, NodeAnswer
from broker.admin.command import Command
from broker.admin.facts import read_object_in
from broker.admin.failures import UnchangedError
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.printing import print_error
from broker.admin.tls_options import peer_tls_of
from broker.command_line import read_secret
from dledger import Client, ConfigError, Peer, parse_peers
from dledger.runtime.members_command import DESCRIPTION, describe_members, members

TIMEOUT_S = 10.0


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the verbs of `members`, and to each where brokers are."""
    options = argparse.ArgumentParser(add_help=False)
    add_nodes_of_group(options)
    options.add_argument(
        "--secret-file", metavar="FILE", help="its first line is the group's secret, if it has one"
    )
    options.add_argument(
        "--peer-tls",
        action="store_true",
        help="members speak TLS with each other (tls.peer.mode): --tls-cert and --tls-trust are for them, too",
    )
    options.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="how long to try (%(default)g)",
    )
    describe_members(command, [options])


def _run(options: argparse.Namespace) -> int:
    """Ask the brokers where the members are, and carry out one verb there.

    Raises:
        NobodyAnsweredError: of `list` only.
        UnchangedError: nobody could be asked, so nothing was ordered.
        DLedgerError: as `members`.
    """
    try:
        return _carry_out(options, ask_nodes(options))
    except NobodyAnsweredError as error:
        if options.verb == "list":
            raise
        raise UnchangedError(f"{error}; nothing was changed") from error


def _carry_out(options: argparse.Namespace, answers: Sequence[NodeAnswer]) -> int:
    """Carry out one verb; return the exit code.

    Args:
        options: of the command line.
        answers: runtime information of the group's brokers, of some at least.

    Raises:
        NobodyAnsweredError: none of them says where the members are.
        DLedgerError: as `members`.
    """
    group, peers = members_in(answers)
    secret = read_secret(options.secret_file, "--secret-file") if options.secret_file else None
    tls = peer_tls_of(options)

    async def run() -> int:
        async with Client(
            peers, group=group, secret=secret, tls=tls, timeout_s=options.timeout
        ) as client:
            return await members(client, options, report=print_error)

    return trio.run(run)


def members_in(answers: Sequence[NodeAnswer]) -> tuple[str, tuple[Peer, ...]]:
    """Return the name of the log's group, and where its members listen for each other, leaders first.

    Raises:
        NobodyAnsweredError: no broker says that.
    """
    found: dict[str, Peer] = {}
    group = ""
    for answer in sorted(answers, key=lambda each: each.table.get("raftServing") != "true"):
        stated = read_object_in(answer.table, "raftMemberAddresses")
        listed = [f"{name}-{at.get('log')}" for name, at in stated.items() if isinstance(at, dict)]
        try:
            peers = parse_peers(";".join(listed))
        except ConfigError:
            continue
        group = group or answer.table.get("raftLogGroup", "")
        for peer in peers:
            found.setdefault(peer.node_id, peer)
    if not found or not group:
        problems = "; ".join(f"{each.address}: {each.problem}" for each in answers if each.problem)
        raise NobodyAnsweredError(
            f"no broker says where the group's members are{': ' + problems if problems else ''}"
        )
    return group, tuple(found.values())


MEMBERS = Command(
    "members",
    "who the members of a group are, and changes of that",
    _add_options,
    _run,
    "members list -n 127.0.0.1:9876",
    details=DESCRIPTION,
)
