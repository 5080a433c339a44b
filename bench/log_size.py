"""What does the size of a log cost: opening it, memory, snapshots, old messages beside new ones, an empty member?

    python -m bench.log_size [--gib 1 5 10 20] [--readers 10] [--seconds 15] [--per-second 50] [--json]

One group of three, one of whose followers loses its store at the beginning; its log grows from size to size, in batches
of messages of 1 KiB. At each size the other follower is ended with SIGKILL and opened again, and ten readers go through
the older half while a producer sends at a steady rate. At the last one the empty member starts and takes the log. The
disk has to have room for three times the last size. Each figure is of this one run, on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.catch_up import applied_index, is_level, runtime_table
from bench.cold_readers import ColdReading, felt_with_readers
from bench.filling import fill, mib_of
from bench.hot_sends import Felt, HotSends
from bench.hot_traffic import sends_beside
from bench.memory import memory_of
from bench.progress import StageBar, Stages
from bench.real_group import QUEUE_COUNT, find_leader, made_topic
from jepsen.processes import Group, Process, poll

TOPIC: Final = "LogSize"
MIB_PER_GIB: Final = 1024
SPARE_GIB: Final = 4
OPEN_PATIENCE_S: Final = 300.0
CATCH_UP_PATIENCE_S: Final = 7200.0
FILL_MIB_PER_S: Final = 40
"""For the bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigures:
    """The costs of a log of one size.

    Attributes:
        filled_mib_per_s: while it grew to this size.
        opened_s: from the start of a follower that was killed until it has applied what the leader has.
        opened_own_mib: the memory of that follower then, without pages of files.
        leader_own_mib: that of the leader, at the end.
        snapshot: what the leader's log says of its last snapshot; empty before there is one.
        without: the sends alone.
        beside_readers: the sends beside readers of old messages.
        read_mib_per_s: what the readers got.
    """

    log_mib: float
    filled_mib_per_s: float
    opened_s: float
    opened_own_mib: float
    leader_own_mib: float
    snapshot: dict[str, float]
    without: Felt
    beside_readers: Felt
    read_mib_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpFigures:
    """The time of an empty member for the last size, and what sends felt."""

    seconds: float
    mib_per_s: float
    without: Felt
    beside_it: Felt


@dataclass(frozen=True, slots=True)
class SizeLoad:
    """The load at each size: readers of old messages, and the sends beside them."""

    readers: int
    seconds: float
    per_s: float


