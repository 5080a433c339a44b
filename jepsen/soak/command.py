"""`dledger-jepsen soak`: the command line, the moving line and the table at the end."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from jepsen.checkers.results import CheckResult
from jepsen.run import FolderError
from jepsen.soak.course import Show, Soak, SoakResult, SoakSettings, run_soak

SEEDS: Final = 1_000_000
HOUR_S: Final = 3600.0
MIB: Final = 1024 * 1024
EXIT_CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
COLORS: Final = {"valid": "green", "invalid": "red", "unknown": "yellow"}
MARKS: Final = {
    True: "[green]kept[/green]",
    False: "[red]broken[/red]",
    None: "[yellow]unknown[/yellow]",
}


def add_parser(commands: argparse._SubParsersAction[Any], positive: Callable[[str], float]) -> None:
    """Add the command.

    Args:
        commands: of `dledger-jepsen`.
        positive: reads a number above 0.
    """
    soak = commands.add_parser(
        "soak", help="hours of load on a group that forgets and changes its members"
    )
    soak.add_argument("--hours", type=positive, default=2.0, metavar="H")
    soak.add_argument("--rate", type=positive, default=2000.0, help="messages per second")
    soak.add_argument(
        "--retention",
        type=positive,
        default=180.0,
        metavar="S",
        help="retentionSeconds of the group",
    )
    soak.add_argument(
        "--pause", type=positive, default=45.0, metavar="S", help="from one turn to the next"
    )
    soak.add_argument("--seed", type=int, help="drawn when not given")
    soak.add_argument("--keep", type=Path, metavar="DIR", help="where the results go")
    soak.add_argument("--json", action="store_true", help="results on stdout")


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the soak; returns its exit code.

    Raises:
        FolderError: the folder holds something already, or cannot be written.
        KeyboardInterrupt: somebody has interrupted it; what was seen until then is judged and reported.
    """
    settings = SoakSettings(
        seconds=options.hours * HOUR_S,
        rate=options.rate,
        kept_s=options.retention,
        pause_s=options.pause,
        seed=random.randrange(SEEDS) if options.seed is None else options.seed,
    )
    folder = _made(options.keep)
    console.print(f"seed {settings.seed}, results in {folder}", highlight=False, soft_wrap=True)
    with _progress(settings, console) as show:
        result = run_soak(settings, folder, show)
    _print(result, folder, console)
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    if result.is_interrupted:
        raise KeyboardInterrupt
    return EXIT_CODES[result.verdict]


def _made(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="dledger-soak-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise FolderError(f"{keep} holds something already: name a new folder")
    except OSError as error:
        raise FolderError(f"{keep} cannot be written: {error.strerror}") from error
    return keep


@contextmanager
def _progress(settings: SoakSettings, console: Console) -> Iterator[Show]:
    """Show a moving line on a terminal, and nothing elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("soak", total=settings.seconds, state="starting")

        def show(soak: Soak) -> None:
            seconds = soak.load.now_s() if soak.load else 0.0
            bar.update(task, completed=min(seconds, settings.seconds), state=_state(soak))

        yield show


def _state(soak: Soak) -> str:
    """Return the state of a soak in one line."""
    counts = soak.ledger.counts
    words = [
        soak.phase,
        f"acknowledged {counts['acknowledged']:,}",
        f"unread {soak.ledger.unread:,}",
    ]
    if soak.turns is not None:
        words.append(f"turns {len(soak.turns.done)}")
    if soak.onlooker is not None:
        words.append(f"leader {soak.onlooker.leader or 'nobody'}")
    if soak.samples:
        newest = [one for one in soak.samples[-8:] if one.disk_bytes]
        disk = max((one.disk_bytes for one in newest), default=0)
        memory = max((one.rss_bytes for one in newest), default=0)
        words.append(f"store {disk // MIB} MiB, memory {memory // MIB} MiB")
    return "  ".join(words)


def _print(result: SoakResult, folder: Path, console: Console) -> None:
    """Print the table of judgements, what was done, and the verdict."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("checker", "promise", "found", "counted"):
        table.add_column(column)
    for check in result.checks:
        table.add_row(
            check.name, MARKS[check.valid], escape(_found(check)), escape(_counted(check))
        )
    console.print(table)
    for check in result.checks:
        for anomaly in check.anomalies:
            text = f"[red]{escape(anomaly.kind)}[/red]: {escape(anomaly.text)}"
            console.print(text, highlight=False)
    for problem in result.problems:
        console.print(f"[yellow]{escape(problem)}[/yellow]", highlight=False)
    turns = ", ".join(f"{name} {count}" for name, count in result.turns.items()) or "none"
    errors = ", ".join(f"{name} {count}" for name, count in result.errors.items()) or "none"
    console.print(f"{result.seconds:.0f} s, turns: {turns}; errors: {errors}", highlight=False)
    color = COLORS[result.verdict]
    console.print(
        f"[bold {color}]{result.verdict.upper()}[/bold {color}]  {folder}", soft_wrap=True
    )


def _found(check: CheckResult) -> str:
    return f"{len(check.anomalies)} anomalies" if check.anomalies else check.why_unknown


def _counted(check: CheckResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in check.counts.items())
