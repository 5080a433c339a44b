"""What do a million popped messages cost that nobody has acknowledged yet?

    python -m bench.pops [--in-flight 1,100000,1000000] [--no-group] [--json]

First the fold, in processes of their own without a log, a network or clients, as a leader folds (it knows its entries)
and as a follower does (it reads their bytes): with so many messages in flight, what a pop of one message and its
acknowledgement cost, and the memory and the snapshot that all of them take. They are in flight *alone*, each popped by
itself, or *together*, 32 by 32, as clients pop.

Then a group of three real processes, with the messages popped 32 by 32: the memory of leader and followers, and
how long one client waits for a `receive` of one message and for its `ack`.

Costs are microseconds of processor time, the median of some rounds. Memory is the process's own, above what it had
before the first pop. "MB" is a snapshot's file, "stop" the processor time of its longest step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.table import Table

from bench.loadgen import batch_template, run_load
from bench.memory import memory_of
from bench.real_group import BATCH_COUNT, QUEUE_COUNT, broker_group, find_leader
from bench.snapshot import START_MS, Filling, measure_snapshot
from broker.store.control import AckMessages, PopMessages, PutTopic
from broker.store.topics import TopicConfig
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore
from dledger_mq import AckError, SimpleConsumer
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from jepsen.processes import Group, Process

TOPIC: Final = "Popped"
GROUP: Final = "bench"
QUEUES: Final = 16
INVISIBLE_MS: Final = 3 * 24 * 3_600_000
ROUNDS: Final = 200
"""Entries of QUEUES pops, and as many of acknowledgements."""

POP_COUNTS: Final = {"alone": 1, "together": 32}
ROLES: Final = ("leader", "follower")
POPPERS: Final = 16
ASKED: Final = 200
IN_VAIN_MAX: Final = 60
REFUSALS_MAX: Final = 10
"""Bursts of sends of which nothing was taken, one after the other: a starved group may be electing."""

SPARE: Final = 20_000
"""Messages more than are wanted in flight: those of a pop whose answer was lost are counted nowhere."""

_TERM: Final = Term(1)


@dataclass(frozen=True, slots=True)
class FlightCost:
    """The costs of one replica with so many messages in flight; "stage" is what a leader does before the fold."""

    role: str
    popped: str
    in_flight: int
    memory_mib: float
    stage_pop_us: float
    fold_pop_us: float
    stage_ack_us: float
    fold_ack_us: float
    snapshot_mb: float
    snapshot_s: float
    stop_ms: float
    opened_s: float


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The same of a group of real processes, with its memory in MiB, all of it."""

    in_flight: int
    leader_mib: float
    followers_mib: tuple[float, ...]
    receive_ms: float
    ack_ms: float


