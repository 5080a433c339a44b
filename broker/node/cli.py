"""The command `dledger-node`: what one machine runs of several groups, started, shown and stopped as one thing.

The end of `--help` lists its exit codes.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker.command_line import (
    EXIT_FAILED,
    EXIT_OK,
    LOG_LEVELS,
    log_level,
    print_error,
    print_line,
    run_command,
    why_unreadable,
)
from broker.node.config import choose_machine, read_node_file
from broker.node.plan import NodePlan, plan_node, plan_to_look
from broker.node.status import MachineStatus, look
from broker.node.supervisor import Supervisor
from broker.processes.child import ChildStatus
from broker.settings.tls import CONFIG_FILE
from broker.tls.file import with_tls_file
from dledger import ConfigError
from dledger.runtime.secret_file import SecretFile
from dledger.version import __version__

_PROGRAM: Final = "dledger-node"

_EPILOG: Final = """\
node.toml, the same file on all three machines:

  cluster = "DefaultCluster"
  store = "/var/lib/dledger"
  [machines]                  # name and address; each leads one of the groups broker-a, broker-b, broker-c
  alpha = "10.0.0.1"
  beta = "10.0.0.2"
  gamma = "10.0.0.3"
  [broker]                    # settings of broker.conf for all groups; [group.broker-a] for one
  defaultTopicQueueNums = 8

on each machine:
  dledger-node -c node.toml --machine alpha     run it (Ctrl-C or SIGTERM stops it in order)
  dledger-node -c node.toml check               check the file, show what would run where
  dledger-node -c node.toml status              show what runs here
  dledger-node -c node.toml stop                stop it in order, and wait for that

docs/node.md has the rest: systemd, containers, rolling restarts.

exit codes:
  0  stopped in order, or what was asked for is so
  1  it could not start, or has failed; one line says why
     status: not all of it runs; stop: something still runs
  2  the command line or the file is wrong; nothing was started
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return run_command(console, _PROGRAM, lambda: _act(options, console))


def _act(options: argparse.Namespace, console: Console) -> int:
    """Do what the options ask for; return the exit status."""
    plan = _read_plan(options)
    match options.action:
        case "check":
            return _check(plan, as_json=options.json)
        case "status":
            return _status(plan, as_json=options.json)
        case "stop":
            return _stop(plan, console)
        case _:
            return _run(plan, console)


