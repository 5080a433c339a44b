"""The frame of measurements of what hot traffic feels: the sends without it and with it, the command, what is printed.

The first part of each run says what the sends take without it. Both parts are of one run, on one machine: trust the
ratio. What "it" is, and the group, are the measurement's own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.hot_sends import Felt, HotSends
from bench.real_group import find_leader
from jepsen.processes import Group, Process


@dataclass(frozen=True, slots=True, kw_only=True)
class HotResult:
    """The outcome of one run: what the sends took without it, and with it."""

    log_mib: float
    without: Felt
    with_it: Felt

    @property
    def p99_ratio(self) -> float:
        """The p99 of the sends with it, in parts of that without."""
        return self.with_it.p99_us / self.without.p99_us

    def headline(self) -> str:
        """Return what was done to a log of this size."""
        return f"log of {self.log_mib:,.0f} MiB"


class HotMeasurement(Protocol):
    """One run of a group in a folder, with the options that all have."""

    def __call__(self, folder: Path, *, mib: int, seconds: float, per_s: float) -> HotResult:
        """Measure."""
        ...


@contextmanager
def sends_beside(
    group: Group, leader: Process, topic: str, *, per_s: float, seconds: float
) -> Iterator[tuple[HotSends, Felt]]:
    """Send to the leader at a steady rate until the block ends; yield the producer, and what the first seconds gave.

    Raises:
        RuntimeError: another node leads by now, or a send was refused.
    """
    if find_leader(group, topic) is not leader:
        raise RuntimeError("another node leads by now: run it again")
    hot = HotSends(("127.0.0.1", leader.port), topic, per_s)
    try:
        time.sleep(seconds)
        yield hot, hot.take()
    finally:
        hot.close()


def make_parser(prog: str, description: str, *, mib: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all of these measurements have; `mib` is the default size of the log."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--mib", type=int, default=mib, help=f"size of the log (default {mib})")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of each part that has a length (default 20)"
    )
    parser.add_argument(
        "--per-second", type=float, default=200, help="sends of the producer (default 200)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def run_once(options: argparse.Namespace, measure: HotMeasurement, *, ratio_goal: float) -> int:
    """Measure once in a folder that is removed, and print it; return the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="dledger-hot-traffic-"))
    try:
        result = measure(
            folder / "group", mib=options.mib, seconds=options.seconds, per_s=options.per_second
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(result, ratio_goal, Console(stderr=options.json))
    if options.json:
        sys.stdout.write(json.dumps(asdict(result) | {"p99_ratio": result.p99_ratio}) + "\n")
    return 0


def _show(result: HotResult, ratio_goal: float, console: Console) -> None:
    console.print(result.headline())
    for name, felt in (("without", result.without), ("with", result.with_it)):
        console.print(
            f"sends {name}: p50 {felt.p50_us:,.0f} us, p99 {felt.p99_us:,.0f} us ({felt.count})"
        )
    console.print(f"p99 with / without: {result.p99_ratio:.2f} (goal: at most {ratio_goal})")
