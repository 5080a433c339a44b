"""The `dledger` command: run a member of a plain log group, append to it, read it, look at it.

Exit codes: 0 done; 1 surely not done; 2 the command line or the configuration is wrong; 3 unknown:
it may have happened, or may yet.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from dledger.config import LogConfig, RaftConfig, parse_peers, voters_of
from dledger.errors import ConfigError, DLedgerError, UsageError
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.ids import NodeId
from dledger.runtime.client import TIMEOUT_S, Client
from dledger.runtime.commands import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    append,
    exit_code_of,
    get,
    print_error,
    print_line,
    status,
    transfer,
)
from dledger.runtime.members_command import DESCRIPTION as MEMBERS_DESCRIPTION
from dledger.runtime.members_command import describe_members, members
from dledger.runtime.secret_file import SecretFile
from dledger.runtime.serve_command import serve
from dledger.storage.restored import mark_restored
from dledger.version import __version__

DEFAULT_PEERS = "n0-localhost:20911"

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Largest entry of a plain log group. A broker chooses for itself."""

DESCRIPTION = "A Raft-replicated commit log: run a member of a group, append entries, read them."

EPILOG = """\
exit codes:
  0  done
  1  surely not done
  2  the command line or the configuration is wrong
  3  unknown: it may have happened, or may yet

environment:
  DLEDGER_PEERS   the members, where --peers is not given
  DLEDGER_SECRET  the group's secret, where --secret-file is not given

a group of three on one machine:
  export DLEDGER_PEERS="n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"
  dledger server --id n0 --store data/n0 &        (the same for n1 and n2)
  dledger append --data hello
  dledger status
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    if not __debug__:
        print_error("assertions guard the log: Python must not run with -O")
        return EXIT_USAGE
    options = _parser().parse_args(arguments)
    try:
        return trio.run(_run, options)
    except BaseException as error:  # noqa: BLE001  # the root: everything becomes a line and a code
        return _exit_with(_innermost(error), options)


def _innermost(error: BaseException) -> BaseException:
    """Return the error that a nursery has wrapped in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_with(error: BaseException, options: argparse.Namespace) -> int:
    """Print one line for the user; return the exit code."""
    match error:
        case ConfigError() | UsageError():
            print_error(str(error))
            return EXIT_USAGE
        case DLedgerError():
            print_error(str(error))
            is_local = options.command in {"server", "restored"}
            return EXIT_REFUSED if is_local else exit_code_of(error)
        case KeyboardInterrupt():
            print_error("interrupted")
            changes = {"append", "transfer", "members"}
            return EXIT_UNKNOWN if options.command in changes else EXIT_REFUSED
        case BrokenPipeError():
            # Whoever read our output has seen enough; Python must not complain about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_REFUSED
        case _:
            logging.getLogger("dledger").debug("internal error", exc_info=error)
            print_error(f"internal error: {type(error).__name__}: {error} (-vv shows where)")
            return EXIT_REFUSED if options.command == "server" else EXIT_UNKNOWN


async def _run(options: argparse.Namespace) -> int:
    """Carry out the command; only `server` and `restored` work without a client, since they need no running group."""
    _log_to_stderr(options.verbose)
    if options.command == "server":
        file = _secret_file(options)
        return await serve(_log_config(options, file), secret_file=file)
    if options.command == "restored":
        mark_restored(
            options.store, group=options.group, node_id=NodeId(options.id), name=options.name
        )
        print_line(
            f"{options.store} is {options.id} of group {options.group}, restored as {options.name}"
        )
        return EXIT_DONE
    async with Client(
        options.peers,
        group=options.group,
        secret=_secret(_secret_file(options)),
        tls=_tls(options),
        timeout_s=options.timeout,
    ) as client:
        match options.command:
            case "append":
                return await append(
                    client,
                    _body(options),
                    count=options.count,
                    retry_unknown=options.retry_unknown,
                    as_json=options.json,
                )
            case "get":
                return await get(
                    client,
                    options.index,
                    count=options.count,
                    local=NodeId(options.local) if options.local else None,
                    as_json=options.json,
                )
            case "status":
                return await status(client, as_json=options.json)
            case "members":
                return await members(client, options)
            case _:
                target = NodeId(options.to) if options.to else None
                return await transfer(client, target, as_json=options.json)


