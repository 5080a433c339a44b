"""Three machines that share three groups, real clients, and a machine killed again and again: is anything lost?

    python -m jepsen.demo [--kills 5] [--seconds 27] [--groups 3] [--no-cpp] [--plain] [--seed N] [--keep DIR] [--json]

A run of `dledger-jepsen` with the workload "together", made for a first look: three machines, each a `dledger-node`
with a name server and a member of each of three groups as processes of their own; our client and (where its wheel
installs) Apache's C++ client produce and consume, beside them run transactions, messages with due times, an ordered
stream and clients in a hurry (--plain leaves them out). All processes of a machine that leads are killed with SIGKILL
every few seconds and started again; then everything is read, and the history is judged. With --groups 1 the nodes are
those of one group, with a name server beside them.

Exit status: 0 nothing acknowledged was lost, every queue was consumed in order and every other promise was
kept, 1 something was broken, 2 unknown: something was never acknowledged, the group did not start, or the demo itself
crashed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape

from jepsen.checkers.delay import LATE_NS, check_delay
from jepsen.checkers.results import Checker, CheckResult
from jepsen.clients import cpp
from jepsen.generators import Share
from jepsen.history.ops import Op
from jepsen.measure import in_rounds
from jepsen.nemeses.schedule import Pace
from jepsen.processes import sigterm_as_interrupt
from jepsen.reports.demo import MESSAGES, DemoFacts, line_for_scripts, print_report
from jepsen.reports.folder import REPORT, write_folder
from jepsen.reports.show import progress_of
from jepsen.run import BreakerMaker, FolderError, RunResult, RunSettings, by_schedule, execute
from jepsen.systems.machines import GROUPS_MAX
from jepsen.workloads.side_by_side import of_part, ops_of, shares

VALID, INVALID, UNKNOWN, INTERRUPTED = 0, 1, 2, 130
PARTS: Final = (MESSAGES, "ordered", "transactions", "delay", "sends")
WORKERS: Final = 32
RATE: Final = 400.0
RATE_OF_SEVERAL: Final = 100.0
"""Of several groups: nine brokers and all clients take about 1.3 of two cores then; more would measure the cores."""

GROUPS: Final = 3
SECONDS_PER_KILL: Final = 4.0
SECONDS_PER_MACHINE: Final = 5.0  # four processes start where it was one
QUIET_END_S: Final = 2.0  # after the last kill, so that its gap can be measured
RESTART_AFTER_S: Final = 1.0
HANGS_S: Final = (
    90.0  # longer than asked for: a group that does not come together makes the kills wait
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from the command line."""

    kills: int
    seconds: float
    with_cpp: bool
    seed: int
    keep: Path | None
    as_json: bool
    with_streams: bool = True
    groups: int = GROUPS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status.

    Raises:
        SystemExit: the demo itself has crashed, with the status for what proves nothing.
    """
    settings = read_arguments(sys.argv[1:] if arguments is None else arguments)
    sigterm_as_interrupt()
    console = Console(stderr=True) if settings.as_json else Console()
    try:
        has_cpp = settings.with_cpp and cpp.install(
            lambda text: console.print(text, highlight=False)
        )
        if not has_cpp:
            console.print("without the C++ client: our own clients alone", highlight=False)
        return demonstrate(settings, run_settings(settings, has_cpp=has_cpp), console)
    except FolderError as error:
        console.print(f"demo: {escape(str(error))}", highlight=False)
        return UNKNOWN
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        return INTERRUPTED
    except Exception as error:
        console.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        console.print("the demo has crashed: this proves nothing")
        raise SystemExit(UNKNOWN) from error  # the interpreter's own 1 means a broken promise


def run_settings(settings: Settings, *, has_cpp: bool) -> RunSettings:
    """Return the run that is made."""
    workload = "together" if settings.with_streams else MESSAGES
    # Without a kill nothing but the limit ends it.
    time_limit_s = settings.seconds + (HANGS_S if settings.kills else 0)
    return RunSettings(
        f"{workload}-cpp" if has_cpp else workload,
        "kill:leader" if settings.kills else "none",
        time_limit_s,
        seed=settings.seed,
        rate=RATE if settings.groups == 1 else RATE_OF_SEVERAL,
        workers=WORKERS,
        pace=pace_of(settings.kills, settings.seconds),
        command=command_of(settings),
        groups=settings.groups,
    )


def command_of(settings: Settings) -> str:
    """Return the command that makes such a demo again."""
    words = f"python -m jepsen.demo --kills {settings.kills} --seconds {settings.seconds:g} --seed {settings.seed}"
    options = [
        "" if settings.groups == GROUPS else f" --groups {settings.groups}",
        "" if settings.with_cpp else " --no-cpp",
        "" if settings.with_streams else " --plain",
    ]
    return f"{words}{''.join(options)}"


def pace_of(kills: int, seconds: float) -> Pace:
    """Return how long nodes are down, and how long all are up, so that so many kills fill the time."""
    period_s = max((seconds - QUIET_END_S) / max(kills, 1), 1.0)
    hold_s = min(RESTART_AFTER_S, period_s / 2)
    return Pace((hold_s, hold_s), (0.8 * (period_s - hold_s), period_s - hold_s))


def demonstrate(settings: Settings, run: RunSettings, console: Console) -> int:
    """Make the run, with every process ended afterwards, and report what came of it.

    Raises:
        FolderError: the folder that is to be kept holds a run already, or cannot be written.
        KeyboardInterrupt: somebody has interrupted.
    """
    folder = settings.keep or Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    console.print(f"seed {run.seed}, stores and logs in {folder}", highlight=False, soft_wrap=True)
    if run.groups > 1:
        console.print(opening(run), highlight=False)
    break_it: BreakerMaker = in_rounds(settings.kills) if settings.kills else by_schedule
    more_checkers = [in_time(run)] if settings.with_streams else []
    with progress_of(run, console, expected_s=settings.seconds) as show:
        result = execute(run, folder, show, break_it=break_it, more_checkers=more_checkers)
    write_folder(result, keep_stores=settings.keep is not None)
    if result.is_interrupted:
        raise KeyboardInterrupt
    story = story_of(result)
    print_report(console, story, result)
    if settings.as_json:
        sys.stdout.write(line_for_scripts(story) + "\n")
    if result.valid and settings.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"report: {folder / REPORT}", highlight=False, soft_wrap=True)
    return {True: VALID, False: INVALID, None: UNKNOWN}[result.valid]


def opening(run: RunSettings) -> str:
    """Return what is about to run, in a sentence."""
    return (
        f"{run.nodes} machines, each a dledger-node with a name server and a member of each of {run.groups} groups; "
        "all processes of a machine are killed at once"
    )


def in_time(run: RunSettings) -> Checker:
    """Return the checker which requires that no message comes later than a second after its due time.

    Not every fault can be held against that; the death of a leader, whose end clients see, can.
    """

    def check_in_time(ops: Sequence[Op]) -> CheckResult:
        result = check_delay(ops, late_max_ns=LATE_NS)
        late = tuple(one for one in result.anomalies if one.kind == "late")
        why = "" if late else result.why_unknown
        valid = False if late else None if why else True
        return msgspec.structs.replace(
            result, name="in-time", valid=valid, anomalies=late, why_unknown=why
        )

    return of_part("delay", shares(PARTS, run.workers)["delay"], check_in_time)


def story_of(result: RunResult) -> DemoFacts:
    """Return the story of a run, for people and scripts."""
    is_alone = not result.settings.workload.startswith("together")
    workers = result.settings.workers
    share = Share(0, workers, workers) if is_alone else shares(PARTS, workers)[MESSAGES]
    return DemoFacts(result.ops, ops_of(share, result.ops), result.checks)


def read_arguments(arguments: Sequence[str]) -> Settings:
    """Read the command line; exits with status 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen.demo", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--kills", type=int, default=5, help="how often a machine is killed")
    parser.add_argument("--seconds", type=float, help="how long, without start and drain")
    parser.add_argument(
        "--groups",
        type=int,
        default=GROUPS,
        choices=range(1, GROUPS_MAX + 1),
        help="broker groups that the three machines share",
    )
    parser.add_argument("--no-cpp", action="store_true", help="only our own client")
    parser.add_argument("--plain", action="store_true", help="only plain messages")
    parser.add_argument("--seed", type=int, help="of the times of the kills; drawn when not given")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep stores, logs, history there")
    parser.add_argument("--json", action="store_true", help="one line of results on stdout")
    read = parser.parse_args(arguments)
    if read.kills < 0 or (read.seconds is not None and read.seconds <= 0):
        parser.error("--kills and --seconds must not be negative")
    per_kill_s = SECONDS_PER_KILL if read.groups == 1 else SECONDS_PER_MACHINE
    return Settings(
        kills=read.kills,
        seconds=read.seconds or read.kills * per_kill_s + QUIET_END_S,
        with_cpp=not read.no_cpp,
        seed=random.randrange(1_000_000) if read.seed is None else read.seed,
        keep=read.keep,
        as_json=read.json,
        with_streams=not read.plain,
        groups=read.groups,
    )


if __name__ == "__main__":
    sys.exit(main())
