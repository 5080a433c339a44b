"""The commands that take systems through rows: which rows each makes of its options, its help and its examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.compare.command import add_options
from bench.compare.rows import BATCH_COUNT, QUEUES, ROWS, BenchRow, RowKind
from bench.compare.runners import DEFAULT
from bench.options import chosen, positive, several, whole

OURS: Final = ("ours",)
OURS_HEAT_S: Final = 3.0
TABLE_HEAT_S: Final = 20.0
MODES: Final = {
    "sync": RowKind.SEND,
    "async": RowKind.SEND,
    "batch": RowKind.BATCH,
    "oneway": RowKind.ONEWAY,
}
PULLS: Final = {
    "hot": RowKind.PULL,
    "cold": RowKind.COLD_PULL,
    "tags": RowKind.TAG_PULL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand:
    """A command.

    Attributes:
        name: of the command.
        help: in a line.
        examples: in the help of the command.
        add_own: its own options.
        rows: that it makes of its options.
        systems: by default.
        heat_s: by default, for each system before its first row.
    """

    name: str
    help: str
    examples: str
    add_own: Callable[[argparse.ArgumentParser], None]
    rows: Callable[[argparse.Namespace], list[BenchRow]]
    systems: Sequence[str] = OURS
    heat_s: float = OURS_HEAT_S


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add all commands to the parser."""
    for command in COMMANDS:
        parser = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_own(parser)
        add_options(parser, command.systems, heat_s=command.heat_s)
        parser.set_defaults(rows_of=command.rows)


def _add_counts(parser: argparse.ArgumentParser, name: str, default: str, what: str) -> None:
    """Add an option with numbers, each of which gives a row."""
    parser.add_argument(
        name,
        type=several,
        default=several(default),
        metavar="N,N",
        help=f"{what}, a row for each (default {default})",
    )


def _compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=lambda text: chosen(text, {row.name: row for row in ROWS}, "row"),
        default=list(ROWS),
        metavar="NAMES",
        help=f"with commas between them (default all: {', '.join(row.name for row in ROWS)})",
    )


def _compare_rows(options: argparse.Namespace) -> list[BenchRow]:
    return [replace(row, body_bytes=options.size) for row in options.rows]


def _produce_options(parser: argparse.ArgumentParser) -> None:
    """Add how it is sent, and the numbers of which each gives a row."""
    parser.add_argument(
        "--mode",
        choices=tuple(MODES),
        default="async",
        help="sync: each connection waits for its answer; async: several are in flight; batch; oneway: nothing is "
        "answered, and what was stored is counted (default %(default)s)",
    )
    _add_counts(parser, "--clients", "1", "connections")
    _add_counts(parser, "--in-flight", "16,64,256,1024", "requests in flight of each connection")
    _add_counts(parser, "--queues", str(QUEUES), "queues of the topic")
    parser.add_argument(
        "--batch", type=whole, default=BATCH_COUNT, help="messages of a batch (default %(default)s)"
    )


def _produce_rows(options: argparse.Namespace) -> list[BenchRow]:
    """Return a row for each number of queues, of clients, and in flight."""
    is_one_by_one = options.mode in ("sync", "oneway")
    return [
        BenchRow(
            f"{options.mode}-{clients}x{in_flight}-{queues}q",
            f"{options.mode}, {clients} x {in_flight} in flight, {queues} queues",
            MODES[options.mode],
            connections=clients,
            in_flight=in_flight,
            queues=queues,
            body_bytes=options.size,
            batch=options.batch,
        )
        for queues in options.queues
        for clients in options.clients
        for in_flight in ([1] if is_one_by_one else options.in_flight)
    ]


def _consume_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=tuple(PULLS),
        default="hot",
        help="hot: the newest messages; cold: the oldest of a backlog; tags: one tag of four (default %(default)s)",
    )
    _add_counts(parser, "--readers", "1,8", "connections, each with one pull of 32")
    parser.add_argument(
        "--backlog-mib", type=whole, default=512, help="before a cold row (default %(default)s)"
    )


def _consume_rows(options: argparse.Namespace) -> list[BenchRow]:
    return [
        BenchRow(
            f"{options.mode}-{readers}",
            f"{PULLS[options.mode].value}, {readers} readers",
            PULLS[options.mode],
            connections=readers,
            body_bytes=options.size,
            backlog_mib=options.backlog_mib,
        )
        for readers in options.readers
    ]


def _rate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--per-second", type=positive, default=100.0, help="sends (default %(default)s)"
    )