def _log_to_stderr(verbosity: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def _log_config(options: argparse.Namespace, secret_file: SecretFile | None) -> LogConfig:
    """Build the member's configuration."""
    peers = parse_peers(options.peers)
    names = map(str.strip, options.preferred_leader_id.split(";"))
    preferred = tuple(NodeId(name) for name in names if name)
    raft = RaftConfig(
        NodeId(options.id),
        voters_of(peers, NodeId(options.id), joins=options.join),
        entry_body_bytes_max=BODY_BYTES_MAX,
        preferred_leaders=preferred,
        joins=options.join,
    )
    return LogConfig(
        group=options.group,
        peers=peers,
        store_path=options.store,
        raft=raft,
        secret=_secret(secret_file),
        tls=_tls(options),
        fsync=not options.no_fsync,
    )


def _secret_file(options: argparse.Namespace) -> SecretFile | None:
    """Return the file of the secret, if one is named; raises ConfigError if it cannot be used."""
    path = options.secret_file
    return None if path is None else SecretFile(path, "--secret-file")


def _secret(file: SecretFile | None) -> GroupSecret | str | None:
    """Return the secret of the file, else of the environment, else none."""
    return os.environ.get("DLEDGER_SECRET") or None if file is None else file.secret


def _tls(options: argparse.Namespace) -> MemberTls | None:
    """Return what encrypts connections; None: they are plain text.

    Raises:
        ConfigError: only one of certificate and trust is named, or a file cannot be used.
    """
    if not (options.tls_cert or options.tls_trust or options.tls_key):
        return None
    if not (options.tls_cert and options.tls_trust):
        raise ConfigError(
            "--tls-cert and --tls-trust belong together: both sides show a certificate"
        )
    return MemberTls.from_files(
        certificate=options.tls_cert, key=options.tls_key or "", trust=options.tls_trust
    )


def _body(options: argparse.Namespace) -> bytes:
    if options.file is None:
        return str(options.data).encode("utf-8", "surrogateescape")
    try:
        return sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        raise UsageError(f"--file {options.file}: {error.strerror}") from error


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 24 * 3600:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds above 0 and at most a day"
        )
    return value


