"""Reads of committed entries, and of how current they are. Reads never change the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from dledger.errors import (
    CompactedError,
    DiskFailedError,
    DLedgerError,
    EntryDamagedError,
    OutOfRangeError,
    ReadTimeoutError,
    StoppingError,
)
from dledger.raft.effects import ReadAt
from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry
from dledger.raft.ids import NO_INDEX, Index, Position, Term
from dledger.runtime.callers import wait_outcome
from dledger.runtime.cold_reads import ColdReads, ever_wanted
from dledger.runtime.group_check import EntryFingerprint
from dledger.runtime.snapshotting import SnapshotPart, Snapshotter
from dledger.runtime.standing import Standing
from dledger.state_machine import StateMachine
from dledger.storage.part_reader import Place, Run, Stretches
from dledger.storage.read_errors import is_shortage
from dledger.storage.sealed_index import PageNotLoadedError


class TermRun(NamedTuple):
    """A term, and the byte place of its first entry that is kept."""

    term: Term
    position: Position


class LogReader:
    """The committed entries of one member, whatever its role.

    All methods belong to the trio thread; those that are not `async` never wait.

    Attributes:
        snapshotter: takes snapshots of the state; None until the store is open, and for a machine
            that has none.
        cold: reads what is not in memory; None until the store is open.
        applied_watchers: called after entries were applied and their proposers were answered.
    """

    def __init__(self, standing: Standing, machine: StateMachine) -> None:
        self.snapshotter: Snapshotter | None = None
        self.cold: ColdReads | None = None
        self.applied_watchers: list[Callable[[], None]] = []
        self._standing = standing
        self._machine = machine

    # How far.

    @property
    def applied_index(self) -> Index:
        """The last entry that the state machine contains."""
        driver = self._standing.driver
        return driver.applied_index if driver else self._machine.applied_index

    @property
    def commit_index(self) -> Index:
        """The last index that is known to be committed."""
        driver = self._standing.driver
        return driver.engine.node.commit_index if driver else NO_INDEX

    @property
    def first_position(self) -> Position:
        """Byte place of the first kept entry."""
        return self._standing.running.engine.log.layout.first_position

    @property
    def committed_position(self) -> Position:
        """The byte place where the first entry starts that is not known to be committed."""
        return self.position_of(Index(self.commit_index + 1))

    @property
    def applied_position(self) -> Position:
        """The byte place up to which entries are known to be committed, and are applied here."""
        layout = self._standing.running.engine.log.layout
        index = Index(min(self.applied_index, self.commit_index) + 1)
        return layout.position_of(max(index, layout.first_index))

    def position_of(self, index: Index) -> Position:
        """Return the byte place of an entry's header."""
        return self._standing.running.engine.log.layout.position_of(index)

    def term_runs(self, runs_max: int) -> list[TermRun]:
        """Return the newest terms that have a committed entry here, oldest first, each with where it begins."""
        layout = self._standing.running.engine.log.layout
        commit_index = self.commit_index
        return [
            TermRun(term, layout.position_of(first))
            for term, first in layout.term_runs(runs_max)
            if first <= commit_index
        ]

    def committed_fingerprint(self, index: Index) -> EntryFingerprint | None:
        """Return the fingerprint of a committed entry; None when it is not committed, not kept, or not known now."""
        driver = self._standing.driver
        if driver is None or index > self.commit_index:
            return None
        log = driver.engine.log
        # Of the entry before the first one, too: a log that was just begun anew knows no other.
        term = log.layout.term_of(index) if index else None
        try:
            return None if term is None else EntryFingerprint(term, log.chain_crc_of(index))
        except OSError as error:
            log.shortage.judge(f"entry {index}", error)
            return None

    def expect_applied(self, index: Index) -> None:
        """Have entries up to this one applied as soon as they are known to be committed: somebody waits for it."""
        driver = self._standing.driver
        if driver is not None:
            driver.expect_applied(index)

    def watch_applied(self, callback: Callable[[], None]) -> None:
        """Call back after entries were applied and their proposers were answered."""
        self.applied_watchers.append(callback)

    # How new.

    @property
    def is_current(self) -> bool:
        """True while everything that any client can have seen confirmed is applied here.

        The member serves, holds the lease, and has applied what is committed: large entries are folded in pieces,
        and a follower may be done sooner.
        """
        standing = self._standing
        driver = standing.driver
        return (
            driver is not None
            and not standing.has_stopped
            and driver.applied_index >= driver.engine.node.commit_index
            and standing.has_lease()  # so the first entry of the term is committed, and it serves
        )

    @property
    def current_end(self) -> Position | None:
        """`committed_position` while this `is_current`, else None; both in one look, for those who read often."""
        standing = self._standing
        driver = standing.driver
        if driver is None or standing.has_stopped:
            return None
        engine = driver.engine
        commit_index = engine.node.commit_index
        if driver.applied_index < commit_index or not standing.has_lease():
            return None
        return engine.log.layout.position_of(Index(commit_index + 1))

    async def barrier(self, *, timeout_s: float) -> Index:
        """Return a linearizable read point: what was committed before the call is applied here.

        Raises:
            NotLeaderError: this node does not lead, or lost its leadership meanwhile.
            StoppingError: it stops.
            ReadTimeoutError: not confirmed in time.
            RefusedError: refused for another reason; nothing happened.
        """
        driver = self._standing.check_serving()
        try:
            with trio.fail_after(timeout_s):
                outcome = await wait_outcome(driver.request_read, math.inf)
                assert isinstance(outcome, ReadAt), f"a read ended as {outcome}"
                await driver.wait_applied(outcome.index)
        except trio.TooSlowError:
            raise ReadTimeoutError(f"the read was not confirmed within {timeout_s:g} s") from None
        if self._standing.has_stopped:
            raise StoppingError(f"{self._standing.node_id} has stopped")
        return outcome.index

    # Entries.

    def get(self, index: Index) -> Entry:
        """Return a committed entry.

        Raises:
            OutOfRangeError, CompactedError: it is not there.
            EntryDamagedError: the disk does not give it, or the log lacks what a fetched state contains; it
                comes from another member, perhaps soon. Or it cannot be read now: see `wait_mended`.
            DiskFailedError, CorruptionError: nor can anybody help: this group has no other member.
        """
        return self.get_range(index, count_max=1, bytes_max=1)[0]

    def get_range(self, index: Index, *, count_max: int, bytes_max: int) -> list[Entry]:
        """Return committed entries from `index`: at least one, at most `count_max`, at most about `bytes_max`.

        Raises:
            OutOfRangeError, CompactedError: the first is not there.
            EntryDamagedError, DiskFailedError, CorruptionError: as `get`, of the first.
        """
        driver = self._standing.running
        first_index = driver.engine.log.layout.first_index
        if index < first_index and index > 0:
            raise CompactedError(index, first_index)
        commit_index = self.commit_index
        if commit_index < index <= driver.applied_index:
            raise EntryDamagedError(
                f"entry {index} has yet to come: the state of {self._standing.node_id} is ahead of its log"
            )
        if not first_index <= index <= commit_index:
            raise OutOfRangeError(index, first_index, commit_index)
        end = Index(min(index + max(1, count_max), commit_index + 1))
        try:
            entries = driver.read(index, end, bytes_max)
        except OSError as error:
            raise DiskFailedError(f"entry {index} cannot be read: {error}") from error
        assert entries[0].index == index, f"entry {entries[0].index} instead of {index}"
        assert entries[-1].index < end, f"entry {entries[-1].index} is not known to be committed"
        return entries

    def entry_at(self, position: Position) -> Entry:
        """Return the committed entry that covers a byte of the log.

        Raises:
            OutOfRangeError, CompactedError: none does.
            EntryDamagedError, DiskFailedError, CorruptionError: as `get`.
        """
        layout = self._standing.running.engine.log.layout
        try:
            index = layout.index_at(position)
        except OSError as error:
            raise self._not_looked_up(position, error) from error
        if index is None:
            # Beyond the end, or before the first byte that is kept.
            is_beyond = position >= layout.end_position
            index = Index(layout.last_index + 1 if is_beyond else layout.first_index - 1)
        return self.get(index)

    # Parts of entries.

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        """Return the committed bytes at a position, with whatever of the entry's body stands around them.

        They end with the body, if that ends before; a position in a header gives the beginning of the body.

        Args:
            position: of the first byte.
            size_bytes: how many.
            only_memory: return None rather than read the disk; see `load`.

        Raises:
            OutOfRangeError, CompactedError, EntryDamagedError, DiskFailedError, CorruptionError: as `entry_at`.
        """
        try:
            if only_memory:
                return self._span_in_memory(position, size_bytes)
            return self._span_at(position, size_bytes)
        except OSError as error:
            raise self._not_looked_up(position, error) from error

    def _span_in_memory(self, position: Position, size_bytes: int) -> BodySpan | None:
        """See `span_at`; None, too, if it has to be read on the disk where that stands."""
        driver = self._standing.running
        log = driver.engine.log
        try:
            with log.without_waiting():
                index = log.layout.index_at(position)
                if index is not None and index <= driver.engine.node.commit_index:
                    return self.running_cold.planner.span(index, position, size_bytes)
        except PageNotLoadedError:
            return None
        return self._span_at(position, size_bytes)  # which says why there is none

    def _span_at(self, position: Position, size_bytes: int) -> BodySpan:
        """See `span_at`. Raises OSError, too, where the index of a segment cannot be read."""
        driver = self._standing.running
        index = driver.engine.log.layout.index_at(position)
        if index is None or index > driver.engine.node.commit_index:
            entry = self.entry_at(position)
        else:
            cold = self.running_cold
            span = cold.planner.span(index, position, size_bytes)
            if span is not None:
                return span
            span = cold.read_now(index, position, size_bytes)
            if span is not None:
                return span
            entry = self.get(index)
            cold.keep(entry)
        return BodySpan(Position(entry.position + ENTRY_HEADER_BYTES), entry.body)

    def views(self, runs: Sequence[Run], end: Position) -> list[memoryview] | None:
        """Return the bytes of runs in order, verified, without waiting for the disk; None if that cannot be.

        Then, too, if they are not all committed and kept here: `span_at` says what is wrong.

        Args:
            runs: ascending; each is one record, or records back to back, and so stands in the body of one entry.
            end: `committed_position`, as it is or was.
        """
        cold = self.running_cold
        if not runs or runs[0][0] < cold.planner.first_position or runs[-1][1] > end:
            return None
        try:
            return cold.planner.views(runs)
        except (OSError, DiskFailedError):
            return None

    def stretches(self, starts: Sequence[int], sizes: Sequence[int], end: Position) -> Stretches:
        """Return verified bytes around some records, without waiting for the disk, up to the first that is not there.

        None of them, too, if they are not all committed and kept here, or cannot be looked up: `span_at` says what is
        wrong.

        Args:
            starts: positions of the records, ascending; each stands in the body of one entry.
            sizes: of the records in bytes.
            end: `committed_position`, as it is or was.
        """
        layout = self._standing.running.engine.log.layout
        if not starts or starts[0] < layout.first_position or starts[-1] + sizes[-1] > end:
            return Stretches([], [])
        try:
            return self.running_cold.planner.stretches(starts, sizes)
        except (OSError, DiskFailedError):
            return Stretches([], [])

    def load(
        self,
        places: Sequence[Place],
        done: Callable[[], None],
        is_wanted: Callable[[], bool] = ever_wanted,
    ) -> None:
        """Read places of the log into memory beside the loop, then call `done`; at once if there is nothing to read.

        Not all of it need be there then: it may be damaged, or too much for one read, or not wanted any more when its
        turn came.
        """
        self.running_cold.load(places, done, is_wanted)

    def read_beside(
        self, work: Callable[[], None], done: Callable[[], None], is_wanted: Callable[[], bool]
    ) -> None:
        """Run a read of other files beside the loop, in turn with reads of the log; see `ColdReads.read_beside`."""
        self.running_cold.read_beside(work, done, is_wanted)

    @property
    def running_cold(self) -> ColdReads:
        """The reads of what is not in memory, of a member whose store is open."""
        assert self.cold is not None, "it is set together with the driver"
        return self.cold

    async def wait_mended(self) -> None:
        """Wait until some entry that was damaged is back, or what could not be read now may be read again."""
        await self._standing.running.wait_mended()

    async def snapshot_part(self, index: Index, offset: int) -> SnapshotPart:
        """Return a part of this member's snapshot of the state, for another member."""
        if self.snapshotter is None:
            return SnapshotPart(NO_INDEX, 0, 0, b"")
        return await self.snapshotter.part(index, offset)

    def _not_looked_up(self, position: Position, error: OSError) -> DLedgerError:
        """Return the error to raise where it cannot be found out now which entry stands at a byte."""
        if is_shortage(error):
            return self._standing.running.engine.log.shortage.judge(f"byte {position}", error)
        return DiskFailedError(f"byte {position} of the log cannot be looked up: {error}")
