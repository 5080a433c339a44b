"""The command line of a simulator: run many seeds, replay one with its trace, or shrink one.

Several simulators share it (`dledger.testing.sim` for the log; a user of the log may simulate itself with
its state machine): a `Simulator` says how settings are drawn and run. Exit codes: 0 all runs fine; 1 a run
was wrong (a promise was broken), 3 stuck (no progress without faults), 4 crashed (a member raised, or a worker
died); with several findings the smallest code. Each finding is written to a file at once (sim_failures.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from dledger.errors import UsageError
from dledger.testing.sim_draws import DRAWS_CLASSIC, DRAWS_NOW
from dledger.testing.sim_failures import FAILURES_FILE, KeptFailures, last_line
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_shrink import assignments, override, shrink
from dledger.testing.sim_tally import SILENT_SEEDS_MIN, Tally
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import SimResult, SimVerdict

CHUNK_SEEDS = 4
"""Seeds that a worker process takes at a time."""

ROUND_CHUNKS = 4
"""Chunks for each worker in one round; between rounds the time is looked at."""

WORKER_CHUNKS = 25
"""A worker process is replaced after so many: what large simulated disks took is fragmented and not given back."""

ANSWER_S_MAX = 600.0
"""Longest wait for the results of a few seeds, which take seconds. A process that the system kills says nothing."""

PROBLEMS_SHOWN_MAX = 10

KEPT_IN = "failing seeds are kept in"

FRESH_SEEDS = 10**9
"""A fresh base is drawn below this."""


class WorkersSilentError(Exception):
    """Worker processes have not answered for `ANSWER_S_MAX`: they died, or a run does not end."""


class Draws(Protocol):
    """A function that draws a run's settings from its seed."""

    def __call__(self, seed: int, *, wire: bool = False, draws: int = DRAWS_NOW) -> SimSettings:
        """Return the settings of a seed."""
        ...


class Runs(Protocol):
    """A function that runs one simulation with given settings."""

    def __call__(self, settings: SimSettings, *, trace: Trace | None = None) -> SimResult:
        """Run one simulation to its verdict."""
        ...


@dataclass(frozen=True, slots=True)
class Simulator:
    """A simulation that can be run under seeds. Both functions must be importable, for the workers.

    Attributes:
        module: of its command, for `python -m`.
        title: for people.
    """

    module: str
    title: str
    draw: Draws
    run: Runs

    def replay_command(self, seed: int, *, options: str = "") -> str:
        """Return the command that shows a run again."""
        return f"python -m {self.module} --seed {seed} --trace{options}"


