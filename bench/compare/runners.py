"""Runs the rows on one system: how each row becomes a load, and what to do where a system cannot have it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.compare.rows import BATCH_COUNT, BenchRow, RowKind
from bench.load.driver import PULL_COUNT, LackingError, LoadDriver
from bench.load.results import Measured
from bench.load.running import RoundPlan
from bench.memory import Memory, memory_of
from bench.systems import ours, pysyncobj, rocketmq
from bench.systems.brokers import Setup, SystemKind, running

TOPIC: Final = "Bench"
QUEUES: Final = 16
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
    start: Callable[[Path, Setup, int], contextlib.AbstractContextManager[RowRunner]]


class BrokerRunner:
    """Rows on a group of brokers, ours or another's."""

    def __init__(self, driver: LoadDriver, setup: Setup) -> None:
        self._driver = driver
        self._setup = setup

    def warm_up(self, seconds: float) -> None:
        """See `RowRunner`. A Java broker compiles what it does often: it does so here, and not while it is measured."""
        driver = self._driver
        for load, part in (
            (driver.sends(connections=1, in_flight=64), 0.6),
            (driver.batches(BATCH_COUNT, connections=1, in_flight=4), 0.2),
        ):
            driver.run(load, RoundPlan(part * seconds, 0.05, 1))
        driver.fill(PULLED_PER_QUEUE)
        driver.run(driver.pulls(connections=1, in_flight=4), RoundPlan(0.2 * seconds, 0.05, 1))

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """See `RowRunner`."""
        driver = self._driver
        match row.kind:
            case RowKind.JAVA_SYNC:
                return driver.measure_java("sync", row.in_flight, pace, self._setup)
            case RowKind.JAVA_ASYNC:
                return driver.measure_java("async", row.in_flight, pace, self._setup)
            case RowKind.PULL:
                driver.fill(PULLED_PER_QUEUE)
                load = driver.pulls(connections=row.connections, in_flight=row.in_flight)
            case RowKind.BATCH:
                load = driver.batches(
                    BATCH_COUNT, connections=row.connections, in_flight=row.in_flight
                )
            case _:
                load = driver.sends(connections=row.connections, in_flight=row.in_flight)
        return driver.measure(load, pace)

    def leader_memory(self) -> Memory:
        """See `RowRunner`."""
        return memory_of(self._driver.leader().pid or 0)


def _brokers(kind: SystemKind) -> Contender:
    @contextlib.contextmanager
    def start(folder: Path, setup: Setup, body_bytes: int) -> Iterator[RowRunner]:
        with running(kind, folder, setup) as group:
            yield BrokerRunner(
                LoadDriver(group, TOPIC, queues=QUEUES, body_bytes=body_bytes), setup
            )

    return Contender(kind.name, kind.describe, kind.lacking, start)


class PySyncObjRunner:
    """Rows on PySyncObj, whose client is inside its leader: sends of one client, and nothing else."""

    def __init__(self, group: pysyncobj.PySyncObjGroup) -> None:
        self._group = group

    def warm_up(self, seconds: float) -> None:
        """See `RowRunner`."""
        self._group.measure(64, RoundPlan(0, seconds, 1))

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        """See `RowRunner`."""
        if row.kind is not RowKind.SEND or row.connections > 1:
            raise LackingError("PySyncObj has commands of one client, which is inside its leader")
        return Measured(rounds=self._group.measure(row.in_flight, pace))

    def leader_memory(self) -> Memory:
        """See `RowRunner`."""
        return memory_of(self._group.leader_pid)


def _pysyncobj(name: str, *, is_batched: bool) -> Contender:
    """Return PySyncObj in one of its two ways to send entries."""

    @contextlib.contextmanager
    def start(folder: Path, setup: Setup, body_bytes: int) -> Iterator[RowRunner]:
        with pysyncobj.running(
            folder, nodes=setup.nodes, body_bytes=body_bytes, is_batched=is_batched
        ) as group:
            yield PySyncObjRunner(group)

    kind = "batches of commands" if is_batched else "single commands"

    def describe(setup: Setup) -> str:
        return f"PySyncObj, {setup.nodes} copies in mapped files, {kind}, no fsync"

    return Contender(name, describe, lambda _: None, start)


CONTENDERS: Final[Mapping[str, Contender]] = {
    each.name: each
    for each in (
        *map(_brokers, (ours.OURS, *rocketmq.KINDS)),
        _pysyncobj("pysyncobj", is_batched=True),
        _pysyncobj("pysyncobj-single", is_batched=False),
    )
}
DEFAULT: Final = ("ours", "rocketmq-dledger", "rocketmq-sync")
