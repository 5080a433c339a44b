"""Does a group keep its rate, and its memory, over millions of sends on fresh files?

    python -m bench.sustained [--messages 2000000] [--slices 5] [--in-flight 1024] [--folder DIR] [--json]

Three nodes on this machine, one connection, messages of 1 KiB, synced on a majority before they are answered. For
each slice of the run: sends a second, processor time of the leader, of a follower and of the generator (in C, where
there is a compiler) per message, the memory of the members, and how much the page cache of the machine has grown. A
million messages take 3.6 GiB of disk on the three together.
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

from bench.load.driver import LoadDriver
from bench.load.running import LoadError, RoundPlan
from bench.memory import memory_of
from bench.real_group import BODY_BYTES, QUEUE_COUNT, broker_group
from bench.systems.brokers import MeasuredGroup
from jepsen.processes import Process

TOPIC = "Bench"
FIRST_SECONDS = 5.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of a run. Memory is that at its end, without mapped files; of the page cache, what the run has added."""

    messages: int
    per_second: float
    p99_us: float
    leader_cpu_us: float
    follower_cpu_us: float
    generator_cpu_us: float
    leader_mib: float
    follower_mib: float
    page_cache_mib: float


def measure(folder: Path, *, messages: int, slices: int, in_flight: int) -> list[Slice]:
    """Send so many messages to a new group, in parts.

    A part is a time of the generator, after the rate of the part before it: so parts have about as many messages.

    Raises:
        LoadError: a send was refused, or the generator failed.
        TimeoutError: the group takes no message.
    """
    found: list[Slice] = []
    seconds = FIRST_SECONDS
    with broker_group(folder, TOPIC) as (group, leader, followers):
        members = MeasuredGroup(folder, group.name_servers[0], group.nodes)
        driver = LoadDriver(members, TOPIC, queues=QUEUE_COUNT, body_bytes=BODY_BYTES)
        load = driver.sends(1, in_flight)
        cached_mib = _page_cache_mib()
        while sum(each.messages for each in found) < messages:
            (one,) = driver.run(load, RoundPlan(0, seconds, 1))
            if one.refused or not one.messages:
                raise LoadError(f"{one.refused} sends were refused: {one.error}")
            seconds = messages / slices / one.per_second
            found.append(
                Slice(
                    one.messages,
                    one.per_second,
                    one.p99_us,
                    one.leader_us or 0.0,
                    one.follower_us or 0.0,
                    one.generator_us or 0.0,
                    _own_mib(leader),
                    max(map(_own_mib, followers)),
                    _page_cache_mib() - cached_mib,
                )
            )
    return found


def _own_mib(process: Process) -> float:
    assert process.pid is not None, f"{process.name} does not run"
    return memory_of(process.pid).own_mib


def _page_cache_mib() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Cached:")) / 1024


def show(found: list[Slice], console: Console) -> None:
    """Print one row for each slice."""
    names = ("messages", "sends/s", "p99 ms", "leader us", "follower us", "generator us")
    table = Table(*names, "leader MiB", "follower MiB", "page cache MiB more")
    for each in found:
        table.add_row(
            f"{each.messages:,}",
            f"{each.per_second:,.0f}",
            f"{each.p99_us / 1000:.1f}",
            f"{each.leader_cpu_us:.2f}",
            f"{each.follower_cpu_us:.2f}",
            f"{each.generator_cpu_us:.2f}",
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
