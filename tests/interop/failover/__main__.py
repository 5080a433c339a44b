"""Unmodified clients send while machines fail, and what each of them felt is told.

    python -m tests.interop.failover --fault kill                  # all processes of a machine, 20 times
    python -m tests.interop.failover --fault dead --dead-s 60      # a whole machine, for a minute
    python -m tests.interop.failover --fault stop                  # a planned stop, and a start
    python -m tests.interop.failover --fault kill --groups 1       # a single group, for comparison

starts three machines, which share three groups, and all clients of `make interop` with their defaults; each sends to a
topic of its own, and a second time in order. As root the machines of `--fault dead` are network namespaces, in which
packets to a dead one vanish; else they are addresses of loopback. Exit status: 0; 1 if something acknowledged was lost;
2 if it was not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from dledger_mq.blocking import Admin
from jepsen.nemeses.namespaces import lacking_namespaces
from tests.interop.failover.command import CLIENTS, clients_here, require_namespaces, status_of
from tests.interop.failover.judgement import Round, judge
from tests.interop.failover.machines import LETTERS, Machines, run_round, running_machines
from tests.interop.failover.report import Report, Row
from tests.interop.failover.streams import Stream, read_all, topic_of

FAULTS: Final = ("kill", "dead", "stop")
QUEUES: Final = 4
QUIET_S: Final = 35.0
"""Between two faults: clients ask for routes every 30 s, and a fault is not to meet one that knows those of before the
last."""

TIMEOUT_S: Final = 60.0
PIPE_WIDTH: Final = 120
"""Of the table where there is no terminal: at 80 columns its figures are cut."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, choices=range(1, len(LETTERS) + 1), default=3)
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--dead-s", type=float, default=60.0)
    parser.add_argument("--quiet-s", type=float, default=QUIET_S)
    parser.add_argument("--network", choices=("auto", "loopback", "namespaces"), default="auto")
    parser.add_argument("--no-ordered", action="store_true", help="leave the ordered streams out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--keep", type=Path, help="folder for logs, stores and all sends, which is kept"
    )
    return parser.parse_args()


def disturb_with(machines: Machines, options: argparse.Namespace, machine: str) -> float:
    if options.fault == "kill":
        return machines.kill(machine)
    if options.fault == "stop":
        return machines.stop(machine)
    return machines.die(machine, options.dead_s)


def run_rounds(
    machines: Machines, streams: list[Stream], options: argparse.Namespace
) -> list[Round]:
    """Do all rounds, with a line for each."""

    def quiet() -> None:
        for stream in streams:
            stream.wait_quiet()
        time.sleep(options.quiet_s)

    rounds: list[Round] = []
    for number in range(options.rounds):
        fault = run_round(machines, lambda name: disturb_with(machines, options, name), quiet)
        rounds.append(fault)
        sys.stderr.write(
            f"round {number + 1}: {options.fault} {fault.machine}, "
            f"quiet again after {fault.ended_s - fault.begun_s:.1f} s\n"
        )
    return rounds


def measure(machines: Machines, kinds: list[str], options: argparse.Namespace) -> Report:
    """Run the streams through the rounds, and judge them."""
    name_servers = machines.cluster.name_servers
    plans = [(kind, False) for kind in kinds]
    plans += [(kind, True) for kind in kinds if not options.no_ordered]
    machines.wait_whole()
    with Admin(name_servers, timeout_s=TIMEOUT_S) as admin:
        for kind, is_ordered in plans:
            admin.create_topic(topic_of(kind, is_ordered=is_ordered), queues=QUEUES)
    load_before = os.getloadavg()
    with ExitStack() as stack:
        streams: list[Stream] = []
        for kind, is_ordered in plans:
            stream = Stream(kind, name_servers, is_ordered=is_ordered)
            streams.append(stack.enter_context(stream))
            stream.wait_quiet()
        rounds = run_rounds(machines, streams, options)
    if options.keep:
        for stream in streams:
            lines = [json.dumps(asdict(send)) + "\n" for send in stream.sends]
            (options.keep / f"{stream.topic}.jsonl").write_text("".join(lines))
    conditions: dict[str, object] = {
        "fault": options.fault,
        "groups": options.groups,
        "rounds": len(rounds),
        "cores": os.cpu_count(),
        "load before": f"{load_before[0]:.1f}",
        "load after": f"{os.getloadavg()[0]:.1f}",
    }
    if options.fault == "dead":
        conditions |= {"dead for s": options.dead_s, "packets to it": options.network}
    rows = [
        Row(
            stream.kind,
            stream.shards is not None,
            judge(stream.sends, rounds, read_all(name_servers, stream.topic), shards=stream.shards),
        )
        for stream in streams
    ]
    return Report(conditions, rounds, rows)


def is_silent(options: argparse.Namespace) -> bool:
    """Decide what machines are.

    Raises:
        NotMeasuredError: namespaces are asked for and cannot be had.
    """
    if options.network == "namespaces":
        require_namespaces()
    is_default = options.network == "auto" and options.fault == "dead"
    silent = options.network == "namespaces" or (is_default and lacking_namespaces() is None)
    options.network = "vanish" if silent else "are refused"
    return silent


def run(options: argparse.Namespace) -> int:
    """Measure and report; return how many messages were lost."""
    kinds = clients_here(options.clients)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        silent = is_silent(options)
        machines = stack.enter_context(running_machines(folder, options.groups, is_silent=silent))
        report = measure(machines, kinds, options)
    if options.json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        report.print(Console(width=None if sys.stdout.isatty() else PIPE_WIDTH))
    return sum(row.verdict.lost for row in report.rows)


if __name__ == "__main__":
    arguments = parsed()
    sys.exit(status_of(lambda: run(arguments)))
