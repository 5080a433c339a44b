"""`dledger-admin`: questions to a broker group, and repairs.

    dledger-admin status     -n NAMESRV [--watch]         who leads, who is away, who is behind, in all groups
    dledger-admin verify     -n NAMESRV [--group NAME]    do all replicas have the same state?
    dledger-admin snapshots  -n NAMESRV [--group NAME]    what each node has written down of it
    dledger-admin retention  -n NAMESRV [--group NAME]    where the log begins, and what keeps it
    dledger-admin lag        -n NAMESRV [--group NAME]    how far are consumer groups behind? (consumerProgress)
    dledger-admin members    -n NAMESRV VERB ...          who belongs to it; changes
    dledger-admin resend-dlq -n NAMESRV GROUP ...         give dead letters another chance
    dledger-admin upgrade-check -n NAMESRV [--node NAME]  may members of a new version vote?
    dledger-admin import     SOURCE --store TARGET        take over a store of Apache RocketMQ

Exit codes: 0 nothing is wrong; 1 a group has no leader, the replicas differ, some dead letters could not be sent
again, the members surely were not changed, or a store cannot be imported as it is; 2 wrong usage; 3 not all of the
group could be asked, or it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

import trio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker.admin.ask import NobodyAnsweredError, NodeAnswer, addresses_of_group, ask_all
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE
from broker.admin.import_store import add_import, run_import
from broker.admin.members import add_members, run_members
from broker.admin.resend_dlq import TO_ORIGIN, TO_RETRY, Choice, ResendOutcome, resend
from broker.admin.retention import run_retention
from broker.admin.status import WATCH_S, WATCH_S_MAX, WATCH_S_MIN, run_status
from broker.admin.tls_options import add_tls_options, tls_of
from broker.admin.upgrade_check import add_upgrade_options, show_upgrade_check
from broker.admin.verify import Comparison, compare
from dledger import ConfigError, DLedgerError, UsageError
from dledger.version import __version__
from dledger_mq.client.errors import ClientError, ClientUsageError
from dledger_mq.client.lag import by_topic, consumer_lags
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.tls import tls_for_all
from dledger_mq.message.names import group_problem

LAG_NAMES: Final = ("lag", "consumerProgress")
"""Ours, and mqadmin's."""

_EPILOG: Final = """\
exit codes:
  0  done, and nothing is wrong
  1  a group has no leader (status; with --strict: anything to look into), the replicas differ, some dead
     letters could not be sent again, the members surely were not changed, or a store cannot be imported as it is
  2  the command line is wrong; import: there is no such store, or the target is not empty
  3  not all of the group could be asked: what the others say is printed; status: nobody could be asked;
     import: reading or writing failed; or it was interrupted
"""

