"""Taking snapshots when they are due, without holding up the driver.

The state is that of one moment. A large one is gathered beforehand, in steps of some milliseconds with a turn for
everybody else after each; for the last few the fold stands still, so that they are all of the same moment
(docs/adr/0188). What only grows is read after that in chunks of 256 KiB, and written and synced in a thread. The name
appears only when the log is durable up to the snapshot's entry, so a snapshot of this node is never ahead of its log.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from dledger.codec.snapshot import SnapshotMeta
from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import CorruptionError, DLedgerError, EntryDamagedError
from dledger.raft.ids import NO_INDEX, Index
from dledger.runtime.clock import now_s
from dledger.runtime.events_log import log_event
from dledger.starting_state import StartingState
from dledger.state_machine import (
    PreparingMachine,
    SealedPart,
    SealingMachine,
    SnapshotMachine,
    SnapshotOvertakenError,
)
from dledger.storage.read_errors import is_damage
from dledger.storage.snapshots import (
    END_OF_PART,
    KEPT_COUNT,
    SnapshotFile,
    SnapshotStore,
    SnapshotWriter,
    Written,
)
from dledger.storage.whole_snapshot import WholeSnapshot

CHECK_INTERVAL_S: Final = 1.0
RETRY_S: Final = 30.0
RETRY_MAX_S: Final = 300.0
"""After a failure the next try comes so much later; twice as late after each further one."""

LENT_S: Final = 60.0
"""So long after somebody has asked for a part of it a snapshot stays, however many come meanwhile."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

WRITE_BYTES: Final = 1024 * 1024
"""Handed to the thread at once: a hand-over costs a tenth of a millisecond."""

QUIET_PART: Final = 16
"""By time a snapshot is taken only after this part of the growth that asks for one by itself."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Bytes of a snapshot's file; index 0: there is none."""

    index: Index
    offset: int
    size_bytes: int
    data: bytes


class Fold(Protocol):
    """The place where committed entries are applied, in which it can be held up for some milliseconds."""

    def hold_fold(self) -> None:
        """Apply nothing until `release_fold`."""
        ...

    def release_fold(self) -> None:
        """Apply again what is committed."""
        ...


