"""`dledger-jepsen`: break a group of real processes, and judge what its clients saw.

    dledger-jepsen run --workload queue --nemesis kill:leader --time-limit 30
    dledger-jepsen suite                  the standing set
    dledger-jepsen failover --rounds 20   how long is nothing acknowledged when the leader dies?
    dledger-jepsen transfer --rounds 20   and when it hands over as planned?
    dledger-jepsen soak --hours 2         retention, kills and changes of members under a steady load
    dledger-jepsen check DIR              judge a history again
    dledger-jepsen checklist --row 9      the list of faults, row by row
    dledger-jepsen list                   workloads and faults, and what this machine lacks for them

Exit codes: 0 valid; 1 a promise was broken; 2 unknown (nothing succeeded, the system did not start, a checker or
client crashed, the machine lacks something), the harness itself crashed, or wrong usage; 130 interrupted: every process
was ended, and what was seen until then is judged and reported.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dledger.version import __version__
from jepsen.catalogue import (
    NO_FAULT,
    WORKLOADS,
    UnknownNameError,
    make_faults,
    nemesis_of,
    network_for,
    system_maker,
    workload_entry,
)
from jepsen.checkers.judging import judge
from jepsen.checklist import command as checklist
from jepsen.guards import GUARDS, Guard
from jepsen.measure import KINDS, check_no_failed_sends, in_rounds, settings_of, times_of
from jepsen.nemeses.registry import named, specifications
from jepsen.processes import sigterm_as_interrupt
from jepsen.reports.folder import NoReportError, read_folder, write_folder
from jepsen.reports.show import print_suite, print_summary, progress_of
from jepsen.reports.summary import Summary
from jepsen.run import FolderError, RunResult, RunSettings, execute, run_checkers
from jepsen.soak import command as soak
from jepsen.suite import SUITE, TIME_LIMIT_S, SuiteRun, chosen
from jepsen.systems.api import NETWORKS, NODES_MAX
from jepsen.systems.machines import GROUPS_MAX

VALID, INVALID, UNKNOWN, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES: Final = {"valid": VALID, "invalid": INVALID, "unknown": UNKNOWN, "skipped": UNKNOWN}
SEEDS: Final = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(stderr=True, emoji=False)  # "kill:one:" is no picture
    sigterm_as_interrupt()
    try:
        match options.command:
            case "run":
                return _run(options, console)
            case "suite":
                return _suite(options, console)
            case "failover" | "transfer":
                return _measure(options, console)
            case "soak":
                return soak.run(options, console)
            case "check":
                return _check(options, console)
            case "checklist":
                return checklist.run(options, console)
            case _:
                return _list(Console(emoji=False))
    except (UnknownNameError, checklist.NoRowError) as error:
        parser.error(str(error))
    except (NoReportError, FolderError) as error:
        console.print(f"dledger-jepsen: {escape(str(error))}", highlight=False)
        return UNKNOWN
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - the root of the program: a crash of the harness breaks no promise
        console.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        console.print("dledger-jepsen has crashed: this proves nothing")
        return UNKNOWN


def _run(options: argparse.Namespace, console: Console) -> int:
    """Make one run; a drawn seed becomes a setting, so that the report can name the command that repeats the run."""
    faults = make_faults(options.nemesis)
    settings = RunSettings(
        workload=options.workload,
        nemesis=nemesis_of(faults),
        time_limit_s=options.time_limit,
        nodes=options.nodes,
        seed=random.randrange(SEEDS) if options.seed is None else options.seed,
        rate=options.rate,
        workers=options.concurrency,
        network=network_for(faults, options.network, groups=options.groups),
        system=options.system,
        groups=options.groups,
        guards=options.guards,
    )
    folder = options.keep or Path(tempfile.mkdtemp(prefix="dledger-jepsen-"))
    summary = _made(settings, folder, console, keep_stores=options.keep_stores)
    print_summary(summary, folder, console)
    if options.json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    return EXIT_CODES[summary.verdict]


def _made(settings: RunSettings, folder: Path, console: Console, *, keep_stores: bool) -> Summary:
    """Make a run, and write its folder.

    Raises:
        KeyboardInterrupt: somebody has interrupted; the folder has what was seen until then.
    """
    system_maker(workload_entry(settings.workload), settings.system, settings.network)
    console.print(f"seed {settings.seed}, report in {folder}", highlight=False, soft_wrap=True)
    with progress_of(settings, console) as show:
        result = execute(settings, folder, show)
    return _written(result, console, keep_stores=keep_stores)


def _written(result: RunResult, console: Console, *, keep_stores: bool) -> Summary:
    """Write the folder of a run.

    Raises:
        KeyboardInterrupt: somebody had interrupted it.
    """
    summary = write_folder(result, keep_stores=keep_stores)
    if result.is_interrupted:
        print_summary(summary, result.folder, console)
        raise KeyboardInterrupt
    return summary


def _measure(options: argparse.Namespace, console: Console) -> int:
    """Repeat one fault many times, and print the distribution of the measured times."""
    kind = KINDS[options.command]
    seed = random.randrange(SEEDS) if options.seed is None else options.seed
    settings = settings_of(
        kind, rounds=options.rounds, seed=seed, rate=options.rate, nodes=options.nodes
    )
    folder = options.keep or Path(tempfile.mkdtemp(prefix=f"dledger-{options.command}-"))
    console.print(f"seed {seed}, report in {folder}", highlight=False, soft_wrap=True)
    with progress_of(settings, console) as show:
        result = execute(
            settings,
            folder,
            show,
            break_it=in_rounds(options.rounds),
            more_checkers=() if kind.forgives else (check_no_failed_sends,),
        )
    summary = _written(result, console, keep_stores=False)
    print_summary(summary, folder, console)
    times = times_of(result.ops)
    line = msgspec.json.encode({"verdict": summary.verdict, **msgspec.to_builtins(times)}).decode()
    if options.json:
        sys.stdout.write(line + "\n")
    else:
        console.print(line, highlight=False, soft_wrap=True)
    is_whole = times.overcome == options.rounds or summary.verdict != "valid"
    return EXIT_CODES[summary.verdict] if is_whole else UNKNOWN


def _suite(options: argparse.Namespace, console: Console) -> int:
    """Make the chosen runs with one seed; a run that the machine cannot make is skipped and decides nothing."""
    runs = chosen(options.only)
    if not runs:
        names = ", ".join(run.name for run in SUITE)
        asked = " or ".join(map(repr, options.only))
        raise UnknownNameError(f"no run of the suite holds {asked}; there are: {names}")
    root = options.keep or Path(tempfile.mkdtemp(prefix="dledger-jepsen-suite-"))
    seed = random.randrange(SEEDS) if options.seed is None else options.seed
    summaries = []
    for number, run in enumerate(runs, start=1):
        console.print(f"[bold]{number} of {len(runs)}[/bold] {escape(run.name)}", highlight=False)
        settings = _suite_settings(run, options.time_limit, seed)
        folder = root / run.name.replace("/", "-").replace(",", "-")
        summaries.append(_made(settings, folder, console, keep_stores=False))
    print_suite(summaries, Console(stderr=options.json, emoji=False))
    if options.json:
        sys.stdout.write(msgspec.json.encode(summaries).decode() + "\n")
    return worst([EXIT_CODES[each.verdict] for each in summaries if each.verdict != "skipped"])


def _suite_settings(run: SuiteRun, time_limit_s: float, seed: int) -> RunSettings:
    return RunSettings(
        run.workload,
        run.nemesis,
        time_limit_s,
        nodes=run.nodes,
        seed=seed,
        network=network_for(make_faults(run.nemesis), None, groups=run.groups),
        groups=run.groups,
    )


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of several runs: broken beats unknown beats valid; none is unknown."""
    for code in (INVALID, UNKNOWN):
        if code in codes:
            return code
    return VALID if codes else UNKNOWN