_SNAPSHOT_COLUMNS: Final = (
    ("node", "raftNode"),
    ("role", "raftRole"),
    ("applied", "raftAppliedIndex"),
    ("first entry", "raftFirstIndex"),
    ("snapshot at", "snapshotIndex"),
    ("bytes", "snapshotBytes"),
    ("taken", "snapshotsTaken"),
    ("longest pause ms", "snapshotPauseMs"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        tls = tls_of(options)
    except ConfigError as error:
        return _print_error(error, EXIT_USAGE)
    try:
        with tls_for_all(tls):
            code = _COMMANDS[options.command](options)
    except* KeyboardInterrupt:  # nurseries have wrapped it
        code = _print_error("interrupted", EXIT_UNKNOWN)
    return code


def _print_error(error: Exception | str, exit_code: int) -> int:
    sys.stderr.write(f"dledger-admin: {error}\n")
    return exit_code


async def _ask(options: argparse.Namespace) -> list[NodeAnswer]:
    if options.brokers is not None:
        return await ask_all(options.brokers)
    return await ask_all(await addresses_of_group(options.namesrv, options.group))


def _ask_and_show(
    show: Callable[[list[NodeAnswer], bool], int], options: argparse.Namespace
) -> int:
    """Ask the nodes, and show what they answer in the way of one command."""
    try:
        answers = trio.run(_ask, options)
    except ClientUsageError as error:
        return _print_error(error, EXIT_USAGE)
    except NobodyAnsweredError as error:
        return _print_error(error, EXIT_UNKNOWN)
    return show(answers, options.json)


def _run(work: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Carry out a command that asks by itself, and say why it could not."""
    try:
        return work(options)
    except ClientUsageError as error:
        return _print_error(error, EXIT_USAGE)
    except NobodyAnsweredError as error:
        return _print_error(error, EXIT_UNKNOWN)


def _members(options: argparse.Namespace) -> int:
    """Ask the brokers where the members are, and carry out one verb there."""
    try:
        answers = trio.run(_ask, options)
        return run_members(options, answers)
    except (ClientUsageError, ConfigError, UsageError) as error:
        return _print_error(error, EXIT_USAGE)
    except NobodyAnsweredError as error:  # before anything was ordered
        if options.verb == "list":
            return _print_error(error, EXIT_UNKNOWN)
        return _print_error(f"{error}; nothing was changed", EXIT_DIFFERENT)
    except DLedgerError as error:
        return _print_error(error, EXIT_DIFFERENT if error.definite else EXIT_UNKNOWN)


def _verify(answers: list[NodeAnswer], as_json: bool) -> int:
    verdict = compare(answers)
    if as_json:
        _print_json(asdict(verdict) | {"equal": verdict.is_equal, "whole": verdict.is_whole})
    else:
        _print_verdict(verdict)
    if not verdict.is_equal:
        return EXIT_DIFFERENT
    return EXIT_OK if verdict.is_whole else EXIT_UNKNOWN


def _print_verdict(verdict: Comparison) -> None:
    """Print the comparison of the replicas: digests, alarms, problems, and the way to mend a replica that differs."""
    console = Console()
    if verdict.index:
        table = Table(title=f"digests at applied index {verdict.index}")
        for heading in ("component", *verdict.nodes, ""):
            table.add_column(heading)
        for component, values in verdict.digests.items():
            is_different = component in verdict.differing
            mark = "[bold red]DIFFERS[/]" if is_different else "[green]equal[/]"
            table.add_row(component, *values, mark)
        console.print(table)
    for node, alarm in verdict.alarms.items():
        console.print(f"[bold red]{node} has found itself different at: {alarm}[/]")
    for problem in verdict.problems:
        console.print(f"[yellow]{problem}[/]")
    if verdict.odd:
        console.print(
            f"[bold red]not like the majority: {', '.join(verdict.odd)}[/] "
            "(stop it, remove its folder `snapshots`, start it: it folds the log anew)"
        )


def _snapshots(answers: list[NodeAnswer], as_json: bool) -> int:
    """Print a row per node; return EXIT_UNKNOWN if any node is missing, so that a script sees a gap in the table."""
    rows = [
        {heading: each.table.get(key, "") for heading, key in _SNAPSHOT_COLUMNS}
        for each in answers
        if each.table
    ]
    problems = [f"{each.address}: {each.problem}" for each in answers if not each.table]
    if as_json:
        _print_json({"nodes": rows, "problems": problems})
    else:
        console = Console()
        table = Table(title="snapshots")
        for heading, _ in _SNAPSHOT_COLUMNS:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
        for problem in problems:
            console.print(f"[yellow]{problem}[/]")
    return EXIT_UNKNOWN if problems else EXIT_OK


def _upgrade_check(options: argparse.Namespace) -> int:
    def show(answers: list[NodeAnswer], as_json: bool) -> int:
        return show_upgrade_check(answers, options.node, options.entries, as_json=as_json)

    return _ask_and_show(show, options)


def _lag(options: argparse.Namespace) -> int:
    """Print a row per topic, or with --json one per queue, since scripts can add up and people should not have to."""
    ask = partial(
        consumer_lags, ";".join(options.namesrv), group=options.consumer_group, topic=options.topic
    )
    try:
        lags = trio.run(ask)
    except ClientUsageError as error:
        return _print_error(error, EXIT_USAGE)
    except ClientError as error:
        return _print_error(error, EXIT_UNKNOWN)
    if options.json:
        queues = [asdict(one) | {"lag": one.lag, "missed": one.missed} for one in lags]
        _print_json({"queues": queues})
        return EXIT_OK
    table = Table(title="lag of consumer groups")
    for heading in ("group", "topic", "queues", "lag", "missed", "furthest behind"):
        table.add_column(heading)
    for one in by_topic(lags):
        worst = f"{one.worst.broker_name}/{one.worst.queue_id}: {one.worst.lag}"
        row = (one.group, one.topic, str(one.queues), str(one.lag), str(one.missed), worst)
        table.add_row(*map(escape, row))
    Console().print(table)
    return EXIT_OK


def _resend_dlq(options: argparse.Namespace) -> int:
    """Send the dead letters again; return EXIT_DIFFERENT if some failed, since those that were sent stay sent."""
    choice = Choice(options.topic, frozenset(options.msg_id or ()), options.all)

    async def run() -> ResendOutcome:
        return await resend(
            ";".join(options.namesrv),
            options.consumer_group,
            choice,
            to=options.to,
            limit=options.limit,
            is_dry=options.dry_run,
        )

    try:
        outcome = trio.run(run)
    except ClientUsageError as error:
        return _print_error(error, EXIT_USAGE)
    except ClientError as error:
        return _print_error(error, EXIT_UNKNOWN)
    if options.json:
        _print_json(asdict(outcome) | {"dryRun": options.dry_run})
    else:
        _print_outcome(outcome, is_dry=options.dry_run)
    return EXIT_DIFFERENT if outcome.failed else EXIT_OK


def _print_outcome(outcome: ResendOutcome, *, is_dry: bool) -> None:
    console = Console()
    table = Table(title=f"{outcome.examined} dead letters examined")
    for heading in ("message", "would be sent again" if is_dry else "sent again", "because"):
        table.add_column(heading)
    for key in outcome.resent:
        table.add_row(key, "[green]yes[/]", "")
    for key, reason in outcome.failed.items():
        table.add_row(key, "[bold red]no[/]", escape(reason))
    console.print(table)


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _addresses(text: str) -> tuple[str, ...]:
    """Read a list of addresses.

    Raises:
        argparse.ArgumentTypeError: it is empty, or one is not host:port.
    """
    if not text.strip(";, "):
        raise argparse.ArgumentTypeError("no address is given: host:port;host:port")
    try:
        return parse_name_servers(text)
    except ClientUsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _consumer_group(text: str) -> str:
    """Read the name of a consumer group.

    Raises:
        argparse.ArgumentTypeError: no group can have it.
    """
    problem = group_problem(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: {problem}")
    return text


def _add_namesrv(command: argparse._ActionsContainer, *, required: bool = False) -> None:
    command.add_argument(
        "-n",
        "--namesrv",
        type=_addresses,
        required=required,
        metavar="LIST",
        help="name servers, host:port;host:port",
    )


def _parser() -> argparse.ArgumentParser:
    """Build the parser; what asks each node for itself shares its options."""
    parser = argparse.ArgumentParser(
        prog="dledger-admin",
        description="Questions to a broker group, and repairs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_tls_options(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_status(commands)
    for name, text in (
        ("verify", "compare the digests of all replicas at the same applied index"),
        ("snapshots", "each node's snapshot: index, size, pause"),
        ("retention", "where each node's log begins, what keeps what is due, and the pins"),
        ("upgrade-check", "may members of a new version vote? digests and versions of all members"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        _add_namesrv_or_brokers(command)
        command.add_argument(
            "-g", "--group", help="broker name; needed when the name servers know several"
        )
        command.add_argument("--json", action="store_true", help="one JSON object for scripts")
        if name == "retention":
            command.add_argument(
                "--drop-pin",
                metavar="NAME",
                help="remove this pin first: retention goes on without it",
            )
        if name == "upgrade-check":
            add_upgrade_options(command)
    add_members(commands, _add_namesrv_or_brokers)
    _add_lag(commands)
    _add_resend_dlq(commands)
    add_import(commands)
    return parser


def _add_namesrv_or_brokers(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    _add_namesrv(where)
    where.add_argument(
        "-b",
        "--brokers",
        type=_addresses,
        metavar="LIST",
        help="the nodes themselves, host:port;host:port",
    )


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `status`; its exit code is about leaders by default, so that a restart of one member alarms nobody."""
    text = (
        "all groups: who leads and since when, who is away, behind or stopping, log, disk, clients"
    )
    command = commands.add_parser("status", help=text, description=text)
    _add_namesrv_or_brokers(command)
    command.add_argument(
        "--watch",
        nargs="?",
        type=_watch_s,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"look again every so many seconds ({WATCH_S:g}) until Ctrl-C",
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
    command.add_argument(
        "--json", action="store_true", help="one JSON object for scripts; with --watch one a line"
    )


def _watch_s(text: str) -> float:
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


def _add_lag(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "how far consumer groups, and streaming queries with a commitGroup, are behind"
    command = commands.add_parser(LAG_NAMES[0], aliases=LAG_NAMES[1:], help=text, description=text)
    _add_namesrv(command, required=True)
    command.add_argument(
        "-g", "--group", dest="consumer_group", metavar="GROUP", help="this consumer group only"
    )
    command.add_argument("-t", "--topic", help="this topic only")
    command.add_argument("--json", action="store_true", help="one JSON object for scripts")


def _add_resend_dlq(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `resend-dlq`; what an earlier run sent again is left out by default, so that a repeated call is harmless."""
    text = "send the dead letters of a consumer group again"
    command = commands.add_parser("resend-dlq", help=text, description=text)
    command.add_argument(
        "consumer_group", metavar="GROUP", type=_consumer_group, help="the consumer group"
    )
    _add_namesrv(command, required=True)
    command.add_argument("--topic", help="only those that were sent to this topic at first")
    command.add_argument(
        "--msg-id", action="append", metavar="ID", help="only this one; may be given several times"
    )
    command.add_argument(
        "--all", action="store_true", help="also those that were sent again by an earlier run"
    )
    command.add_argument(
        "--to",
        choices=(TO_RETRY, TO_ORIGIN),
        default=TO_RETRY,
        help="the group's retry topic (default), or the topic that each came from, for all its groups",
    )
    command.add_argument(
        "--limit", type=int, metavar="N", help="send at most N of them again, N from 1 on"
    )
    command.add_argument("--dry-run", action="store_true", help="list them without sending")
    command.add_argument("--json", action="store_true", help="one JSON object for scripts")


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "status": partial(_run, run_status),
    "retention": partial(_run, run_retention),
    "verify": partial(_ask_and_show, _verify),
    "snapshots": partial(_ask_and_show, _snapshots),
    "members": _members,
    "resend-dlq": _resend_dlq,
    "upgrade-check": _upgrade_check,
    "import": run_import,
    **dict.fromkeys(LAG_NAMES, _lag),
}
"""Every subcommand and what carries it out: an unknown one cannot be taken for another."""


if __name__ == "__main__":
    sys.exit(main())
