"""Does a group keep its rate, and its memory, over millions of sends on fresh files?

    python -m bench.sustained [--messages 2000000] [--slices 5] [--in-flight 1024] [--folder DIR] [--json]

Three nodes on this machine, one connection, messages of 1 KiB, synced on a majority before they are answered. For
each slice of the run: sends a second, processor time of the leader and of a follower per message, their memory,
and how much the page cache of the machine has grown. A million messages take 3.6 GiB of disk on the three together.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.cpu import process_cpu_seconds
from bench.loadgen import run_load, send_template
from bench.memory import memory_of
from bench.real_group import BODY_BYTES, QUEUE_COUNT, broker_group
from jepsen.processes import Process

TOPIC = "Bench"
SECONDS_MAX = 3600.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of a run. Memory is that at its end, without mapped files; of the page cache, what the run has added."""

    messages: int
    per_second: float
    p99_us: float
    leader_cpu_us: float
    follower_cpu_us: float
    leader_mib: float
    follower_mib: float
    page_cache_mib: float


def measure(folder: Path, *, messages: int, slices: int, in_flight: int) -> list[Slice]:
    """Send so many messages to a new group, in parts.

    Raises:
        RuntimeError: a send was refused.
    """
    found: list[Slice] = []
    templates = [send_template(TOPIC, queue, b"x" * BODY_BYTES) for queue in range(QUEUE_COUNT)]
    with broker_group(folder, TOPIC) as (_, leader, followers):
        cached_mib = _page_cache_mib()
        for _ in range(slices):
            before_s = [_cpu_seconds(leader), *map(_cpu_seconds, followers)]
            result = run_load(
                ("127.0.0.1", leader.port),
                lambda number: templates[number % QUEUE_COUNT].frame(number),
                in_flight=in_flight,
                seconds=SECONDS_MAX,
                count=messages // slices,
            )
            if result.refused:
                raise RuntimeError(f"{result.refused} sends were refused")
            after_s = [_cpu_seconds(leader), *map(_cpu_seconds, followers)]
            leader_us, *followers_us = (
                1e6 * (end - begin) / result.requests
                for begin, end in zip(before_s, after_s, strict=True)
            )
            found.append(
                Slice(
                    result.requests,
                    result.per_second,
                    result.p99_us,
                    leader_us,
                    sum(followers_us) / len(followers_us),
                    _own_mib(leader),
                    max(map(_own_mib, followers)),
                    _page_cache_mib() - cached_mib,
                )
            )
    return found


def _cpu_seconds(process: Process) -> float:
    assert process.pid is not None, f"{process.name} does not run"
    return process_cpu_seconds(process.pid)


def _own_mib(process: Process) -> float:
    assert process.pid is not None, f"{process.name} does not run"
    return memory_of(process.pid).own_mib


def _page_cache_mib() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Cached:")) / 1024


def show(found: list[Slice], console: Console) -> None:
    """Print one row for each slice."""
    names = ("messages", "sends/s", "p99 ms", "leader us", "follower us")
    table = Table(*names, "leader MiB", "follower MiB", "page cache MiB more")
    for each in found:
        table.add_row(
            f"{each.messages:,}",
            f"{each.per_second:,.0f}",
            f"{each.p99_us / 1000:.1f}",
            f"{each.leader_cpu_us:.2f}",
            f"{each.follower_cpu_us:.2f}",
            f"{each.leader_mib:.0f}",
            f"{each.follower_mib:.0f}",
            f"{each.page_cache_mib:,.0f}",
        )
    console.print(table)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.sustained", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="make the stores here, and remove them")
    parser.add_argument("--json", action="store_true", help="print the slices as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dledger-bench-", dir=options.folder))
    try:
        found = measure(
            folder / "g",
            messages=options.messages,
            slices=options.slices,
            in_flight=options.in_flight,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
        return 0
    show(found, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