class Snapshotter:
    """Takes snapshots of one node.

    Attributes:
        newest: the newest snapshot on disk that is of this log, None before the first.
        older: the one before it.
        taken_count: snapshots written since the start.
        has_no_room: the last try found no room on the disk.
        pause_ms: the longest time that one step has held up the loop.
        held_ms: the longest time for which the fold stood still.
        fold: stands still for the last steps; None: nobody folds yet.
    """

    def __init__(
        self,
        config: LogConfig,
        machine: SnapshotMachine,
        engine: Engine,
        *,
        store: SnapshotStore,
        begins_with: StartingState,
    ) -> None:
        self.newest = begins_with.newest
        self.older = begins_with.older
        self.has_no_room = False
        self._is_wanted = False
        self._whole: list[tuple[SnapshotFile, WholeSnapshot]] = []
        self._verifying = trio.Lock()
        self._read_count = 0
        self._lent_until_s: dict[Index, float] = {}
        self.taken_count = 0
        self.pause_ms = 0.0
        self.held_ms = 0.0
        self.fold: Fold | None = None
        self._holds_fold = False
        self._config = config
        self._machine = machine
        self._engine = engine
        self._store = store
        self._next_s = now_s() + config.snapshot_interval_s
        self._retry_s = 0.0

    @property
    def index(self) -> Index:
        """The last entry that the newest snapshot contains."""
        return self.newest.meta.index if self.newest is not None else NO_INDEX

    @property
    def size_bytes(self) -> int:
        """The size of the newest snapshot; 0 before the first."""
        return self.newest.size_bytes if self.newest is not None else 0

    async def run(self) -> None:
        """Take snapshots as they become due, until cancelled."""
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            is_due = False
            # Where its entry stands cannot be looked up now, which the log notes: asked again soon.
            with contextlib.suppress(OSError):
                is_due = self._is_due()
            if is_due:
                await self.take()

    def want(self) -> None:
        """Have one taken soon, whatever the log has grown by."""
        self._is_wanted = True

    def fetched(self, snapshot: SnapshotFile) -> None:
        """Note another member's snapshot, of which the state is now."""
        self.older, self.newest = self.newest, snapshot

    async def take(self) -> bool:
        """Take one now; return whether there is a new one. A failure is logged and costs only the snapshot."""
        self._is_wanted = False
        started_s = now_s()
        writer: SnapshotWriter | None = None
        try:
            meta, chunks = await self._gather()
            has_parts = isinstance(self._machine, SealingMachine)
            writer = await trio.to_thread.run_sync(
                partial(self._store.begin, meta, has_parts=has_parts)
            )
            await self._copy(chunks, writer)
            await self._wait_durable(meta.index)
            self._end_loans()
            finished = await trio.to_thread.run_sync(writer.finish)
            part_bytes, writer = writer.part_bytes, None
            self._note_taken(finished)
        except (SnapshotOvertakenError, EntryDamagedError, OSError) as error:
            self._given_up(error)
            return False
        finally:
            if writer is not None:
                with trio.CancelScope(shield=True):  # it may have thousands of files to remove
                    await trio.to_thread.run_sync(_abandon, writer)
        self.taken_count += 1
        self.has_no_room = False
        self._next_s = now_s() + self._config.snapshot_interval_s
        works_again, self._retry_s = bool(self._retry_s), 0.0
        self._log(
            logging.WARNING if works_again else logging.INFO,
            "snapshot-taken",
            index=meta.index,
            bytes=finished.size_bytes,
            part_bytes=part_bytes,
            seconds=round(now_s() - started_s, 3),
            pause_ms=round(self.pause_ms, 1),
            held_ms=round(self.held_ms, 1),
        )
        return True

    async def _gather(self) -> tuple[SnapshotMeta, Iterator[bytes | SealedPart]]:
        """Return the state at one moment, to be read while the fold goes on.

        Raises:
            SnapshotOvertakenError: it is not to be had.
        """
        machine = self._machine
        try:
            if isinstance(machine, PreparingMachine):
                await self._prepare(machine)
            step_s = now_s()
            digest = machine.digest()
            # Taken before anything can fail: what the machine has gathered must not stay with it.
            chunks = _chunks_of(machine)
            meta = self._meta(digest)
            self._note_pause(step_s)
        finally:
            if self._holds_fold and self.fold is not None:
                self._holds_fold = False
                self.fold.release_fold()
        return meta, chunks

    async def _prepare(self, machine: PreparingMachine) -> None:
        """Have the machine gather its state; when this ends, the fold stands still."""
        steps = machine.prepare_snapshot()
        held_s: float | None = None
        while True:
            step_s = now_s()
            must_hold = next(steps, None)
            self._note_pause(step_s)
            if must_hold is None:
                break
            if must_hold and held_s is None and self.fold is not None:
                held_s = now_s()
                self._holds_fold = True
                self.fold.hold_fold()
            await trio.lowlevel.checkpoint()
        if held_s is not None:
            self.held_ms = max(self.held_ms, (now_s() - held_s) * 1000)

    def _note_taken(self, snapshot: SnapshotFile) -> None:
        """Note an own snapshot; another member's may have come while it was written, and reach further."""
        newest = self.newest
        if newest is not None and newest.meta.index > snapshot.meta.index:
            self.older = snapshot
            return
        self.older, self.newest = newest, snapshot
        self._store.kept_index = snapshot.meta.index

    def _given_up(self, error: SnapshotOvertakenError | DLedgerError | OSError) -> None:
        """Try again later and later: a line for each try, which are few, and one when it works again."""
        self.has_no_room = isinstance(error, OSError) and error.errno in NO_ROOM
        self._retry_s = min(2 * self._retry_s or RETRY_S, RETRY_MAX_S)
        self._next_s = now_s() + self._retry_s
        self._log(
            logging.WARNING, "snapshot-given-up", reason=error, next_try_s=round(self._retry_s)
        )

    async def part(self, index: Index, offset: int) -> SnapshotPart:
        """Return a part of the snapshot with that index; of the newest from its start if that is not kept any more.

        What somebody fetches is kept until he has it: where much is sent two more are taken before a large one has
        come, and a fetch that began anew each time would never end.
        """
        self._forget_gone()
        begun = [whole for each, whole in self._whole if each.meta.index == index]
        whole = begun[-1] if begun and offset else None
        if whole is None:
            whole, offset = await self._newest_whole(), 0
        if whole is None:
            return SnapshotPart(NO_INDEX, 0, 0, b"")
        self._lend(whole.meta.index, now_s() + LENT_S)
        try:
            data = await trio.to_thread.run_sync(whole.part, offset)
        except CorruptionError:
            # It is read whole again for who comes next, and given up.
            self._whole = [pair for pair in self._whole if pair[1] is not whole]
            return SnapshotPart(NO_INDEX, 0, 0, b"")
        except OSError:
            return SnapshotPart(NO_INDEX, 0, 0, b"")
        return SnapshotPart(whole.meta.index, offset, whole.size_bytes, data)

    async def whole_index(self) -> Index:
        """Return the last entry that the newest snapshot contains, now that it was read whole; 0: it is not whole."""
        await self._verify_newest()
        return self.index if self._whole_of(self.newest) is not None else NO_INDEX

    def _whole_of(self, snapshot: SnapshotFile | None) -> WholeSnapshot | None:
        """Return a snapshot that was read whole since it came."""
        return next((whole for each, whole in self._whole if each == snapshot), None)

    async def _newest_whole(self) -> WholeSnapshot | None:
        """Return the newest snapshot, read whole, or the one before if that is damaged; None: there is none now."""
        for _ in range(KEPT_COUNT):
            whole = await self._verify_newest()
            if whole is not None:
                return whole
        return None

    async def _verify_newest(self) -> WholeSnapshot | None:
        """Return the newest snapshot, read whole, once, before anybody gets it; None: a damaged one is given up.

        One that cannot be read now, for want of descriptors or memory, is read when somebody asks again. Who asks again
        while it is read, since that takes longer than he waits for an answer, waits for the same reading, and takes
        what it gives though a newer one has come: where much is sent one comes during each reading.
        """
        read_count = self._read_count
        async with self._verifying:
            newest = self.newest
            known = self._whole_of(newest)
            if known is None and self._read_count != read_count and self._whole:
                known = self._whole[-1][1]
            if newest is None or known is not None:
                return known
            self._lend(newest.meta.index, math.inf)
            try:
                whole = await trio.to_thread.run_sync(self._store.whole, newest)
            except (CorruptionError, OSError) as error:
                self._not_whole(newest, error)
                return None
            finally:
                self._lend(newest.meta.index, now_s())  # who wants to have it says so next
            self._forget_gone()
            self._whole.append((newest, whole))
            self._read_count += 1
            return whole

    def _forget_gone(self) -> None:
        """Forget what was read of snapshots that are not kept any more."""
        self._whole = [pair for pair in self._whole if self._is_kept(pair[0])]

    def _not_whole(self, snapshot: SnapshotFile, error: CorruptionError | OSError) -> None:
        """Give up a snapshot that is damaged; note what keeps it from being read now."""
        if isinstance(error, OSError) and not is_damage(error):
            self._engine.log.shortage.seen(snapshot.path, error)
            return
        self._log(logging.ERROR, "snapshot-refused", reason=f"{snapshot.path}: {error}")
        if snapshot is self.newest:
            self._give_up_newest(snapshot)

    def _is_kept(self, snapshot: SnapshotFile) -> bool:
        return snapshot in (self.newest, self.older) or snapshot.meta.index in self._lent_until_s

    def _lend(self, index: Index, until_s: float) -> None:
        """Keep a snapshot for those who fetch it, until a time."""
        self._lent_until_s[index] = until_s
        self._end_loans()

    def _end_loans(self) -> None:
        """Keep the snapshots no longer that nobody has asked for lately."""
        now = now_s()
        self._lent_until_s = {
            index: until_s for index, until_s in self._lent_until_s.items() if until_s > now
        }
        self._store.lent_indexes = frozenset(self._lent_until_s)

    def _give_up_newest(self, damaged: SnapshotFile) -> None:
        """Go on with the older one, whose file stays however many come, and have another one taken."""
        self.newest, self.older = self.older, None
        if self.newest is not None and self._store.kept_index == damaged.meta.index:
            self._store.kept_index = self.newest.meta.index
        self.want()

    def _meta(self, digest: int) -> SnapshotMeta:
        index = self._machine.applied_index
        log = self._engine.log
        if not log.layout.has(index):
            raise SnapshotOvertakenError(f"entry {index} of another member's state has yet to come")
        term = log.layout.term_of(index)
        assert term is not None, f"the applied entry {index} is in the log, and its term is not"
        position = log.layout.position_of(Index(index + 1))
        return SnapshotMeta(index, term, position, log.chain_crc_of(index), digest)

    async def _copy(self, chunks: Iterator[bytes | SealedPart], writer: SnapshotWriter) -> None:
        """Write the chunks; each is made on the loop's thread, which owns the state, and written on another."""
        items = self._store.with_parts(chunks)
        waiting: list[Written] = []
        size = 0
        while True:
            step_s = now_s()
            item = next(items, None)
            self._note_pause(step_s)
            if item is not None:
                waiting.append(item)
                size += len(item) if isinstance(item, bytes) else 0
            if waiting and (item is None or size >= WRITE_BYTES or item is END_OF_PART):
                await trio.to_thread.run_sync(writer.add, waiting)
                waiting, size = [], 0
            if item is None:
                return
            await trio.lowlevel.checkpoint()

    async def _wait_durable(self, index: Index) -> None:
        """Wait for the own disk: a follower may have applied what it does not have yet."""
        while self._engine.log.durable_index < index:  # noqa: ASYNC110  rare, and never for long
            await trio.sleep(CHECK_INTERVAL_S / 20)

    def _is_due(self) -> bool:
        """Return whether to take one: after enough growth of the log, or after less when the last one is old."""
        growth_max = self._config.snapshot_log_bytes
        applied_index = self._machine.applied_index
        if not growth_max or applied_index <= self.index or self._engine.failure is not None:
            return False
        layout = self._engine.log.layout
        if not layout.has(applied_index):
            return False  # the state came from another member, and the log has yet to come
        if self._is_wanted and not self._retry_s:
            return True
        since = self.newest.meta.position if self.newest is not None else layout.first_position
        growth = layout.position_of(Index(applied_index + 1)) - since
        if now_s() >= self._next_s:
            return growth >= growth_max // QUIET_PART
        if self._retry_s:
            return False  # what failed is not tried before its time, however much there is to do
        # A large state is not written again for a little more log.
        return growth >= max(growth_max, 2 * self.size_bytes)

    def _note_pause(self, since_s: float) -> None:
        self.pause_ms = max(self.pause_ms, (now_s() - since_s) * 1000)

    def _log(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, node=self._config.raft.node_id, **fields)


def _chunks_of(machine: SnapshotMachine) -> Iterator[bytes | SealedPart]:
    """Return the state as it is now."""
    return machine.sealed_snapshot() if isinstance(machine, SealingMachine) else machine.snapshot()


def _abandon(writer: SnapshotWriter) -> None:
    try:
        writer.abandon()
    except OSError as error:
        log_event(logging.WARNING, "snapshot-left-aside", reason=error)
