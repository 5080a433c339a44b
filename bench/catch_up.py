"""What does hot traffic feel while an empty member catches up, and how fast does that go?

    python -m bench.catch_up [--mib 1024] [--seconds 20] [--per-second 200] [--rate-mib 64] [--json]

A group of three loses one follower's store, and gets a log of so many MiB. A producer sends at a steady rate; then the
empty member starts, and takes the log. Snapshots are off: the member gets every entry. The first part of the run says
what the sends take without that. Both are of one run, on one machine: trust the ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.broker import call, find_leader, made_topic
from bench.filling import fill, mib_of
from bench.hot_sends import Felt, HotSends
from bench.loadgen import FrameTemplate
from jepsen.processes import Group, Process, poll

TOPIC: Final = "CatchUp"
PATIENCE_S: Final = 3600.0
START_PATIENCE_S: Final = 60.0
RATIO_GOAL: Final = 1.5


@dataclass(frozen=True, slots=True)
class CatchUpResult:
    """The outcome of one run."""

    log_mib: float
    seconds: float
    mib_per_s: float
    without: Felt
    with_it: Felt

    @property
    def p99_ratio(self) -> float:
        """The p99 of the sends with it, in parts of that without."""
        return self.with_it.p99_us / self.without.p99_us


def applied_index(node: Process) -> int:
    """Return the last entry that a node has applied; 0 while it does not answer."""
    with contextlib.suppress(OSError, LookupError, ValueError):
        header, body = call(("127.0.0.1", node.port), FrameTemplate(28, {}))
        if header["code"] == 0:
            return int(json.loads(body)["table"]["raftAppliedIndex"])
    return 0


def is_level(node: Process, leader: Process) -> bool:
    """Return whether a node has applied what the leader has, but for what is under way."""
    return applied_index(node) >= applied_index(leader) - 5 > 0


def measure(
    folder: Path, *, mib: int, seconds: float, per_s: float, rate_mib: int
) -> CatchUpResult:
    """Run a group through it.

    Raises:
        TimeoutError: the group or the member did not get there.
        RuntimeError: a send was refused.
    """
    settings = f"snapshotLogBytes=0\ncatchUpBytesPerSecond={rate_mib << 20}\n"
    with Group(folder, settings=settings) as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, TOPIC)
        empty = next(node for node in group.nodes if node is not leader)
        empty.stop()
        shutil.rmtree(folder / empty.name)
        log_mib = mib_of(fill(leader, TOPIC, mib))
        if find_leader(group, TOPIC) is not leader:
            raise RuntimeError("another node leads by now: run it again")
        hot = HotSends(("127.0.0.1", leader.port), TOPIC, per_s)
        try:
            time.sleep(seconds)
            without = hot.take()
            empty.start()
            if not poll(lambda: applied_index(empty) > 0, START_PATIENCE_S):
                raise TimeoutError(f"{empty.name} takes nothing: {empty.log_tail(3)}")
            hot.take()  # a process that starts takes a core for itself
            began_s = time.monotonic()
            first, last = applied_index(empty), applied_index(leader)
            if not poll(partial(is_level, empty, leader), PATIENCE_S):
                raise TimeoutError(f"{empty.name} has not caught up after {PATIENCE_S:g} s")
            took_s = time.monotonic() - began_s
            with_it = hot.take()
        finally:
            hot.close()
        moved_mib = log_mib * (last - first) / last
        return CatchUpResult(log_mib, took_s, moved_mib / took_s, without, with_it)


def show(result: CatchUpResult, console: Console) -> None:
    """Print what came out."""
    console.print(
        f"log of {result.log_mib:,.0f} MiB: caught up in {result.seconds:.1f} s, {result.mib_per_s:.1f} MiB/s"
    )
    for name, felt in (("without", result.without), ("with", result.with_it)):
        console.print(
            f"sends {name}: p50 {felt.p50_us:,.0f} us, p99 {felt.p99_us:,.0f} us ({felt.count})"
        )
    console.print(f"p99 with / without: {result.p99_ratio:.2f} (goal: at most {RATIO_GOAL})")


def main() -> int:
    """Measure once, and print it."""
    parser = argparse.ArgumentParser(
        prog="bench.catch_up", description="what hot traffic feels while a member catches up"
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the log (default 1024)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of the part without it (default 20)"
    )
    parser.add_argument(
        "--per-second", type=float, default=200, help="sends of the producer (default 200)"
    )
    parser.add_argument(
        "--rate-mib", type=int, default=64, help="catchUpBytesPerSecond in MiB; 0: no bound"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dledger-catch-up-"))
    try:
        result = measure(
            folder / "group",
            mib=options.mib,
            seconds=options.seconds,
            per_s=options.per_second,
            rate_mib=options.rate_mib,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(result, Console(stderr=options.json))
    if options.json:
        sys.stdout.write(json.dumps(asdict(result) | {"p99_ratio": result.p99_ratio}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