def _parser() -> argparse.ArgumentParser:
    """Build the parser; options that several commands share come from parent parsers, so they read alike everywhere."""
    parser = argparse.ArgumentParser(
        prog="dledger",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = _common_options()
    of_clients = [common, _client_options()]
    _describe_server(
        commands.add_parser(
            "server",
            parents=[common],
            help="run a member",
            description="Run a member of a log group until SIGTERM or SIGINT; a leader hands over first.",
        )
    )
    _describe_append(
        commands.add_parser(
            "append",
            parents=of_clients,
            help="append an entry",
            description="Append an entry, or the same several times; returns when it is committed.",
        )
    )
    _describe_get(
        commands.add_parser(
            "get",
            parents=of_clients,
            help="print entries",
            description="Print committed entries, as the leader has them at this moment.",
        )
    )
    _add_administration(commands, common, of_clients)
    return parser


def _add_administration(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    common: argparse.ArgumentParser,
    of_clients: list[argparse.ArgumentParser],
) -> None:
    """Add the commands that look at a group or change it, and append or read nothing."""
    commands.add_parser(
        "status",
        parents=of_clients,
        help="show all members: role, term, indexes, connections, who belongs to the log",
        description="Ask every member how it sees itself, those too that only the log names, and show who belongs to "
        "the log: voters, learners, and which of them the leader hears. Works while some are down.",
    )
    handing = commands.add_parser(
        "transfer",
        parents=of_clients,
        help="hand leadership over",
        description="Hand leadership to a member, or to the one with most of the log.",
    )
    handing.add_argument("--to", metavar="ID", help="the new leader, for example n1")
    describe_members(
        commands.add_parser(
            "members",
            help="show who the members are, and change them",
            description=MEMBERS_DESCRIPTION,
        ),
        of_clients,
    )
    _describe_restored(
        commands.add_parser(
            "restored",
            parents=[common],
            help="mark a store whose whole group was restored from backups",
            description="Mark a store, before its member is started, as one of a whole group that was "
            "restored from backups of one moment, or from one copy. Do it to the store of every member, "
            "with the same name; whatever came after the backup is lost (docs/restoring.md).",
        )
    )


def _common_options() -> argparse.ArgumentParser:
    """Return the options that every command has, as a parent parser (without a help option of its own)."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-g", "--group", default="default", help="name of the group (%(default)s)")
    common.add_argument(
        "-p",
        "--peers",
        default=os.environ.get("DLEDGER_PEERS") or DEFAULT_PEERS,
        metavar="ID-HOST:PORT;...",
        help="all members, for example n0-127.0.0.1:20911;n1-127.0.0.1:20912 (%(default)s)",
    )
    common.add_argument(
        "--secret-file", metavar="FILE", help="file with the group's secret (first line)"
    )
    common.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="encrypt: the certificate to show, PEM (with --tls-trust)",
    )
    common.add_argument("--tls-key", metavar="FILE", help="its key (default: in --tls-cert)")
    common.add_argument(
        "--tls-trust", metavar="FILE", help="who signs the certificates of the group, PEM"
    )
    common.add_argument(
        "-v", "--verbose", action="count", default=0, help="log events; twice: everything"
    )
    return common


def _client_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="how long to try (%(default)g)",
    )
    options.add_argument("--json", action="store_true", help="print JSON")
    return options


def _describe_server(server: argparse.ArgumentParser) -> None:
    """Add the options of `server`; the long form `--store-base-dir` is DLedger's own name for the store."""
    server.add_argument("-i", "--id", default="n0", help="which of the peers this is (%(default)s)")
    server.add_argument(
        "-s",
        "--store",
        "--store-base-dir",
        required=True,
        metavar="FOLDER",
        help="where this member keeps its log; made when missing",
    )
    server.add_argument(
        "--join",
        action="store_true",
        help="the group exists, and --peers names members to find it by, and this node: wait to be added "
        "(dledger members add), and begin none; also for a member whose store was lost after the members had changed",
    )
    server.add_argument(
        "--preferred-leader-id",
        default="",
        metavar="ID;...",
        help="members that should lead when they can",
    )
    server.add_argument(
        "--no-fsync",
        action="store_true",
        help="confirm entries before they are on the disk: a power cut may lose confirmed ones",
    )


def _describe_restored(restored: argparse.ArgumentParser) -> None:
    restored.add_argument(
        "name",
        metavar="NAME",
        help="name of this restoring, new and the same on all members, for example a date",
    )
    restored.add_argument("-i", "--id", required=True, help="whose store it is from now on")
    restored.add_argument(
        "-s", "--store", required=True, metavar="FOLDER", help="the store; its member must not run"
    )


def _describe_append(appending: argparse.ArgumentParser) -> None:
    """Add the options of `append`; `--retry-unknown` is off because a repeated entry may stand twice."""
    what = appending.add_mutually_exclusive_group()
    what.add_argument("-d", "--data", default="Hello", metavar="TEXT", help="body (%(default)s)")
    what.add_argument(
        "-f", "--file", metavar="FILE", help="file with the body; - for standard input"
    )
    appending.add_argument(
        "-c",
        "--count",
        type=_positive,
        default=1,
        metavar="N",
        help="how many entries, each with this body (%(default)s)",
    )
    appending.add_argument(
        "--retry-unknown",
        action="store_true",
        help="send again when the outcome is unknown; the entry may then stand twice",
    )


def _describe_get(getting: argparse.ArgumentParser) -> None:
    """Add the options of `get`; without `--local` the leader answers, so that the read is linearizable."""
    getting.add_argument(
        "-i",
        "--index",
        type=_positive,
        default=1,
        metavar="I",
        help="index of the first entry (%(default)s)",
    )
    getting.add_argument(
        "-c", "--count", type=_positive, default=1, metavar="N", help="how many (%(default)s)"
    )
    getting.add_argument(
        "--local", metavar="ID", help="ask this member what it has, even if it does not lead"
    )
