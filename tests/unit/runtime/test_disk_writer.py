"""Writes that no pass waits for: their end wakes the loop, and is taken once."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from dledger.runtime.disk_writer import DiskWriter
from dledger.runtime.sync_pace import SyncPace

PATIENCE_MS = 60_000


class Job:
    """A persist job that waits at a gate."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def run(self) -> None:
        self._gate.wait()


class FakeEngine:
    """Has jobs as long as the test says; notes those that have ended."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.jobs: list[Job] = []
        self.ended: list[Job] = []
        self.is_persisting = False

    def begin_persist(self) -> Job | None:
        self.is_persisting = bool(self.jobs)
        return self.jobs.pop(0) if self.jobs else None

    def release(self, _job: Job) -> bool:
        return True

    def end_persist(self, job: Job, now_ms: int) -> None:
        self.is_persisting = False
        self.ended.append(job)

    def next_deadline_ms(self) -> int:
        return 0


class Bench:
    def __init__(self) -> None:
        self.engine: Any = FakeEngine()
        nothing: Any = None
        self.pace = SyncPace(slow_disk_ms=1000)
        self.sent_before: list[int] = []
        self.writer = DiskWriter(
            self.engine,
            nothing,
            nothing,
            pace=self.pace,
            on_released=lambda: self.sent_before.append(len(self.engine.ended)),
            on_full=lambda: None,
        )
        self._descriptor = self.writer.open()

    def is_readable(self, patience_ms: int) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(patience_ms))

    def write_one(self) -> Job:
        job = Job(self.engine.gate)
        self.engine.jobs.append(job)
        self.writer.write()
        return job


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.gate.set()
    made.writer.close()


def test_a_quick_write_is_waited_for_and_wakes_nobody(bench: Bench) -> None:
    bench.engine.gate.set()
    jobs = [bench.write_one() for _ in range(50)]
    while len(bench.engine.ended) < len(jobs):  # one may have taken longer than a pass waits
        if bench.engine.is_persisting:
            assert bench.is_readable(PATIENCE_MS)
            bench.writer.take_written()
        bench.writer.write()  # what came while it ran
    assert bench.engine.ended == jobs
    assert bench.sent_before == list(range(50)), "what waited for a write leaves first"


def slow_by_its_past(bench: Bench) -> None:
    for _ in range(100):
        bench.pace.add(1000)
    assert bench.pace.is_slow


def slow_for_the_first_time(_bench: Bench) -> None:
    """The pass waits, and gives up."""


@pytest.mark.parametrize("make_slow", [slow_by_its_past, slow_for_the_first_time])
def test_the_end_of_a_slow_write_wakes_the_loop_and_is_taken_once(
    bench: Bench, make_slow: Callable[[Bench], None]
) -> None:
    make_slow(bench)
    for number in range(1, 4):
        bench.engine.gate.clear()
        job = bench.write_one()
        bench.writer.write()
        bench.writer.take_written()
        assert len(bench.engine.ended) == number - 1, "it has not ended"
        assert not bench.is_readable(0)
        bench.engine.gate.set()
        assert bench.is_readable(PATIENCE_MS)
        bench.writer.take_written()
        assert bench.engine.ended[-1] is job
        assert not bench.is_readable(0), "the loop would never sleep"
        bench.writer.take_written()
        assert len(bench.engine.ended) == number


async def test_a_write_that_runs_is_finished_and_reported_when_the_node_stops(bench: Bench) -> None:
    slow_by_its_past(bench)
    job = bench.write_one()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.writer.finish)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        assert bench.engine.ended == []
        bench.engine.gate.set()
    assert bench.engine.ended == [job]