class GrowingGroup:
    """A group of three whose log grows, and one of whose followers has no store yet."""

    def __init__(self, group: Group) -> None:
        """Start a group, create the topic, and take one follower's store.

        Raises:
            TimeoutError: nobody leads.
        """
        self._group = group
        self.leader = made_topic(group, TOPIC)
        self.empty, self.follower = (node for node in group.nodes if node is not self.leader)
        self.empty.stop()
        shutil.rmtree(group.folder / self.empty.name)
        self._messages = 0

    @property
    def log_mib(self) -> float:
        """The size of the log now, nearly."""
        return mib_of(self._messages)

    def grow(self, mib: int) -> float:
        """Fill the log up to a size; return how many MiB a second it took."""
        began_s, before_mib = time.monotonic(), self.log_mib
        wanted_mib = ceil(mib - before_mib)
        if wanted_mib > 0:
            self._messages += fill(self.leader, TOPIC, wanted_mib)
        return (self.log_mib - before_mib) / (time.monotonic() - began_s)

    def reopen(self) -> tuple[float, float]:
        """End the follower with SIGKILL and start it again; return the seconds until it is level, and its MiB then.

        Raises:
            TimeoutError: it does not get there.
        """
        self.follower.kill()
        began_s = time.monotonic()
        self.follower.start()
        if not poll(partial(is_level, self.follower, self.leader), OPEN_PATIENCE_S):
            raise TimeoutError(f"{self.follower.name} did not open: {self.follower.log_tail(3)}")
        opened_s, own_mib = time.monotonic() - began_s, _own_mib(self.follower)
        if not poll(self._has_leader, OPEN_PATIENCE_S):
            raise TimeoutError("the two members did not agree on a leader")
        return opened_s, own_mib

    def _has_leader(self) -> bool:
        """Take note who leads: there was no majority meanwhile, so it may be the one that was opened again."""
        told = {leader_told_by(node) for node in (self.leader, self.follower)}
        with contextlib.suppress(LookupError, OSError):
            leader = find_leader(self._group, TOPIC)
            if told == {leader.name}:
                if leader is self.follower:
                    self.leader, self.follower = self.follower, self.leader
                return True
        return False

    def read_old(self, load: SizeLoad) -> tuple[Felt, Felt, float]:
        """Return what sends felt without readers and beside them, and the MiB a second that these got."""
        with self.sends(load) as (hot, without):
            address = ("127.0.0.1", self.leader.port)
            per_queue = self._messages // QUEUE_COUNT
            reading = ColdReading(address, TOPIC, load.readers, per_queue, load.seconds)
            read_bytes, beside = felt_with_readers(hot, reading)
        return without, beside, read_bytes / (1 << 20) / load.seconds

    def sends(self, load: SizeLoad) -> AbstractContextManager[tuple[HotSends, Felt]]:
        """Send beside something; see `sends_beside`."""
        return sends_beside(self._group, self.leader, TOPIC, per_s=load.per_s, seconds=load.seconds)

    def catch_up(self, load: SizeLoad) -> CatchUpFigures:
        """Start the empty member, and wait until it is level.

        Raises:
            TimeoutError: it does not get there.
        """
        with self.sends(load) as (hot, without):
            self.empty.start()
            if not poll(lambda: applied_index(self.empty) > 0, OPEN_PATIENCE_S):
                raise TimeoutError(f"{self.empty.name} takes nothing: {self.empty.log_tail(3)}")
            hot.take()  # a process that starts takes a core for itself
            began_s = time.monotonic()
            if not poll(partial(is_level, self.empty, self.leader), CATCH_UP_PATIENCE_S):
                raise TimeoutError(f"{self.empty.name} has not caught up")
            took_s = time.monotonic() - began_s
            beside = hot.take()
        return CatchUpFigures(
            seconds=took_s, mib_per_s=self.log_mib / took_s, without=without, beside_it=beside
        )


def leader_told_by(node: Process) -> str:
    """Return who leads by a node's own word; empty while it does not say."""
    return runtime_table(node).get("raftLeader", "")


def last_snapshot(node: Process) -> dict[str, float]:
    """Return what a node's log says of its last snapshot: bytes, part_bytes, seconds, pause_ms, held_ms."""
    found: dict[str, float] = {}
    with node.log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if "snapshot-taken" in line:
                found = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", line)}
    return {name: value for name, value in found.items() if name not in ("node", "term")}


def measure(
    folder: Path, sizes_mib: list[int], load: SizeLoad, stages: Stages, *, settings: str = ""
) -> tuple[list[SizeFigures], CatchUpFigures]:
    """Run one group through all sizes.

    Raises:
        TimeoutError: the group or a member did not get there.
        RuntimeError: a request was refused, or another node leads by now.
    """
    rows = []
    with Group(folder, settings=settings) as group:
        group.start()
        group.wait_listening()
        growing = GrowingGroup(group)
        for size_mib in sizes_mib:
            more_mib = size_mib - growing.log_mib
            stages.stage(f"filling up to {size_mib:,} MiB", more_mib / FILL_MIB_PER_S)
            rate = growing.grow(size_mib)
            stages.stage("opening", 10)
            opened_s, opened_mib = growing.reopen()
            stages.stage("readers of old messages", 2 * load.seconds)
            without, beside, read = growing.read_old(load)
            row = SizeFigures(
                log_mib=growing.log_mib,
                filled_mib_per_s=rate,
                opened_s=opened_s,
                opened_own_mib=opened_mib,
                leader_own_mib=_own_mib(growing.leader),
                snapshot=last_snapshot(growing.leader),
                without=without,
                beside_readers=beside,
                read_mib_per_s=read,
            )
            rows.append(row)
            stages.line(json.dumps(asdict(row)))
        stages.stage("an empty member catches up", growing.log_mib / FILL_MIB_PER_S)
        return rows, growing.catch_up(load)