def _steady_rows(kind: RowKind) -> Callable[[argparse.Namespace], list[BenchRow]]:
    def rows(options: argparse.Namespace) -> list[BenchRow]:
        label = f"{kind.value}, {options.per_second:g}/s"
        size, per_s = options.size, options.per_second
        return [BenchRow(kind.name.lower(), label, kind, body_bytes=size, per_s=per_s)]

    return rows


def _transaction_options(parser: argparse.ArgumentParser) -> None:
    _add_counts(parser, "--clients", "1,4", "producers, each with one transaction")


def _transaction_rows(options: argparse.Namespace) -> list[BenchRow]:
    kind = RowKind.TRANSACTION
    return [
        BenchRow(
            f"transactions-{clients}",
            f"transactions, {clients} producers",
            kind,
            connections=clients,
            body_bytes=options.size,
        )
        for clients in options.clients
    ]


def _backlog_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backlog-mib", type=whole, default=16, help="of the log before (default %(default)s)"
    )


def _fault_rows(kind: RowKind) -> Callable[[argparse.Namespace], list[BenchRow]]:
    def rows(options: argparse.Namespace) -> list[BenchRow]:
        label = f"{kind.value}, to the next ack"
        mib, size = options.backlog_mib, options.size
        return [BenchRow(kind.name.lower(), label, kind, body_bytes=size, backlog_mib=mib)]

    return rows


COMMANDS: Final = (
    BenchCommand(
        name="compare",
        help="the table: ours beside Apache RocketMQ and others, in one run",
        examples="""\
  dledger-bench compare                                   the whole table: ten minutes on a quiet machine
  dledger-bench compare --markdown > table.md             to be pasted into a page
  dledger-bench compare --rows sync-1,sync-64 --rounds 5  two rows, more often
  dledger-bench compare --systems ours,pysyncobj --rows sync-1,async-64,async-1024
  dledger-bench compare --systems ours --seconds 1 --rounds 1 --warm-up 0.5 --heat 1""",
        add_own=_compare_options,
        rows=_compare_rows,
        systems=DEFAULT,
        heat_s=TABLE_HEAT_S,
    ),
    BenchCommand(
        name="produce",
        help="sends: sync, async, in batches or one-way, by clients, in flight, queues and size",
        examples="""\
  dledger-bench produce --mode sync --clients 1,8,64
  dledger-bench produce --in-flight 1,16,64,256,1024 --plot curve.svg
  dledger-bench produce --queues 16,1000 --in-flight 64 --size 100
  dledger-bench produce --systems ours,rocketmq-dledger --durability async""",
        add_own=_produce_options,
        rows=_produce_rows,
    ),
    BenchCommand(
        name="consume",
        help="pulls of 32: of the newest messages, of a backlog, or of one tag of four",
        examples="""\
  dledger-bench consume --readers 1,8
  dledger-bench consume --mode cold --backlog-mib 2048
  dledger-bench consume --mode tags --systems ours,rocketmq-dledger""",
        add_own=_consume_options,
        rows=_consume_rows,
    ),
    BenchCommand(
        name="latency",
        help="how long a message takes from its producer to a reader that waits for it",
        examples="  dledger-bench latency --per-second 200 --systems ours,rocketmq-sync",
        add_own=_rate_options,
        rows=_steady_rows(RowKind.END_TO_END),
    ),
    BenchCommand(
        name="delays",
        help="how late messages of delay level 1 come to a reader that waits for them",
        examples="  dledger-bench delays --per-second 500 --seconds 10",
        add_own=_rate_options,
        rows=_steady_rows(RowKind.DELAY),
    ),
    BenchCommand(
        name="transactions",
        help="half messages and their commits, each answered before the next",
        examples="  dledger-bench transactions --clients 1,8 --systems ours,rocketmq-sync",
        add_own=_transaction_options,
        rows=_transaction_rows,
    ),
    BenchCommand(
        name="failover",
        help="how long nothing is acknowledged when the leader is killed with kill -9",
        examples="  dledger-bench failover --rounds 10 --systems ours,rocketmq-dledger",
        add_own=_backlog_options,
        rows=_fault_rows(RowKind.FAILOVER),
    ),
    BenchCommand(
        name="recovery",
        help="how long a group needs to serve again when all of it was killed with kill -9",
        examples="  dledger-bench recovery --backlog-mib 1024 --rounds 3",
        add_own=_backlog_options,
        rows=_fault_rows(RowKind.RECOVERY),
    ),
)
