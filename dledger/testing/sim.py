"""The simulator's command: many seeds, or one seed with its trace, or one made smaller.

    python -m dledger.testing.sim --seeds 1000
    python -m dledger.testing.sim --seed 7 --trace --set client_count=1
    python -m dledger.testing.sim --seed 7 --shrink

Exit codes: 0 all runs fine; 1 a run was wrong (a promise was broken), 3 stuck (no progress without
faults), 4 crashed (a member raised); with several findings the smallest code.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dledger.testing.sim_settings import SimSettings, draw_settings
from dledger.testing.sim_shrink import assignments, override, shrink
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import SimResult, Verdict, run_seed, run_settings

CHUNK_SEEDS = 4
"""Seeds that a worker process takes at a time."""

PROBLEMS_SHOWN_MAX = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.seed is None:
        return _sweep(options)
    drawn = draw_settings(options.seed, wire=options.wire)
    settings = override(drawn, options.set)
    return _shrink(drawn, settings) if options.shrink else _replay(settings, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dledger.testing.sim",
        description="Simulate whole groups under seeds: faults first, then a demand for progress.",
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for a smaller run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="with --seed: change a knob",
    )
    parser.add_argument("--processes", type=int, default=2, help="worker processes")
    parser.add_argument(
        "--wire", action="store_true", help="pass messages through the wire's bytes"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    return parser


def replay_command(seed: int, *, wire: bool) -> str:
    """The command that shows a run again."""
    return f"python -m dledger.testing.sim --seed {seed} --trace{' --wire' if wire else ''}"


def _replay(settings: SimSettings, options: argparse.Namespace) -> int:
    """Run one seed, with its settings and, if asked, its trace."""
    out = sys.stdout
    if not options.json:
        for name, value in settings.describe():
            out.write(f"{name:<22} {value}\n")
        out.write("\n")
    trace = Trace(_print_row if options.trace and not options.json else None)
    result = run_settings(settings, trace=trace)
    if options.json:
        out.write(json.dumps(_as_json(result)) + "\n")
    else:
        out.write(f"\nseed {result.seed}: {result.verdict.name.lower()} {result.problem}\n")
        out.write(
            f"{result.step_count} steps, {result.virtual_ms} ms, digest {result.digest[:16]}\n"
        )
    return int(result.verdict)


def _shrink(drawn: SimSettings, settings: SimSettings) -> int:
    """Look for a smaller run with the same verdict, and print the command that shows it."""
    before = run_settings(settings)
    if before.verdict is Verdict.FINE:
        sys.stdout.write(f"seed {settings.seed} is fine: there is nothing to shrink\n")
        return int(before.verdict)
    smaller = shrink(settings, run_settings)
    after = run_settings(smaller)
    changes = "".join(f" --set {change}" for change in assignments(drawn, smaller))
    sys.stdout.write(
        f"{before.step_count} steps became {after.step_count}: {after.verdict.name.lower()} "
        f"{after.problem.strip().splitlines()[-1]}\n"
        f"  {replay_command(settings.seed, wire=False)}{changes}\n"
    )
    return int(after.verdict)


def _print_row(row: str) -> None:
    sys.stdout.write(row + "\n")


def _as_json(result: SimResult) -> dict[str, object]:
    """A result for scripts."""
    return {**asdict(result), "verdict": result.verdict.name.lower()}


def _run(seeds: range, processes: int, *, wire: bool) -> Generator[SimResult]:
    """Run seeds, in worker processes if more than one is asked for; results come in order."""
    run = partial(run_seed, wire=wire)
    if processes <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(run, seeds, chunksize=CHUNK_SEEDS)


def _sweep(options: argparse.Namespace) -> int:
    """Run many seeds and sum up."""
    seeds = range(options.first, options.first + options.seeds)
    console = Console(stderr=options.json)
    started = time.perf_counter()
    results: list[SimResult] = []
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console, transient=True) as progress,
        closing(_run(seeds, options.processes, wire=options.wire)) as runs,
    ):
        task = progress.add_task("", total=len(seeds), state="")
        for result in runs:
            results.append(result)
            bad_count = sum(1 for done in results if done.verdict is not Verdict.FINE)
            progress.update(task, advance=1, state=f"{bad_count} bad" if bad_count else "")
    took_s = time.perf_counter() - started
    bad = [result for result in results if result.verdict is not Verdict.FINE]
    if options.json:
        summary = _summary(results, took_s)
        sys.stdout.write(json.dumps({**summary, "bad": [_as_json(one) for one in bad]}) + "\n")
    else:
        _show(console, results, bad, took_s, wire=options.wire)
    return min((int(result.verdict) for result in bad), default=0)


def _summary(results: Sequence[SimResult], took_s: float) -> dict[str, float]:
    """Sums over all runs."""
    return {
        "seeds": len(results),
        "seconds": round(took_s, 2),
        "seeds_per_second": round(len(results) / took_s, 1),
        "steps": sum(result.step_count for result in results),
        "virtual_seconds": sum(result.virtual_ms for result in results) // 1000,
        "terms_led": sum(result.leader_count for result in results),
        "faults": sum(result.fault_count for result in results),
        "entries_committed": sum(result.committed_count for result in results),
        "acknowledged": sum(result.calls.acknowledged for result in results),
        "refused": sum(result.calls.refused for result in results),
        "unknown": sum(result.calls.unknown for result in results),
        "reads": sum(result.calls.reads for result in results),
        "transfers": sum(result.calls.transfers for result in results),
        **{
            verdict.name.lower(): sum(1 for result in results if result.verdict is verdict)
            for verdict in Verdict
        },
    }


def _show(
    console: Console,
    results: Sequence[SimResult],
    bad: Sequence[SimResult],
    took_s: float,
    *,
    wire: bool,
) -> None:
    """Print the sums and the first findings."""
    table = Table(show_header=False)
    for name, value in _summary(results, took_s).items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    for result in bad[:PROBLEMS_SHOWN_MAX]:
        last_line = result.problem.strip().splitlines()[-1]
        console.print(f"seed {result.seed} [bold]{result.verdict.name.lower()}[/]: ", end="")
        console.print(last_line, markup=False, highlight=False)
        console.print(f"  replay: {replay_command(result.seed, wire=wire)}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