class Flight(Filling):
    """A state with one topic, whose messages are popped and acknowledged in turn over its queues."""

    def __init__(self, folder: Path, *, is_leader: bool) -> None:
        super().__init__(folder, QUEUES)
        self._is_leader = is_leader
        self._stands: list[int | None] = [None] * QUEUES
        self._now_ms = START_MS
        self.staging.stage_control(PutTopic(TopicConfig(TOPIC, QUEUES, QUEUES)), START_MS)
        self._fold()

    def send(self, count: int) -> None:
        """Store so many small messages."""
        for first in range(0, count, 512):
            for number in range(first, min(first + 512, count)):
                self.staging.stage(
                    TOPIC.encode(),
                    QueueId(number % QUEUES),
                    b"x",
                    b"",
                    born_timestamp_ms=START_MS,
                    born_host=bytes(8),
                )
            self._fold()

    def pop(self, count: int, pops: int = QUEUES) -> tuple[list[AckMessages], float, float]:
        """Pop so many messages of each of the first queues (`pops` of them), in one entry.

        Returns:
            The acknowledgements of them, and the seconds of staging and fold.
        """
        began_s = time.process_time()
        places = []
        for queue in range(pops):
            stands = self._stands[queue]
            first = QueueOffset(stands or 0)
            command = PopMessages(
                *(GROUP, TOPIC, QueueId(queue)),
                at=None if stands is None else QueueOffset(stands),
                first=first,
                end=QueueOffset(first + count),
                taken=[QueueOffset(each) for each in range(count)],
                again=[],
                invisible_ms=INVISIBLE_MS,
            )
            places.append(self.staging.stage_control(command, self._now_ms))
            self._stands[queue] = first + count
        stage_s, fold_s, offsets = self._fold(began_s)
        acks = []
        for queue, place in enumerate(places):
            outcome = self.state.pops.outcome(offsets[place])
            assert outcome is not None, f"the pop of queue {queue} is forgotten"
            assert outcome.is_taken, f"queue {queue}: {outcome}"
            end = self._stands[queue] or 0
            handles = [(QueueOffset(each), outcome.popped_ms) for each in range(end - count, end)]
            acks.append(AckMessages(GROUP, TOPIC, QueueId(queue), handles))
        return acks, stage_s, fold_s

    def acknowledge(self, acks: Sequence[AckMessages]) -> tuple[float, float]:
        """Acknowledge, in one entry; return the seconds of staging and fold."""
        before, began_s = self.state.pops.count, time.process_time()
        for ack in acks:
            self.staging.stage_control(ack, self._now_ms)
        stage_s, fold_s, _ = self._fold(began_s)
        done = before - self.state.pops.count
        assert done == sum(len(ack.handles) for ack in acks), f"{done} of {len(acks)} are done"
        return stage_s, fold_s

    def _fold(self, began_s: float = 0.0) -> tuple[float, float, list[PhysicalOffset]]:
        """Build an entry of what is staged and fold it."""
        self._now_ms += 1
        staged = self.staging.build_entry(self.position, self._now_ms)
        index = Index(self.state.applied_index + 1)
        entry = Entry(index, _TERM, self.position, EntryKind.NORMAL, staged.body)
        self.position = entry.end_position
        built_s = time.process_time()
        if self._is_leader:
            self.staging.proposed(staged, EntryId(entry.term, entry.index))
        self.state.apply([entry])
        folded_s = time.process_time()
        assert not self.state.refusals.count, f"refused: {self.state.refusals.newest}"
        offsets = staged.physical_offsets(0, len(staged.records))
        return built_s - began_s, folded_s - built_s, offsets


