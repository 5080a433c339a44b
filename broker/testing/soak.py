"""Both simulators for hours, on all cores: fresh seeds, a line now and then, failing seeds in a file.

    python -m broker.testing.soak --hours 8
    python -m broker.testing.soak --hours 0.1 --processes 1 --failures build/failing-seeds.txt

Exit codes: those of the simulators (1 wrong, 3 stuck, 4 crashed; the smallest of all); 5 when nothing failed but
something never went wrong in thousands of runs, so that the run proves less than it says; 0 when all is well.

Nothing here knows what a run does, only how it ended.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from rich.console import Console

from broker.testing.sim import BROKER_SIMULATOR
from dledger.testing.sim import LOG_SIMULATOR
from dledger.testing.sim_command import (
    FRESH_SEEDS,
    Simulator,
    WorkersSilentError,
    run_many,
    run_one,
    show_tally,
)
from dledger.testing.sim_draws import DRAWS_NOW
from dledger.testing.sim_failures import FAILURES_FILE, KeptFailures
from dledger.testing.sim_tally import SILENT_SEEDS_MIN, Tally
from dledger.testing.simulation import SimResult, SimVerdict

SIMULATORS: Final = (LOG_SIMULATOR, BROKER_SIMULATOR)
LEG_S: Final = 60.0
"""The simulators take turns of this length."""

SILENT: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m broker.testing.soak", description="Simulate for hours under fresh seeds."
    )
    parser.add_argument("--hours", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="workers")
    parser.add_argument("--first", type=int, help="the first seed; a fresh one if not given")
    parser.add_argument(
        "--failures",
        type=Path,
        default=FAILURES_FILE,
        help="file to which the commands that replay failing seeds are added",
    )
    try:
        return _soak(parser.parse_args(arguments), Console(highlight=False))
    except WorkersSilentError as error:
        sys.stderr.write(f"stopped: {error}\n")
        return int(SimVerdict.CRASHED)


def _soak(options: argparse.Namespace, console: Console) -> int:
    """Run both simulators in turn until the time is over.

    Each failing seed is written at once, so that no crash loses it.
    """
    first = secrets.randbelow(FRESH_SEEDS) if options.first is None else options.first
    console.print(f"seeds from {first}, for {options.hours} hours, {options.processes} workers")
    started_s = time.monotonic()
    end_s = started_s + options.hours * 3600
    tallies = {simulator: Tally() for simulator in SIMULATORS}
    failures = {each: _kept_failures(each, options.failures) for each in SIMULATORS}
    seeds = {simulator: count(first) for simulator in SIMULATORS}
    took_s = dict.fromkeys(SIMULATORS, 0.0)
    is_over = False
    while not is_over:  # each has a turn, however short the time
        for simulator in SIMULATORS:
            leg_s = time.monotonic()
            until_s = min(end_s, leg_s + min(LEG_S, options.hours * 1800))
            for result in _leg(simulator, seeds[simulator], options.processes, until_s):
                tallies[simulator].add(result)
                if result.verdict is not SimVerdict.FINE:
                    row = failures[simulator].keep(result)
                    console.print(row, markup=False, soft_wrap=True)
            took_s[simulator] += time.monotonic() - leg_s
            _show_progress(
                simulator,
                tallies[simulator],
                console,
                took_s=took_s[simulator],
                started_s=started_s,
            )
        is_over = time.monotonic() >= end_s
    for simulator, tally in tallies.items():
        if tally.seed_count:
            show_tally(simulator, console, tally, took_s[simulator])
    return _exit_code(list(tallies.values()))


def _leg(
    simulator: Simulator, seeds: Iterator[int], processes: int, until_s: float
) -> Iterator[SimResult]:
    run = partial(run_one, simulator)
    with closing(run_many(run, seeds, processes=processes, until_s=until_s)) as results:
        yield from results


def _show_progress(
    simulator: Simulator, tally: Tally, console: Console, *, took_s: float, started_s: float
) -> None:
    """Print one line of progress."""
    sums = tally.summary(max(took_s, 0.001))
    minutes = (time.monotonic() - started_s) / 60
    console.print(
        f"{minutes:6.1f} min  {simulator.title:<8} {sums['seeds']:>9,} seeds  "
        f"{sums['seeds_per_second']:>6} a second  {sums['virtual_seconds']:>10,} s simulated, "
        f"{sums['simulated_per_real']} to 1  {tally.bad_count} bad",
        soft_wrap=True,
    )


def _kept_failures(simulator: Simulator, file: Path) -> KeptFailures:
    """Return what keeps the failing seeds of a simulator."""
    return KeptFailures(
        file,
        command_of=partial(simulator.replay_command, options=f" --draws {DRAWS_NOW}"),
        settings_of=simulator.draw,
    )


def _exit_code(tallies: Sequence[Tally]) -> int:
    codes = [tally.exit_code for tally in tallies if tally.exit_code]
    if codes:
        return min(codes)
    is_silent = any(t.silent() and t.seed_count >= SILENT_SEEDS_MIN for t in tallies)
    return SILENT if is_silent else 0


if __name__ == "__main__":
    sys.exit(main())