def _check(options: argparse.Namespace, console: Console) -> int:
    known, ops = read_folder(options.folder)
    checks = judge(ops, run_checkers(known.settings))
    # Who judged that kind of run beside them (no transfer may fail a send) is known to its command alone.
    again = {check.name for check in checks}
    checks += [check for check in known.checks if check.name not in again]
    result = RunResult(known.settings, ops, checks, known.problems, known.faults, options.folder)
    summary = write_folder(result, keep_stores=True)
    print_summary(summary, options.folder, console)
    return EXIT_CODES[summary.verdict]


def _list(console: Console) -> int:
    """Show workloads and faults, and for each what this machine lacks to run it."""
    table = Table(title="Workloads", title_justify="left", show_header=False)
    for name, entry in WORKLOADS.items():
        lacking = entry.lacking()
        where = (
            f"[yellow]{escape(lacking)}[/yellow]" if lacking else f"on {', '.join(entry.systems)}"
        )
        table.add_row(name, escape(entry.text), where)
    console.print(table)
    table = Table(title="Nemeses", title_justify="left", show_header=False)
    for spec in specifications():
        lacking = named(spec).lacking()
        table.add_row(spec, f"[yellow]{escape(lacking)}[/yellow]" if lacking else "available")
    table.add_row(NO_FAULT, "nothing is broken")
    console.print(table)
    return VALID