def measure_fold(levels: Sequence[int], role: str, popped: str) -> list[FlightCost]:
    """Measure one replica at each level, the lowest first; for a process of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="dledger-pops-") as name:
        folder = Path(name)
        flight = Flight(folder / "a", is_leader=role == "leader")
        flight.send(max(levels) + (len(levels) + 2) * (ROUNDS + 2) * QUEUES)
        for ack in _some(flight):
            flight.acknowledge([ack])
        before_mib = _own_mib()
        store = SnapshotStore(PosixDisk(folder))
        for level in sorted(levels):
            _raise_to(flight, level, POP_COUNTS[popped])
            memory_mib = _own_mib() - before_mib
            rounds = [_round(flight) for _ in range(ROUNDS)]
            assert flight.state.pops.count == level, f"{flight.state.pops.count} are in flight"
            stage_pop_us, fold_pop_us, stage_ack_us, fold_ack_us = (
                1e6 * statistics.median(column) / QUEUES for column in zip(*rounds, strict=True)
            )
            cost = measure_snapshot("in parts", flight, store, folder)
            found.append(
                FlightCost(
                    role,
                    popped,
                    level,
                    memory_mib,
                    stage_pop_us,
                    fold_pop_us,
                    stage_ack_us,
                    fold_ack_us,
                    snapshot_mb=cost.size_bytes / 1e6,
                    snapshot_s=cost.taken_s,
                    stop_ms=cost.stop_ms,
                    opened_s=cost.opened_s,
                )
            )
    return found


def _some(flight: Flight) -> list[AckMessages]:
    return flight.pop(1)[0]


def _raise_to(flight: Flight, level: int, count: int) -> None:
    """Pop until so many messages are in flight."""
    while (left := level - flight.state.pops.count) > 0:
        if left >= QUEUES * count:
            flight.pop(count)
        else:
            flight.pop(1, pops=min(left, QUEUES))


def _round(flight: Flight) -> tuple[float, float, float, float]:
    """Pop one message of each queue, and acknowledge each by itself; return the seconds of the four steps."""
    acks, stage_pop_s, fold_pop_s = flight.pop(1)
    return (stage_pop_s, fold_pop_s, *flight.acknowledge(acks))


def _own_mib() -> float:
    gc.collect()
    return memory_of(os.getpid()).own_mib


def measure_all_folds(levels: Sequence[int]) -> list[FlightCost]:
    """Measure each role and way of popping, each in a process of its own, one after the other."""
    found = []
    for role in ROLES:
        for popped in POP_COUNTS:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found += pool.submit(measure_fold, levels, role, popped).result()
    return found


async def measure_group(group: Group, levels: Sequence[int]) -> list[GroupCost]:
    """Pop the messages of a group of processes, up to each level."""
    found = []
    async with SimpleConsumer(
        group.namesrv, GROUP, subscriptions={TOPIC: "*"}, start_from="first", timeout_s=60
    ) as consumer:
        in_flight = 0
        for level in sorted(levels):
            in_flight += await _pop_until(consumer, level - in_flight)
            receive_s, ack_s = await _ask(consumer)
            leader = find_leader(group, TOPIC)
            followers = [node for node in group.nodes if node is not leader]
            found.append(
                GroupCost(
                    in_flight,
                    _memory_mib(leader),
                    tuple(map(_memory_mib, followers)),
                    statistics.median(receive_s) * 1000,
                    statistics.median(ack_s) * 1000,
                )
            )
    return found


def _memory_mib(node: Process) -> float:
    assert node.pid is not None, f"{node.name} has ended"
    return memory_of(node.pid).own_mib


async def _pop_until(consumer: SimpleConsumer, count: int) -> int:
    """Receive at least so many messages; return how many."""
    got = 0

    async def work() -> None:
        nonlocal got
        in_vain = 0
        while got < count:
            most = min(32, count - got)
            found = await consumer.receive(most, invisible_s=INVISIBLE_MS / 1000, wait_s=1)
            got += len(found)
            in_vain = 0 if found else in_vain + 1
            if in_vain > IN_VAIN_MAX:
                raise RuntimeError(f"nothing comes any more, after {got} of {count} messages")

    async with trio.open_nursery() as nursery:
        for _ in range(POPPERS if count > POPPERS * 32 else 1):
            nursery.start_soon(work)
    return got


async def _ask(consumer: SimpleConsumer) -> tuple[list[float], list[float]]:
    """Receive and acknowledge messages one by one; return the seconds of each."""
    receive_s: list[float] = []
    ack_s: list[float] = []
    while len(receive_s) < ASKED:
        began_s = time.perf_counter()
        messages = await consumer.receive(1, invisible_s=INVISIBLE_MS / 1000, wait_s=1)
        got_s = time.perf_counter()
        if messages:
            with contextlib.suppress(AckError):  # a starved group may elect; that is not measured
                await consumer.ack(messages)
                receive_s.append(got_s - began_s)
                ack_s.append(time.perf_counter() - got_s)
    return receive_s, ack_s


def measure_processes(levels: Sequence[int]) -> list[GroupCost]:
    """Start a group, fill it, and pop."""
    wanted = max(levels) + SPARE
    with (
        tempfile.TemporaryDirectory(prefix="dledger-pops-") as folder,
        broker_group(Path(folder), TOPIC) as (group, leader, _),
    ):
        _fill(leader, wanted)
        return trio.run(partial(measure_group, group, levels))


def _fill(leader: Process, wanted: int) -> None:
    """Send so many small messages at least, in batches to all queues."""
    templates = [
        batch_template(TOPIC, queue, b"x" * 16, BATCH_COUNT) for queue in range(QUEUE_COUNT)
    ]
    sent = in_vain = 0
    while sent < wanted:
        result = run_load(
            ("127.0.0.1", leader.port),
            lambda number: templates[number % QUEUE_COUNT].frame(number),
            in_flight=16,
            seconds=2.0,
        )
        in_vain = in_vain + 1 if result.refused == result.requests else 0
        if in_vain > REFUSALS_MAX:
            raise RuntimeError(f"all of {result.refused} batches were refused")
        sent += (result.requests - result.refused) * BATCH_COUNT


def _show(rows: Sequence[FlightCost | GroupCost], title: str, console: Console) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for name in asdict(rows[0]):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_text(value) for value in asdict(row).values()))
    console.print(table)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"


def main() -> int:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(prog="bench.pops", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--in-flight", default="1,100000,1000000", help="levels, at most 1040000")
    parser.add_argument("--no-fold", action="store_true", help="only the group of processes")
    parser.add_argument("--no-group", action="store_true", help="only the fold")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    options = parser.parse_args()
    levels = [int(each) for each in options.in_flight.split(",")]
    folds = [] if options.no_fold else measure_all_folds(levels)
    groups = [] if options.no_group else measure_processes(levels)
    console = Console(stderr=options.json, width=160)
    _show(folds, "one replica, in a process of its own", console)
    _show(groups, f"three processes, {QUEUE_COUNT} queues", console)
    if options.json:
        found = {"fold": [asdict(row) for row in folds], "group": [asdict(row) for row in groups]}
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
