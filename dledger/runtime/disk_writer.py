"""Running a node's persist jobs: group commit on a thread of its own, and waiting while the disk is full.

A pass waits for a sync only as long as a quick one takes (another turn of the loop would cost more: 413 against
536 microseconds for one append, measured), and on a slow disk not at all; passes go on meanwhile, so heartbeats are
not held up. The end of a sync that nobody waits for makes a descriptor readable, on which the loop waits together
with the sockets: it costs no task, and shares a pass with what members sent meanwhile. What is in a job is the
engine's business, and what follows from its end is, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import trio

from dledger.engine import Engine, PersistJob
from dledger.errors import DiskFullError, DLedgerError
from dledger.runtime.announcer import Announcer
from dledger.runtime.clock import now_ms
from dledger.runtime.full_disks import FullDisks
from dledger.runtime.storage_thread import StorageThread, Work
from dledger.runtime.sync_pace import SyncPace

SYNC_WAIT_S: Final = 0.01
"""Time that a pass waits for a sync on a disk that was fast so far: a sixth of a heartbeat interval."""

DISK_FULL_RETRY_MS: Final = 1000
"""Pause before a write is tried again for which there was no room."""


def raise_latched(engine: Engine, error: OSError) -> NoReturn:
    """Raise the failure that the engine has latched because of this error."""
    assert engine.failure is not None, f"the engine raised {error!r} and did not latch"
    raise engine.failure from error


class DiskWriter:
    """The writes of one node.

    Invariants: at most one job runs; one that found the disk full runs again before any other.
    """

    def __init__(
        self,
        engine: Engine,
        announcer: Announcer,
        full_disks: FullDisks,
        *,
        pace: SyncPace,
        on_released: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """Set up a writer; nothing is written before it is open.

        Args:
            engine: whose jobs are run.
            announcer: logs what becomes of them.
            full_disks: learns when the own disk has no room, and when it has again.
            pace: learns how long each write took.
            on_released: called when messages may leave that waited for a write: it sends them.
            on_full: called each time that a write found no room; the node must not lead any longer.
        """
        self._descriptor: int | None = None
        self._engine = engine
        self._announcer = announcer
        self._full_disks = full_disks
        self._pace = pace
        self._on_released = on_released
        self._on_full = on_full
        self._storage = StorageThread()
        self._running: tuple[PersistJob, Work] | None = None
        self._blocked_job: PersistJob | None = None
        self._retry_ms = 0

    def open(self) -> int:
        """Begin; return a descriptor that is readable when a write has ended that no pass waited for.

        `take_written` is due then.
        """
        assert self._descriptor is None, "it is open already"
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._descriptor

    def next_deadline_ms(self) -> int:
        """Return when the next pass is due at the latest: for the engine, or for a write that waits for room."""
        deadline_ms = self._engine.next_deadline_ms()
        is_to_retry = self._blocked_job is not None and self._running is None
        return min(deadline_ms, self._retry_ms) if is_to_retry else deadline_ms

    def write(self) -> None:
        """Write and sync what waits, unless a write runs.

        Raises:
            DLedgerError: the engine has failed.
        """
        if self._running is not None:
            return
        job = self._blocked_job
        if job is None:
            job = None if self._engine.is_persisting else self._engine.begin_persist()
        elif now_ms() < self._retry_ms:
            return
        if job is None:
            return
        self._pace.begin(now_ms())
        assert self._descriptor is not None, "passes run within `Driver.run`"
        work = Work(job.run)
        self._storage.begin(work)
        if not self._pace.is_slow and work.wait(SYNC_WAIT_S):
            self._written(job, work)
            return
        self._running = (job, work)
        work.leave(partial(os.eventfd_write, self._descriptor, 1))
        if work.is_done:
            self.take_written()

    def take_written(self) -> None:
        """Take the outcome of a write that no pass waited for, if it has ended.

        Raises:
            DLedgerError: the engine has failed.
        """
        assert self._descriptor is not None, "nothing was written"
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        if self._running is not None and self._running[1].is_done:
            job, work = self._running
            self._running = None
            self._written(job, work)

    def close(self) -> None:
        """Give up the job that waits for room, and end the thread; no write runs any more."""
        assert self._running is None, "a write runs"
        if self._blocked_job is not None:
            self._engine.fail_persist(
                self._blocked_job, DiskFullError("the store has no room"), now_ms()
            )
        if self._descriptor is not None:
            # By the thread itself, which may be about to say that the last write is done.
            self._storage.begin(Work(partial(os.close, self._descriptor)))
            self._descriptor = None
        self._storage.close()

    async def finish(self) -> None:
        """Wait for a write that was begun, and take its outcome, even while the node shuts down; no pass comes after.

        Raises:
            DLedgerError: the engine has failed.
        """
        if self._running is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._running[1].wait)
            self.take_written()

    def _written(self, job: PersistJob, work: Work) -> None:
        """Take the outcome of a job that has run."""
        blocked = self._blocked_job
        assert blocked is None or blocked is job, "another job ran while one waits for room"
        error = work.error
        if error is None:
            self._persisted(job, work.took_ms)
        elif isinstance(error, OSError | DLedgerError):
            self._failed(job, error)
        else:
            raise error

    def _persisted(self, job: PersistJob, sync_ms: float) -> None:
        try:
            if self._engine.release(job):
                self._on_released()  # before all else: a leader waits
        finally:
            self._end(job, sync_ms)

    def _end(self, job: PersistJob, sync_ms: float) -> None:
        self._pace.add(sync_ms)
        if self._blocked_job is not None:
            self._blocked_job = None
            self._full_disks.own_changed("")
            self._announcer.log(logging.WARNING, "disk-has-room")
        try:
            self._engine.end_persist(job, now_ms())
        except OSError as error:
            raise_latched(self._engine, error)

    def _failed(self, job: PersistJob, error: OSError | DLedgerError) -> None:
        """Wait for room, without leading, if the disk is full: nothing has changed. All else is the end."""
        self._pace.failed()
        if not isinstance(error, DiskFullError):
            self._announcer.log(logging.CRITICAL, "persist-failed", reason=error)
            self._engine.fail_persist(job, error, now_ms())
            return
        if self._blocked_job is None:
            self._announcer.log(logging.ERROR, "disk-full", reason=error)
        self._blocked_job = job
        self._engine.found_no_room(job)
        self._retry_ms = now_ms() + DISK_FULL_RETRY_MS
        self._full_disks.own_changed(str(error))
        self._on_full()