def _add_run_arguments(run: argparse.ArgumentParser) -> None:
    """Add the options of `run`; the network's default follows from the faults, which may need a certain kind."""
    run.add_argument(
        "--workload", required=True, metavar="W", help="one that `dledger-jepsen list` shows"
    )
    run.add_argument(
        "--nemesis",
        default=NO_FAULT,
        metavar="N[,N2]",
        help="of those that `dledger-jepsen list` shows; or none",
    )
    run.add_argument("--time-limit", type=positive, default=TIME_LIMIT_S, metavar="S")
    run.add_argument(
        "--system", default="", metavar="SYSTEM", help="one that `dledger-jepsen list` shows"
    )
    run.add_argument("--nodes", type=members, default=3, metavar="K")
    run.add_argument(
        "--groups",
        type=groups,
        default=1,
        metavar="G",
        help="broker groups that the nodes share; with several, each node is a machine (dledger-node)",
    )
    run.add_argument(
        "--guards",
        type=guards,
        default=(),
        metavar="G[,G2]",
        help=f"what keeps strangers out, of {', '.join(GUARDS)}; clients and harness show what they need",
    )
    run.add_argument("--rate", type=positive, default=150.0, help="operations per second")
    run.add_argument("--concurrency", type=count, default=8, help="clients at work")
    run.add_argument(
        "--network", choices=NETWORKS, help="between the nodes; what the nemesis needs"
    )
    run.add_argument("--keep-stores", action="store_true", help="keep them of a valid run too")


def _parser() -> argparse.ArgumentParser:
    """Build the parser; options that several commands share are added in one loop, so that they mean the same."""
    parser = argparse.ArgumentParser(
        prog="dledger-jepsen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run: start, break, heal, judge")
    _add_run_arguments(run)
    suite = commands.add_parser("suite", help="the standing set")
    suite.add_argument("--only", action="append", default=[], metavar="TEXT", help="in the name")
    suite.add_argument("--time-limit", type=positive, default=TIME_LIMIT_S, metavar="S")
    measures = [
        commands.add_parser(
            "failover", help="kill the leader again and again: how long is the gap?"
        ),
        commands.add_parser("transfer", help="hand over again and again: no send may fail"),
    ]
    for each in measures:
        each.add_argument("--rounds", type=count, default=20, metavar="N")
        each.add_argument("--nodes", type=members, default=3, metavar="K")
        each.add_argument("--rate", type=positive, default=200.0, help="operations per second")
    for each in (run, suite, *measures):
        each.add_argument("--seed", type=int, help="drawn when not given")
        each.add_argument("--keep", type=Path, metavar="DIR", help="where the report goes")
        each.add_argument("--json", action="store_true", help="results on stdout")
    check = commands.add_parser("check", help="judge the history of a report again")
    check.add_argument("folder", type=Path, metavar="DIR")
    checklist.add_parser(commands)
    soak.add_parser(commands, positive)
    commands.add_parser("list", help="what there is, and what this machine lacks")
    return parser


def positive(text: str) -> float:
    """Read a number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def count(text: str) -> int:
    """Read a whole number from 1 to 9999.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not 1 <= int(text) <= 9999:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9999")
    return int(text)


def groups(text: str) -> int:
    """Read a number of broker groups.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    number = int(text) if text.isdecimal() and len(text) < 3 else 0
    if not 1 <= number <= GROUPS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of groups, 1 to {GROUPS_MAX}")
    return number


def guards(text: str) -> tuple[Guard, ...]:
    """Read what keeps strangers out, in the order of GUARDS.

    Raises:
        argparse.ArgumentTypeError: one of them is not there.
    """
    asked = {word.strip() for word in text.split(",") if word.strip()}
    if unknown := sorted(asked - set(GUARDS)):
        raise argparse.ArgumentTypeError(
            f"{', '.join(map(repr, unknown))}: there are {', '.join(GUARDS)}"
        )
    return tuple(guard for guard in GUARDS if guard in asked)


def members(text: str) -> int:
    """Read a number of nodes: as many as links have addresses for.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        number = count(text)
    except argparse.ArgumentTypeError:
        number = 0
    if not 1 <= number <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes, 1 to {NODES_MAX}")
    return number


if __name__ == "__main__":
    sys.exit(main())
