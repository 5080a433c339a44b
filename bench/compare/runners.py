"""Runs the rows on one system: how each row becomes a load, and what to do where a system cannot have it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.compare.rows import BATCH_COUNT, BODY_BYTES, BY_NAME, QUEUES, BenchRow, RowKind
from bench.load.driver import PULL_COUNT, LackingError, LoadDriver
from bench.load.faults import measure_failover, measure_recovery
from bench.load.native import RequestLoad, lacking_generator
from bench.load.results import Measured
from bench.load.running import RoundPlan
from bench.load.timed import TimedTopic, measure_deliveries, measure_transactions
from bench.loadgen import batch_template, pull_template, send_template
from bench.memory import Memory, memory_of
from bench.systems import bare, ours, pysyncobj, rocketmq
from bench.systems.brokers import MeasuredGroup, Setup, SystemKind, running

RECORD_MORE_BYTES: Final = 150
"""Of a message in the log, beside its body; nearly."""

PULLED_PER_QUEUE: Final = 32 * PULL_COUNT
"""A reader has at least so many messages of each queue to go through."""


class RowRunner(Protocol):
    """A system that runs, and can be measured."""

    def warm_up(self, seconds: float) -> None:
        """Let it do some of everything."""
        ...

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """Measure a row.

        Raises:
            LackingError: it has no such row, or the machine lacks something.
            LoadError: it did not come to its end.
        """
        ...

    def leader_memory(self) -> Memory:
        """Return the memory of the leader now."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A system that can be compared: what it is called, what it lacks, and how it is run.

    Attributes:
        start: gives the running system, which ends with its block.
    """

    name: str
    describe: Callable[[Setup], str]
    lacking: Callable[[Setup], str | None]
    start: Callable[[Path, Setup], contextlib.AbstractContextManager[RowRunner]]


class BrokerRunner:
    """Rows on a group of brokers, ours or another's."""

    def __init__(self, group: MeasuredGroup, setup: Setup, *, fails_over: bool) -> None:
        self._group = group
        self._setup = setup
        self._fails_over = fails_over
        self._drivers: dict[tuple[str, int, int], LoadDriver] = {}

    def warm_up(self, seconds: float) -> None:
        """See `RowRunner`. A Java broker compiles what it does often: it does so here, and not while it is measured."""
        driver = self._driver(QUEUES, BODY_BYTES)
        for load, part in (
            (driver.sends(1, 64), 0.6),
            (driver.batches(BATCH_COUNT, 1, 4), 0.2),
        ):
            driver.run(load, RoundPlan(part * seconds, 0.05, 1))
        driver.fill(PULLED_PER_QUEUE)
        pulls = driver.pulls(1, 4)
        driver.run(pulls, RoundPlan(0.2 * seconds, 0.05, 1))

    def _driver(self, queues: int, body_bytes: int, topic: str = "Bench") -> LoadDriver:
        """Return what loads a topic with so many queues; the first time the topic is created."""
        key = topic, queues, body_bytes
        if key not in self._drivers:
            name = f"{topic}-{queues}-{body_bytes}"
            self._drivers[key] = LoadDriver(self._group, name, queues=queues, body_bytes=body_bytes)
        return self._drivers[key]

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """See `RowRunner`."""
        match row.kind:
            case RowKind.JAVA_SYNC | RowKind.JAVA_ASYNC:
                mode = "sync" if row.kind is RowKind.JAVA_SYNC else "async"
                driver = self._driver(row.queues, row.body_bytes)
                return driver.measure_java(mode, row.in_flight, pace, self._setup)
            case RowKind.END_TO_END | RowKind.DELAY | RowKind.TRANSACTION:
                return self._run_timed(row, pace)
            case RowKind.FAILOVER | RowKind.RECOVERY:
                return self._run_fault(row, pace)
            case RowKind.ONEWAY:
                driver = self._driver(row.queues, row.body_bytes)
                return driver.measure_oneway(connections=row.connections, pace=pace)
            case _:
                return self._run_load(row, pace)

    def _run_load(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """Run what the generator does by itself."""
        topic = "Tags" if row.kind is RowKind.TAG_PULL else "Bench"
        driver = self._driver(row.queues, row.body_bytes, topic)
        width = row.connections, row.in_flight
        match row.kind:
            case RowKind.BATCH:
                return driver.measure(driver.batches(row.batch, *width), pace)
            case RowKind.PULL:
                driver.fill(PULLED_PER_QUEUE)
                return driver.measure(driver.pulls(*width), pace)
            case RowKind.COLD_PULL:
                driver.fill(max(PULLED_PER_QUEUE, self._per_queue(row)))
                return driver.measure(driver.pulls(*width, is_oldest=True), pace)
            case RowKind.TAG_PULL:
                driver.fill_tagged(PULLED_PER_QUEUE)
                return driver.measure(driver.pulls(*width, tags="t1"), pace)
            case _:
                return driver.measure(driver.sends(*width), pace)

    def _run_timed(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """Run what is timed from one client to another."""
        driver = self._driver(row.queues, row.body_bytes)
        leader = driver.leader()
        where = TimedTopic((leader.host, leader.port), driver.topic, row.body_bytes)
        pids = [broker.pid or 0 for broker in self._group.in_order(leader)]
        if row.kind is RowKind.TRANSACTION:
            return measure_transactions(where, pids, pace, clients=row.connections)
        is_delayed = row.kind is RowKind.DELAY
        return measure_deliveries(where, pids, pace, per_s=row.per_s, is_delayed=is_delayed)

    def _run_fault(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """Kill, and wait for the next acknowledgement."""
        driver = self._driver(row.queues, row.body_bytes)
        driver.fill(self._per_queue(row))
        if row.kind is RowKind.RECOVERY:
            return measure_recovery(self._group, driver.topic, rounds=pace.rounds)
        if not self._fails_over:
            raise LackingError("no follower takes over by itself")
        return measure_failover(self._group, driver.topic, rounds=pace.rounds)

    @staticmethod
    def _per_queue(row: BenchRow) -> int:
        """Return how many messages of each queue make up the backlog."""
        return (row.backlog_mib << 20) // (row.body_bytes + RECORD_MORE_BYTES) // row.queues

    def leader_memory(self) -> Memory:
        """See `RowRunner`."""
        return memory_of(self._group.wait_leader().pid or 0)


def _brokers(kind: SystemKind) -> Contender:
    @contextlib.contextmanager
    def start(folder: Path, setup: Setup) -> Iterator[RowRunner]:
        with running(kind, folder, setup) as group:
            yield BrokerRunner(group, setup, fails_over=kind.fails_over)

    return Contender(kind.name, kind.describe, kind.lacking, start)


class PySyncObjRunner:
    """Rows on PySyncObj, whose client is inside its leader: sends of one client, and nothing else."""

    def __init__(self, group: pysyncobj.PySyncObjGroup) -> None:
        self._group = group

    def warm_up(self, seconds: float) -> None:
        """See `RowRunner`."""
        self._group.measure(64, BODY_BYTES, RoundPlan(0, seconds, 1))

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """See `RowRunner`."""
        if row.kind is not RowKind.SEND or row.connections > 1:
            raise LackingError("PySyncObj has commands of one client, which is inside its leader")
        return Measured(rounds=self._group.measure(row.in_flight, row.body_bytes, pace))

    def leader_memory(self) -> Memory:
        """See `RowRunner`."""
        return memory_of(self._group.leader_pid)


def _pysyncobj(name: str, *, is_batched: bool) -> Contender:
    """Return PySyncObj in one of its two ways to send entries."""

    @contextlib.contextmanager
    def start(folder: Path, setup: Setup) -> Iterator[RowRunner]:
        with pysyncobj.running(folder, nodes=setup.nodes, is_batched=is_batched) as group:
            yield PySyncObjRunner(group)

    kind = "batches of commands" if is_batched else "single commands"

    def describe(setup: Setup) -> str:
        return f"PySyncObj, {setup.nodes} copies in mapped files, {kind}, no fsync"

    return Contender(name, describe, lambda _: None, start)


class BareRunner:
    """Rows on the floor: sends, batches and pulls of the newest, by the same generator."""

    def __init__(self, group: bare.BareGroup) -> None:
        self._group = group

    def warm_up(self, seconds: float) -> None:
        """See `RowRunner`."""
        self._group.run(self._load(BY_NAME["async-64"]), RoundPlan(seconds, 0.05, 1))

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """See `RowRunner`."""
        return Measured(rounds=self._group.run(self._load(row), pace))

    @staticmethod
    def _load(row: BenchRow) -> RequestLoad:
        """Return what a group of brokers would have to carry out, without a topic."""
        body, queues = b"x" * row.body_bytes, range(row.queues)
        messages: int | None = 1
        match row.kind:
            case RowKind.SEND:
                templates = [send_template("Bench", queue, body) for queue in queues]
            case RowKind.BATCH:
                templates = [batch_template("Bench", queue, body, row.batch) for queue in queues]
                messages = row.batch
            case RowKind.PULL:
                templates = [pull_template("Bench", queue, 0, PULL_COUNT) for queue in queues]
                messages = None
            case _:
                raise LackingError("the floor has sends, batches and pulls")
        return RequestLoad(
            templates=templates,
            connections=row.connections,
            in_flight=row.in_flight,
            per_request=messages,
            per_reply=PULL_COUNT,
        )

    def leader_memory(self) -> Memory:
        """See `RowRunner`."""
        return memory_of(self._group.leader_pid)


def _bare() -> Contender:
    @contextlib.contextmanager
    def start(folder: Path, setup: Setup) -> Iterator[RowRunner]:
        with bare.running(folder, nodes=setup.nodes) as group:
            yield BareRunner(group)

    def describe(setup: Setup) -> str:
        return f"the floor: {setup.nodes} processes in Python that write, sync and forward bytes"

    return Contender("bare", describe, lambda _: lacking_generator(), start)


CONTENDERS: Final[Mapping[str, Contender]] = {
    each.name: each
    for each in (
        *map(_brokers, (ours.OURS, *rocketmq.KINDS)),
        _pysyncobj("pysyncobj", is_batched=True),
        _pysyncobj("pysyncobj-single", is_batched=False),
        _bare(),
    )
}
DEFAULT: Final = ("ours", "rocketmq-dledger", "rocketmq-sync")
