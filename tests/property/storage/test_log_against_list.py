"""Everything that was reported durable survives; nothing else is required; no entry is ever wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest.mock import patch

import pytest

from dledger.errors import DiskFailedError, DiskFullError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage import log_writer, scan, write_batch
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.write_batch import WriteBatch
from dledger.testing.sim_disk import SimDisk

SMALL_BATCH_BYTES = 3000
SEEDS_PER_BLOCK = 50
REMEMBERED = [
    (149, True, "a segment between cut and end was still sealed when its successor was removed"),
    (709, True, "a truncation whose sync failed was not made durable on opening"),
    (2694, False, "the same, and old entries beyond the end were taken for later ones"),
    (3857, True, "a segment was sealed though its successor's name was not durable"),
]


class LogModel:
    """Runs a log and keeps the list.

    `versions` are the logs that the disk may hold: the present one is the last; one from before a
    truncation stays possible until a batch with that truncation has run. Whatever a crash leaves must
    be the start of one of them, and at least as long as what was reported durable. `core` is the layout
    as a member's core has it: a copy that hears of everything.
    """

    def __init__(self, random: Random, *, segment_size_bytes: int, syncs: bool = True) -> None:
        self.random = random
        self.disk = SimDisk(random)
        self.segment_size_bytes = segment_size_bytes
        self.syncs = syncs
        self.versions: list[list[Entry]] = [[]]
        self.durable_count = 0
        self.term = 1
        self.batch: WriteBatch | None = None
        self.batch_version = 0
        self.log = self.open()
        self.core = self.log.layout.copy()

    def open(self) -> SegmentedLog:
        return SegmentedLog.open(
            self.disk,
            "log",
            segment_size_bytes=self.segment_size_bytes,
            cache_bytes_max=self.random.choice((0, 500, 10_000)),
            syncs=self.syncs,
        )

    @property
    def entries(self) -> list[Entry]:
        return self.versions[-1]

    def append(self, sizes: list[int]) -> None:
        if self.random.random() < 0.3:
            self.term += 1
        made = []
        position = self.log.end_position
        for number, size in enumerate(sizes, len(self.entries) + 1):
            body = self.random.randbytes(size)
            entry = Entry(Index(number), Term(self.term), position, EntryKind.NORMAL, body)
            made.append(entry)
            position = Position(entry.end_position)
        self.entries.extend(self.log.append(made))
        for entry in made:
            self.core.append(entry.term, entry.size_bytes)

    def truncate(self, keep: float) -> None:
        if self.entries:
            count = int(keep * len(self.entries))
            self.core.truncate_from(Index(count + 1))
            self.log.truncate_from(Index(count + 1))
            self.versions.append(self.entries[:count])
            self.durable_count = min(self.durable_count, count)
            self.term += 1

    def take(self) -> None:
        if self.batch is None:
            self.batch = self.log.take_writes()
            self.batch_version = len(self.versions) - 1

    def run(self) -> None:
        if self.batch is not None and not self.batch.is_done:
            self.batch.run()

    def finish(self) -> None:
        self.run()
        if self.batch is not None:
            durable = self.log.written(self.batch)
            finished = self.log.take_finished()
            if finished is not None:
                self.core.finish(finished)
            self.batch = None
            del self.versions[: self.batch_version]
            self.durable_count = durable.index
            assert self.log.durable_index <= len(self.entries)

    def flush(self) -> None:
        self.finish()
        while True:
            self.take()
            if self.batch is None:
                return
            self.finish()

    def flush_with_fault(self, *, on_sync: bool, nth: int) -> None:
        """A write or sync fails on the way; the log must refuse everything after it."""
        if on_sync:
            self.disk.fail_sync(nth)
        else:
            self.disk.fail_write(nth)
        try:
            self.flush()
        except DiskFailedError:
            assert self.log.failure is not None
            for refused in (self.log.take_writes, lambda: self.append([1])):
                try:
                    refused()
                except DiskFailedError:
                    continue
                raise AssertionError("a failed log went on") from None
            self.reopen()
        except DiskFullError:
            if self.disk.capacity_bytes is None:
                raise AssertionError("no room on an endless disk") from None
            self.disk.forget_faults()
            raise
        self.disk.forget_faults()

    def crash(self, keep: float | None = None) -> None:
        self.disk.crash(keep=keep)
        if not self.syncs:
            self.durable_count = 0
        self._come_back()

    def reopen(self) -> None:
        """The process is killed and started again."""
        self.disk.restart()
        self._come_back()

    def fill(self) -> None:
        """Some room is left, or none."""
        used = sum(len(self.disk.content(path)) for path in self.disk.paths())
        self.disk.capacity_bytes = used + self.random.choice(
            (0, 1, 100, 500, 2000, 64 * 1024, 70 * 1024)
        )

    def make_room(self) -> None:
        self.disk.capacity_bytes = None

    def close(self) -> None:
        self.flush()
        self.log.flush_index()
        self.log.close()
        self._come_back()

    def _come_back(self) -> None:
        self.log = self.open()
        self.core = self.log.layout.copy()
        self.batch = None
        count = self.log.last_id.index
        found = self.log.entries(Index(1), Index(count + 1))
        assert count >= self.durable_count, f"durable {self.durable_count}, found {count}"
        assert found[: self.durable_count] == self.entries[: self.durable_count]
        assert any(found == version[:count] for version in self.versions), "an entry nobody wrote"
        self.versions = [found]
        self.durable_count = count
        self.term = max(self.term, self.log.last_id.term) + 1

    def check_reads(self) -> None:
        entries = self.entries
        bounds = Index(1), Index(len(entries) + 1)
        assert self.core.columns(*bounds) == self.log.layout.columns(*bounds)
        assert self.core.open_index == self.log.layout.open_index
        assert self.log.notes == [], "an index is damaged, and nobody damaged it"
        assert self.log.entries(Index(1), Index(len(entries) + 1)) == entries
        if entries:
            first = self.random.randint(1, len(entries))
            end = self.random.randint(first, len(entries)) + 1
            assert self.log.entries(Index(first), Index(end)) == entries[first - 1 : end - 1]
            some = self.log.entries(Index(first), Index(end), bytes_max=700)
            assert some == entries[first - 1 : first - 1 + len(some)]
            assert some
            entry = entries[first - 1]
            inside = self.random.randrange(entry.position, entry.end_position)
            assert self.log.entry_at(Position(inside)) == entry


@contextmanager
def small_batches() -> Iterator[None]:
    """Batches of a few entries, so that the reach of a batch matters in a small log."""
    with ExitStack() as stack:
        for module in (scan, log_writer, write_batch):
            stack.enter_context(patch.object(module, "WRITE_BATCH_BYTES_MAX", SMALL_BATCH_BYTES))
        yield


def step(model: LogModel, random: Random) -> None:
    """One action, drawn."""
    action = random.choices(
        (
            "append",
            "truncate",
            "take",
            "run",
            "finish",
            "flush",
            "crash",
            "kill",
            "close",
            "fault",
            "read",
        ),
        (10, 2, 3, 2, 3, 4, 1.2, 0.6, 0.5, 0.6, 1),
    )[0]
    if action == "append":
        count = random.choice((1, 1, 2, 5, 12))
        model.append([random.choice((0, 1, 30, 200, 460, 700, 2500)) for _ in range(count)])
    elif action == "truncate":
        model.truncate(random.choice((0.0, 0.5, 0.9, random.random())))
    elif action == "crash":
        model.crash()
    elif action == "kill":
        model.reopen()
    elif action == "fault":
        model.flush_with_fault(on_sync=random.random() < 0.5, nth=random.randint(1, 6))
    elif action == "read":
        model.check_reads()
    else:
        getattr(model, action)()


def step_on_a_small_disk(model: LogModel, random: Random) -> None:
    """One action; where there is no room nothing has happened, and all goes on when there is."""
    draw = random.random()
    if draw < 0.12:
        model.fill() if draw < 0.06 else model.make_room()
        return
    before = model.disk.capacity_bytes
    try:
        step(model, random)
    except DiskFullError:
        assert before is not None
        assert model.log.failure is None
    except OSError as error:
        # A start may need room, too; it is tried again.
        if error.errno != errno.ENOSPC:
            raise
        model.make_room()
        model.reopen()


def run(seed: int, steps: int, *, syncs: bool) -> None:
    """One life of a log; a failure names the call that repeats it."""
    try:
        _run(Random(seed), steps, syncs=syncs)
    except BaseException as error:
        error.add_note(f"replay: run({seed}, {steps}, syncs={syncs})")
        raise


def _run(
    random: Random,
    steps: int,
    *,
    syncs: bool,
    one_step: Callable[[LogModel, Random], None] = step,
) -> None:
    with small_batches():
        size = random.choice((600, 2000, 5000, 30_000))
        model = LogModel(random, segment_size_bytes=size, syncs=syncs)
        for _ in range(steps):
            one_step(model, random)
        model.make_room()
        model.close()
        model.check_reads()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_synced_survives_and_nothing_is_invented(block: int) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        run(seed, steps=100, syncs=True)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4, 6))
def test_without_syncs_a_crash_leaves_a_start_of_the_log(block: int) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        run(seed, steps=100, syncs=False)


@pytest.mark.slow
@pytest.mark.parametrize("syncs", [True, False])
def test_a_disk_without_room_delays_and_changes_nothing(syncs: bool) -> None:
    # The last one: a segment was sealed for which there was no room.
    for seed in (*range(100), 2294):
        _run(Random(seed), 100, syncs=syncs, one_step=step_on_a_small_disk)


@pytest.mark.parametrize(("seed", "syncs", "cause"), REMEMBERED)
def test_seeds_that_once_failed(seed: int, syncs: bool, cause: str) -> None:
    run(seed, steps=100, syncs=syncs)