def _parser() -> argparse.ArgumentParser:
    """Build the parser; the action has a default, so that a service unit needs nothing but the file."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="A name server and a member of each group on this machine, kept running.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("-c", "--config", metavar="FILE", required=True, help="node.toml")
    parser.add_argument(
        "--machine", metavar="NAME", help="which of [machines] this is (default: the host's name)"
    )
    parser.add_argument(
        "--json", action="store_true", help="check, status: one JSON object for scripts"
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="go on, with a warning, without unknown keys and with defaults for wrong values of [broker] and [group.X]",
    )
    parser.add_argument(
        "--log-level",
        default="warning",
        type=log_level,
        metavar="LEVEL",
        help=f"what this command itself writes to standard error: {', '.join(LOG_LEVELS)} (default: warning)",
    )
    parser.add_argument(
        "action",
        nargs="?",
        default="run",
        choices=("run", "check", "status", "stop"),
        help="(default: run)",
    )
    return parser


def _read_plan(options: argparse.Namespace) -> NodePlan:
    """Read the file and lay out this machine's processes.

    Raises:
        ConfigError: says what is wrong, and in which file.
    """
    path = Path(options.config)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"-c {path} cannot be read: {why_unreadable(error)}") from error
    try:
        file = read_node_file(text, folder=path.parent.absolute())
        machine = choose_machine(file, options.machine, socket.gethostname())
        if options.action in ("status", "stop"):
            return plan_to_look(file, machine)
        secret = (
            SecretFile(file.secret_file, "secret_file").secret.shown if file.secret_file else None
        )
        tls = with_tls_file({CONFIG_FILE: file.tls_config_file}) if file.tls_config_file else {}
        return plan_node(file, machine, secret=secret, tls=tls, is_lenient=options.lenient)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _run(plan: NodePlan, console: Console) -> int:
    """Run the supervisor until it is stopped, and print a line per event with the time of day."""
    reason = _why_left(plan) or _why_not_here(plan)
    if reason is not None:
        print_error(console, _PROGRAM, reason)
        return EXIT_FAILED
    for warning in plan.warnings:
        print_line(console, f"[yellow]{_PROGRAM}:[/yellow] {escape(warning)}")
    children = ", ".join(f"{child.name} {child.address}" for child in plan.children)
    print_line(console, f"machine [bold]{escape(plan.machine)}[/bold]: {children}")
    folder = escape(str(plan.folder))
    print_line(console, f"data and logs in {folder}; Ctrl-C stops everything in order")

    def report(line: str) -> None:
        print_line(console, f"{time.strftime('%H:%M:%S')} {escape(line)}")

    trio.run(Supervisor(plan, report).run)
    return EXIT_OK


def _why_left(plan: NodePlan) -> str | None:
    """Return why nothing may run on a machine that left; None of another one."""
    if not plan.has_left:
        return None
    return (
        f"machine {plan.machine} has left: its members are removed, and with its stores it would be turned away. To "
        "take it in again name it in [joined], as a machine of another name (docs/node.md)"
    )


def _why_not_here(plan: NodePlan) -> str | None:
    """Return why this computer cannot be the machine: the address is not its own; None when it is."""
    host = plan.children[0].address.host
    try:
        with socket.create_server((host, 0)):
            return None
    except OSError as error:
        return (
            f"machine {plan.machine} has the address {host}, which is not one of this computer's "
            f"({error.strerror}); --machine says which machine this is"
        )


def _check(plan: NodePlan, *, as_json: bool) -> int:
    """Show what would run here."""
    if as_json:
        addresses = {child.name: str(child.address) for child in plan.children}
        _print_json(
            {
                "machine": plan.machine,
                "folder": str(plan.folder),
                "addresses": addresses,
                "warnings": plan.warnings,
                "has_left": plan.has_left,
                "changes": plan.changes,
            }
        )
        return EXIT_OK
    table = Table(title=f"machine {plan.machine}")
    for heading in ("process", "clients"):
        table.add_column(heading)
    for child in plan.children:
        table.add_row(child.name, str(child.address))
    console = Console()
    console.print(table)
    console.print(f"data, settings and logs in {escape(str(plan.folder))}", soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"[yellow]{escape(warning)}[/yellow]", soft_wrap=True)
    left = _why_left(plan)
    if left is not None:
        console.print(f"[red]{escape(left)}[/red]", soft_wrap=True)
    if plan.changes:
        console.print(
            "this machine joins: it begins no group, and waits until its members are added:"
        )
    for change in plan.changes:
        console.print(f"  {escape(change)}", soft_wrap=True, highlight=False)
    return EXIT_OK


def _status(plan: NodePlan, *, as_json: bool) -> int:
    """Show what runs here; the exit status is 0 if everything does."""
    seen = look(plan)
    if as_json:
        _print_json(seen)
    elif not seen.children:
        Console().print(_not_running(plan), soft_wrap=True)
    else:
        _print_status(seen)
    return EXIT_OK if seen.is_whole else EXIT_FAILED


def _print_status(seen: MachineStatus) -> None:
    """Print a row per child."""
    supervisor = f"supervisor {seen.supervisor}" if seen.supervisor else "[red]no supervisor[/red]"
    if seen.is_stopping:
        supervisor += ", stopping"
    table = Table(title=f"machine {escape(seen.machine)}, {supervisor}")
    for heading in ("process", "clients", "pid", "for", "restarts", "last end"):
        table.add_column(heading)
    for child in seen.children:
        pid = str(child.pid) if child.pid else "[red]down[/red]"
        address = seen.addresses.get(child.name, "not in the file")
        end = escape(child.last_end)
        table.add_row(
            escape(child.name), address, pid, _time_since(child), str(child.restarts), end
        )
    Console().print(table)


def _time_since(child: ChildStatus) -> str:
    """Return how long ago it started or ended, never below 0 though a clock may be set back; "-" if nobody knows."""
    if child.since_ms is None:
        return "-"
    return f"{max(0, time.time_ns() // 1_000_000 - child.since_ms) // 1000} s"


def _not_running(plan: NodePlan) -> str:
    """Say that nothing of the machine runs, with rich's markup."""
    return escape(f"machine {plan.machine} is not running ({plan.folder})")


def _print_json(value: object) -> None:
    """Print one JSON object for scripts."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def _stop(plan: NodePlan, console: Console) -> int:
    """Stop by way of the supervisor, and directly what a killed one has left; succeed only if nothing runs any more."""
    seen = look(plan)
    if not seen.children:
        console.print(_not_running(plan))
        return EXIT_OK
    if seen.is_stopping:
        console.print(f"waiting for process {seen.supervisor}, which is stopping already")
    own = Supervisor(plan, lambda line: print_line(console, escape(line)))
    with console.status("brokers hand over, and answer what is on its way"):
        if seen.supervisor is not None and not trio.run(
            _end_supervisor, plan, own.stop_s_max + 5.0
        ):
            print_error(
                console, _PROGRAM, f"process {seen.supervisor} has not ended; its log says why"
            )
            return EXIT_FAILED
        # A supervisor may have been killed, even while it stopped them.
        if look(plan).children:
            trio.run(own.stop_orphans)
    left = [f"{child.name}, process {child.pid}" for child in look(plan).children if child.pid]
    if left:
        print_error(console, _PROGRAM, f"still runs: {'; '.join(left)}")
        return EXIT_FAILED
    console.print(f"machine {plan.machine} is stopped")
    return EXIT_OK


async def _end_supervisor(plan: NodePlan, within_s: float) -> bool:
    """Ask the supervisor to stop, unless it does, and wait for its end; False when it takes too long.

    A second signal would ask for haste, which costs clients requests.
    """
    seen = look(plan)
    if seen.supervisor is None:
        return True
    try:
        pidfd = os.pidfd_open(seen.supervisor)
    except ProcessLookupError:
        return True
    if look(plan).supervisor != seen.supervisor:  # its id may be another's meanwhile
        os.close(pidfd)
        return True
    if not seen.is_stopping:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    with trio.move_on_after(within_s) as waiting:
        await trio.lowlevel.wait_readable(pidfd)
    return not waiting.cancelled_caught


if __name__ == "__main__":
    sys.exit(main())
