"""What does the size of a log cost: opening it, memory, snapshots, old messages beside new ones, an empty member?

    python -m bench.log_size [--gib 1 5 10 20] [--readers 10] [--seconds 15] [--per-second 50 200] [--json]

One group of three, one of whose followers loses its store at the beginning; its log grows from size to size, in batches
of messages of 1 KiB. At each size the other follower is ended with SIGKILL and opened again, and ten readers go through
the older half while a producer sends, at each of some steady rates in turn. At the last size the empty member starts
and takes the log, beside sends at the first rate. What these feel is said for stretches as long as the one without it:
a device has its moments, and the p99 of ten minutes meets more of them than that of fifteen seconds. The disk has to
have room for three times the last size. Each figure is of this one run, on this machine.
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
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.catch_up import LOOK_S, applied_index, is_level, runtime_table
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
class ReadingFigures:
    """The times of sends at one rate, alone and beside readers.

    Attributes:
        per_s: the rate.
        without: the sends alone.
        beside_readers: the sends beside readers of old messages.
        read_mib_per_s: what the readers got.
    """

    per_s: float
    without: Felt
    beside_readers: Felt
    read_mib_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigures:
    """The costs of a log of one size.

    Attributes:
        filled_mib_per_s: while it grew to this size.
        opened_s: from the start of a follower that was killed until it has applied what the leader has.
        opened_own_mib: the memory of that follower then, without pages of files.
        leader_own_mib: that of the leader, at the end.
        snapshot: what the leader's log says of its last snapshot; empty before there is one.
        beside: what sends felt, for each rate.
    """

    log_mib: float
    filled_mib_per_s: float
    opened_s: float
    opened_own_mib: float
    leader_own_mib: float
    snapshot: dict[str, float]
    beside: list[ReadingFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpFigures:
    """The time of an empty member for the last size, and what sends felt, in stretches of one length.

    Attributes:
        without: one stretch before, and one after.
        beside_it: all in order; what is left at the end is none.
    """

    seconds: float
    mib_per_s: float
    without: list[Felt]
    beside_it: list[Felt]


@dataclass(frozen=True, slots=True)
class SizeLoad:
    """The load at each size: readers of old messages, and the sends beside them, at these rates in turn."""

    readers: int
    seconds: float
    rates_per_s: tuple[float, ...]


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
        opened_s, opened_mib = reopened(self.follower, self.leader), own_mib(self.follower)
        if not poll(self._has_leader, OPEN_PATIENCE_S):
            raise TimeoutError("the two members did not agree on a leader")
        return opened_s, opened_mib

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

    def read_old(self, load: SizeLoad, per_s: float) -> ReadingFigures:
        """Return what sends at one rate felt without readers and beside them."""
        with self._sends(load, per_s) as (hot, without):
            address = ("127.0.0.1", self.leader.port)
            per_queue = self._messages // QUEUE_COUNT
            reading = ColdReading(address, TOPIC, load.readers, per_queue, load.seconds)
            read_bytes, beside = felt_with_readers(hot, reading)
        return ReadingFigures(
            per_s=per_s,
            without=without,
            beside_readers=beside,
            read_mib_per_s=read_bytes / (1 << 20) / load.seconds,
        )

    def _sends(self, load: SizeLoad, per_s: float) -> AbstractContextManager[tuple[HotSends, Felt]]:
        """Send beside something; see `sends_beside`."""
        return sends_beside(self._group, self.leader, TOPIC, per_s=per_s, seconds=load.seconds)

    def catch_up(self, load: SizeLoad) -> CatchUpFigures:
        """Start the empty member, and wait until it is level.

        Raises:
            TimeoutError: it does not get there.
        """
        with self._sends(load, load.rates_per_s[0]) as (hot, before):
            self.empty.start()
            if not poll(lambda: applied_index(self.empty) > 0, OPEN_PATIENCE_S):
                raise TimeoutError(f"{self.empty.name} takes nothing: {self.empty.log_tail(3)}")
            hot.forget()  # a process that starts takes a core for itself
            began_s = time.monotonic()
            beside = self._felt_until_level(hot, load.seconds)
            took_s = time.monotonic() - began_s
            hot.forget()  # a stretch that is shorter
            time.sleep(load.seconds)
            after = hot.take()
        return CatchUpFigures(
            seconds=took_s,
            mib_per_s=self.log_mib / took_s,
            without=[before, after],
            beside_it=beside,
        )

    def _felt_until_level(self, hot: HotSends, stretch_s: float) -> list[Felt]:
        """Return what sends feel in each stretch that ends before the empty member is level."""
        stretches: list[Felt] = []
        end_s = time.monotonic() + CATCH_UP_PATIENCE_S
        while not poll(partial(is_level, self.empty, self.leader), stretch_s, LOOK_S):
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self.empty.name} has not caught up")
            stretches.append(hot.take())
        return stretches


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
            stages.stage("readers of old messages", 2 * load.seconds * len(load.rates_per_s))
            beside = [growing.read_old(load, per_s) for per_s in load.rates_per_s]
            row = SizeFigures(
                log_mib=growing.log_mib,
                filled_mib_per_s=rate,
                opened_s=opened_s,
                opened_own_mib=opened_mib,
                leader_own_mib=own_mib(growing.leader),
                snapshot=last_snapshot(growing.leader),
                beside=beside,
            )
            rows.append(row)
            stages.line(json.dumps(asdict(row)))
        stages.stage("an empty member catches up", growing.log_mib / FILL_MIB_PER_S)
        return rows, growing.catch_up(load)


def reopened(follower: Process, leader: Process) -> float:
    """End a follower with SIGKILL and start it again; return the seconds until it has applied what the leader has.

    Raises:
        TimeoutError: it does not get there.
    """
    follower.kill()
    began_s = time.monotonic()
    follower.start()
    if not poll(partial(is_level, follower, leader), OPEN_PATIENCE_S):
        raise TimeoutError(f"{follower.name} did not open: {follower.log_tail(3)}")
    return time.monotonic() - began_s


def own_mib(node: Process) -> float:
    """Return the memory of a node that runs, in MiB, without pages of files."""
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
    table = _table(
        "what the size of a log costs",
        *("GiB", "filled MiB/s", "opened s", "with MiB", "leader MiB", "snapshot MB", "pause ms"),
    )
    for row in rows:
        table.add_row(
            f"{row.log_mib / MIB_PER_GIB:.1f}",
            f"{row.filled_mib_per_s:.0f}",
            f"{row.opened_s:.1f}",
            f"{row.opened_own_mib:.0f}",
            f"{row.leader_own_mib:.0f}",
            f"{row.snapshot.get('bytes', 0) / 1e6:.1f}",
            f"{row.snapshot.get('pause_ms', 0):.0f}",
        )
    return table


def reading_table(rows: list[SizeFigures]) -> Table:
    """Return a table with a row for each size and rate of sends."""
    table = _table(
        "sends beside readers of old messages",
        *("GiB", "sends/s", "p50 ms", "p99 ms", "beside: p50", "p99", "ratio", "they got MiB/s"),
    )
    for row in rows:
        for felt in row.beside:
            table.add_row(
                f"{row.log_mib / MIB_PER_GIB:.1f}",
                f"{felt.per_s:g}",
                f"{felt.without.p50_us / 1e3:.1f}",
                f"{felt.without.p99_us / 1e3:.1f}",
                f"{felt.beside_readers.p50_us / 1e3:.1f}",
                f"{felt.beside_readers.p99_us / 1e3:.1f}",
                f"{felt.beside_readers.p99_us / felt.without.p99_us:.1f}",
                f"{felt.read_mib_per_s:.0f}",
            )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def catch_up_text(figures: CatchUpFigures) -> str:
    """Return what an empty member took, and the p99 of sends in each stretch: median and greatest."""
    without, beside = (
        sorted(each.p99_us / 1e3 for each in stretches)
        for stretches in (figures.without, figures.beside_it)
    )
    text = f"an empty member: {figures.seconds:.0f} s, {figures.mib_per_s:.0f} MiB/s; sends: p99 "
    text += " and ".join(f"{each:.1f}" for each in without) + " ms without"
    if beside:
        text += f", {median(beside):.1f} ms beside it (median of {len(beside)} stretches, greatest {beside[-1]:.1f})"
    return text


def main() -> int:
    """Measure once, and print it; 1 where it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="bench.log_size", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 5, 10, 20])
    parser.add_argument("--readers", type=int, default=10, help="of old messages (default 10)")
    parser.add_argument("--seconds", type=float, default=15, help="of each part (default 15)")
    parser.add_argument(
        "--per-second",
        type=float,
        nargs="+",
        default=[50, 200],
        help="sends of the producer, one rate after the other (default 50 200)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    load = SizeLoad(options.readers, options.seconds, tuple(options.per_second))
    sizes_mib = sorted(round(gib * MIB_PER_GIB) for gib in options.gib)
    total_s = 2 * sizes_mib[-1] / FILL_MIB_PER_S + len(sizes_mib) * (
        10 + 2 * load.seconds * len(load.rates_per_s)
    )
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
    console.print(reading_table(rows))
    console.print(catch_up_text(caught_up), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