def run_command(simulator: Simulator, arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser(simulator)
    options = parser.parse_args(arguments)
    drawn = simulator.draw(options.seed or 1, wire=options.wire, draws=options.draws)
    try:
        settings = override(drawn, options.set)
    except UsageError as error:
        parser.error(str(error))
    if options.seed is None:
        try:
            return _sweep(simulator, options)
        except WorkersSilentError as error:
            sys.stderr.write(f"stopped: {error}\n")
            return int(SimVerdict.CRASHED)
    if options.shrink:
        return _shrink(simulator, drawn, settings, options)
    return _replay(simulator, settings, options)


def _parser(simulator: Simulator) -> argparse.ArgumentParser:
    """Build the parser; a flag that changes what a seed means must also stand in `_flags_text`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {simulator.module}",
        description=f"Simulate {simulator.title} under seeds: faults first, then a demand for progress.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=1000, help="how many seeds to run")
    add("--seconds", type=float, help="run seeds for so long instead")
    add("--first", type=int, help="the first of them; a fresh one if not given")
    add("--seed", type=int, help="replay this seed alone")
    add("--trace", action="store_true", help="with --seed: print every event")
    add("--shrink", action="store_true", help="with --seed: look for a smaller run")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="change a knob of every run, as faults=pause:10,heal:1 does",
    )
    add("--processes", type=int, default=2, help="worker processes")
    add("--wire", action="store_true", help="pass messages through the wire's bytes")
    add(
        "--draws",
        type=int,
        choices=range(DRAWS_CLASSIC, DRAWS_NOW + 1),
        default=DRAWS_NOW,
        help="how settings are drawn: as now, or as for older seeds",
    )
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add(
        "--failures",
        type=Path,
        default=FAILURES_FILE,
        help=f"file to which the commands that replay failing seeds are added (default {FAILURES_FILE})",
    )
    return parser


def _flags_text(options: argparse.Namespace) -> str:
    """Return the flags that change the run of a given seed, as text for a replay command.

    The draws are always named: a command that was kept means the same run when there are newer ones.
    """
    return f"{' --wire' if options.wire else ''} --draws {options.draws}"


def _options_text(options: argparse.Namespace) -> str:
    """Return all options that change the run of a given seed, as text for a replay command."""
    return _flags_text(options) + "".join(f" --set {change}" for change in options.set)


# One seed.


def _replay(simulator: Simulator, settings: SimSettings, options: argparse.Namespace) -> int:
    """Run one seed, with its settings and, if asked, its trace."""
    out = sys.stdout
    if not options.json:
        for name, value in settings.describe():
            out.write(f"{name:<22} {value}\n")
        out.write("\n")
    trace = Trace(_print_row if options.trace and not options.json else None)
    result = simulator.run(settings, trace=trace)
    if options.json:
        out.write(json.dumps(_as_json(result)) + "\n")
    else:
        out.write(f"\nseed {result.seed}: {result.verdict.name.lower()} {result.problem}\n")
        out.write(
            f"{result.step_count} steps, {result.virtual_ms} ms, digest {result.digest[:16]}\n"
        )
    return int(result.verdict)


def _shrink(
    simulator: Simulator, drawn: SimSettings, settings: SimSettings, options: argparse.Namespace
) -> int:
    """Look for a smaller run with the same verdict, and print the command that shows it."""
    before = simulator.run(settings)
    if before.verdict is SimVerdict.FINE:
        sys.stdout.write(f"seed {settings.seed} is fine: there is nothing to shrink\n")
        return int(before.verdict)
    smaller = shrink(settings, simulator.run)
    after = simulator.run(smaller)
    changes = "".join(f" --set {change}" for change in assignments(drawn, smaller))
    # `changes` has all of them, those that were asked for included.
    command = simulator.replay_command(settings.seed, options=_flags_text(options))
    sys.stdout.write(
        f"{before.step_count} steps became {after.step_count}: {after.verdict.name.lower()} "
        f"{last_line(after)}\n  {command}{changes}\n"
    )
    return int(after.verdict)


def _print_row(row: str) -> None:
    sys.stdout.write(row + "\n")


def _as_json(result: SimResult) -> dict[str, object]:
    """Return a result as JSON has it, for scripts."""
    return {**asdict(result), "verdict": result.verdict.name.lower()}


# Many seeds.


def run_one(
    simulator: Simulator,
    seed: int,
    *,
    wire: bool = False,
    draws: int = DRAWS_NOW,
    changes: Sequence[str] = (),
) -> SimResult:
    """Draw and run one seed with these knobs changed; for workers."""
    drawn = simulator.draw(seed, wire=wire, draws=draws)
    return simulator.run(override(drawn, changes))


def run_many(
    run: Callable[[int], SimResult], seeds: Iterator[int], *, processes: int, until_s: float
) -> Generator[SimResult]:
    """Run seeds until there are no more or the time is over; results come in the order of the seeds.

    Args:
        run: one seed; for several processes it must be picklable.
        seeds: may be endless.
        processes: 1: in this one.
        until_s: of `time.monotonic`; looked at between rounds.

    Raises:
        WorkersSilentError: no result came for a very long time.
    """
    if processes <= 1:
        for seed in seeds:
            yield run(seed)
            if time.monotonic() >= until_s:
                return
        return
    round_seeds = processes * CHUNK_SEEDS * ROUND_CHUNKS
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(processes, maxtasksperchild=WORKER_CHUNKS) as pool:
        while time.monotonic() < until_s:
            batch = [seed for _, seed in zip(range(round_seeds), seeds, strict=False)]
            if not batch:
                return
            yield from _results(pool, run, batch)


def _results(
    pool: Pool, run: Callable[[int], SimResult], seeds: Sequence[int]
) -> Iterator[SimResult]:
    """Let the workers run these seeds, a few at a time; the results come in the order of the seeds."""
    chunks = [seeds[place : place + CHUNK_SEEDS] for place in range(0, len(seeds), CHUNK_SEEDS)]
    waiting = pool.imap(partial(_run_chunk, run), chunks)
    for chunk in chunks:
        try:
            yield from waiting.next(ANSWER_S_MAX)
        except multiprocessing.TimeoutError as error:
            raise WorkersSilentError(
                f"no result of seeds {chunk[0]} to {chunk[-1]} for {ANSWER_S_MAX:.0f} s: the worker process was "
                "killed (too little memory?), or a run does not end"
            ) from error


def _run_chunk(run: Callable[[int], SimResult], seeds: Sequence[int]) -> list[SimResult]:
    """Run a few seeds; for workers."""
    return [run(seed) for seed in seeds]


def _sweep(simulator: Simulator, options: argparse.Namespace) -> int:
    """Run many seeds and sum up."""
    console = Console(stderr=options.json, highlight=False)
    first = secrets.randbelow(FRESH_SEEDS) if options.first is None else options.first
    seeds = iter(range(first, first + options.seeds)) if options.seconds is None else count(first)
    console.print(
        f"{simulator.title}: {'fresh ' if options.first is None else ''}seeds from {first}"
    )
    started_s = time.monotonic()
    until_s = started_s + (options.seconds if options.seconds is not None else 1e9)
    run = partial(
        run_one,
        simulator,
        wire=options.wire,
        draws=options.draws,
        changes=tuple(options.set),
    )
    tally, failures = Tally(), _kept_failures(simulator, options)
    with (
        console.status("simulating") as status,
        closing(run_many(run, seeds, processes=options.processes, until_s=until_s)) as results,
    ):
        for result in results:
            tally.add(result)
            if result.verdict is not SimVerdict.FINE:
                failures.keep(result)
            status.update(f"simulating: {tally.seed_count} seeds, {tally.bad_count} bad")
    took_s = time.monotonic() - started_s
    if options.json:
        summary = {
            "first": first,
            **tally.summary(took_s),
            "coverage": tally.coverage,
            "reached": tally.reached,
            "in_seeds": tally.seeds,
            "bad": [_as_json(one) for one in tally.bad],
        }
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        show_tally(simulator, console, tally, took_s, options=_options_text(options))
    if tally.bad:
        console.print(f"{KEPT_IN} {options.failures}", soft_wrap=True)
    return tally.exit_code


def _kept_failures(simulator: Simulator, options: argparse.Namespace) -> KeptFailures:
    """Return what keeps the findings of a sweep with these options."""

    def settings_of(seed: int) -> SimSettings:
        return override(simulator.draw(seed, wire=options.wire, draws=options.draws), options.set)

    return KeptFailures(
        options.failures,
        command_of=partial(simulator.replay_command, options=_options_text(options)),
        settings_of=settings_of,
    )


def show_tally(
    simulator: Simulator, console: Console, tally: Tally, took_s: float, *, options: str = ""
) -> None:
    """Print the sums, the count of each fault, and the first findings."""
    table = Table(show_header=False)
    for name, value in tally.summary(took_s).items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    fired = ", ".join(f"{name} {n}" for name, n in sorted(tally.coverage.items()) if n)
    console.print(f"went wrong: {fired or 'nothing'}")
    came = ", ".join(f"{name} {n}" for name, n in sorted(tally.reached.items()) if n)
    console.print(f"came to: {came or 'nothing'}")
    if tally.silent() and tally.seed_count >= SILENT_SEEDS_MIN and "--set" not in options:
        console.print(f"never came, which is a defect: {', '.join(tally.silent())}")
    for result in tally.bad[:PROBLEMS_SHOWN_MAX]:
        replay = simulator.replay_command(result.seed, options=options)
        console.print(f"seed {result.seed} [bold]{result.verdict.name.lower()}[/]: ", end="")
        console.print(last_line(result), markup=False)
        console.print(f"  replay: {replay}", soft_wrap=True)
        console.print(f"  shrink: {replay.replace('--trace', '--shrink')}", soft_wrap=True)