def _own_mib(node: Process) -> float:
    assert node.pid is not None, f"{node.name} does not run"
    return memory_of(node.pid).own_mib


@contextmanager
def folder_with_room(gib: float) -> Iterator[Path]:
    """Make a folder that is removed at the end.

    Raises:
        RuntimeError: its disk has no room.
    """
    with tempfile.TemporaryDirectory(prefix="dledger-log-size-") as folder:
        free_gib = shutil.disk_usage(folder).free / (1 << 30)
        if free_gib < gib:
            raise RuntimeError(
                f"{folder} has room for {free_gib:.0f} GiB, and {gib:.0f} are needed: "
                "set TMPDIR, or measure smaller logs"
            )
        yield Path(folder)


def size_table(rows: list[SizeFigures]) -> Table:
    """Return a table with a row for each size."""
    table = Table(title="what the size of a log costs")
    for column in ("GiB", "filled MiB/s", "opened s", "with MiB", "leader MiB", "snapshot MB"):
        table.add_column(column, justify="right")
    for column in ("pause ms", "p50 ms", "p99 ms", "beside readers", "ratio", "they got MiB/s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.log_mib / MIB_PER_GIB:.1f}",
            f"{row.filled_mib_per_s:.0f}",
            f"{row.opened_s:.1f}",
            f"{row.opened_own_mib:.0f}",
            f"{row.leader_own_mib:.0f}",
            f"{row.snapshot.get('bytes', 0) / 1e6:.1f}",
            f"{row.snapshot.get('pause_ms', 0):.0f}",
            f"{row.without.p50_us / 1e3:.1f}",
            f"{row.without.p99_us / 1e3:.1f}",
            f"{row.beside_readers.p99_us / 1e3:.1f}",
            f"{row.beside_readers.p99_us / row.without.p99_us:.1f}",
            f"{row.read_mib_per_s:.0f}",
        )
    return table


def main() -> int:
    """Measure once, and print it; 1 where it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="bench.log_size", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 5, 10, 20])
    parser.add_argument("--readers", type=int, default=10, help="of old messages (default 10)")
    parser.add_argument("--seconds", type=float, default=15, help="of each part (default 15)")
    parser.add_argument(
        "--per-second", type=float, default=50, help="sends of the producer (default 50)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    load = SizeLoad(options.readers, options.seconds, options.per_second)
    sizes_mib = sorted(round(gib * MIB_PER_GIB) for gib in options.gib)
    total_s = 2 * sizes_mib[-1] / FILL_MIB_PER_S + len(sizes_mib) * (10 + 2 * load.seconds)
    try:
        with (
            folder_with_room(3 * sizes_mib[-1] / MIB_PER_GIB + SPARE_GIB) as folder,
            StageBar(console, total_s) as stages,
        ):
            rows, caught_up = measure(folder / "group", sizes_mib, load, stages)
    except (RuntimeError, TimeoutError, OSError) as error:
        console.print(f"not measured: {error}", markup=False)
        return 1
    if options.json:
        outcome = {"sizes": [asdict(row) for row in rows], "catch_up": asdict(caught_up)}
        sys.stdout.write(json.dumps(outcome) + "\n")
        return 0
    console.print(size_table(rows))
    console.print(
        f"an empty member: {caught_up.seconds:.0f} s, {caught_up.mib_per_s:.0f} MiB/s; sends: p99 "
        f"{caught_up.without.p99_us / 1e3:.1f} ms without, {caught_up.beside_it.p99_us / 1e3:.1f} ms beside it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
