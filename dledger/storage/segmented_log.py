"""The log on disk: a row of segments, the log's layout in memory, and writes gathered into batches.

The owner (one task) calls everything but `WriteBatch.run`, which may run in another thread while
the owner goes on appending and reading:

    log.append(entries)            readable at once, not yet durable
    batch = log.take_writes()      at most one batch is out at a time
    batch.run()                    I/O only, anywhere
    log.written(batch)             now durable; call take_writes() again until it returns None

The front is dropped in the same way: `drop = log.drop_before(index)` forgets at once, and `drop.run()` removes the
files, anywhere, beside batches.

An entry that is not durable stays in memory, so reads never meet a half-written place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dledger.codec.entry import EntryFormatError, chain_crc, check_entry, is_right_after, seal
from dledger.codec.log_start import LogStart
from dledger.errors import CorruptionError, PeerProtocolError, UsageError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.finished_row import FinishedEntries
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, Position
from dledger.raft.log_layout import LogLayout
from dledger.storage.api import Disk
from dledger.storage.entry_cache import EntryCache
from dledger.storage.examination import Examination, Finding
from dledger.storage.log_reader import CheckPlan, FilePlace, SegmentReader
from dledger.storage.log_start import FrontDrop
from dledger.storage.log_writer import LogWriter
from dledger.storage.opening import OpenedLog, open_log
from dledger.storage.page_loads import PageLoad, page_load
from dledger.storage.read_errors import is_shortage
from dledger.storage.scan import ChainEnd
from dledger.storage.sealed_index import PageCache, SealedIndex, WrittenEntries
from dledger.storage.segment import Segment, StorePaths
from dledger.storage.segment_list import SegmentList
from dledger.storage.shortage import Shortage
from dledger.storage.stale_pages import StalePages, usual_kept_bytes
from dledger.storage.write_batch import WriteBatch

SEGMENT_SIZE_BYTES = 256 * 1024 * 1024
CACHE_BYTES_MAX = 64 * 1024 * 1024

_BETWEEN_MAX = 4
"""Entries for each byte that somebody asks for: to take them all costs less than to look each byte up."""


class SegmentedLog:
    """The log of one member on its disk: entries are appended, read, cut at the end, dropped at the front.

    Invariant: the index and the cache end with the same entry, if the cache has any.

    Attributes:
        begun_count: how often the log was begun anew; what was read before then is of no use.
        recovery_notes: a sentence per thing that opening found and mended.
        notes: an event and its fields for each index that was damaged since, and for reads that were refused; the
            caller takes them away.
        shortage: the reads that were refused; whoever reads judges its errors by it.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        opened: OpenedLog,
        *,
        segment_size_bytes: int,
        cache_bytes_max: int,
        page_cache_bytes: int,
        syncs: bool,
    ) -> None:
        """Use `SegmentedLog.open`."""
        self._disk = disk
        self._paths = paths
        self._row = SegmentList(disk, opened.segments)
        self._pages = opened.pages
        self._index = opened.index
        self._layout = opened.index.layout
        self._cache = EntryCache(cache_bytes_max)
        self._reader = SegmentReader(disk, paths, self._row, self._index)
        self._stale = StalePages(self._layout.end_position, page_cache_bytes)
        self._writer = LogWriter(
            disk,
            paths,
            self._row,
            self._index,
            segment_size_bytes=segment_size_bytes,
            stale=self._stale,
            syncs=syncs,
        )
        self._finished: SealedIndex | None = None
        self._seen_next: tuple[Entry, int] | None = None
        self.begun_count = 0
        self.recovery_notes: tuple[str, ...] = tuple(opened.notes)
        self.notes: list[tuple[str, dict[str, object]]] = []
        self.shortage = Shortage(self.notes)
        self._pages.on_lost = self._writer.latch.fail
        self._pages.on_refused = self.shortage.seen
        self._pages.on_rebuilt = lambda path, problem: self.notes.append(
            ("index-rebuilt", {"path": path, "reason": problem})
        )

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str = "",
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        page_cache_bytes: int | None = None,
        syncs: bool = True,
    ) -> SegmentedLog:
        """Open or create the log in a folder of the disk.

        Args:
            disk: where the files are.
            folder: the log's own folder; `data/` and `index/` are made in it.
            segment_size_bytes: a segment is finished before it would exceed this.
            cache_bytes_max: recent entries kept in memory, besides those not yet durable.
            page_cache_bytes: what the page cache has of it further before its end, it gives up as the log grows. None:
                by the memory of the machine.
            syncs: False: entries count as durable once they are written (LogConfig.fsync).

        Raises:
            CorruptionError: durable bytes were lost or changed; names file and byte.
            OSError: the disk failed.
        """
        if segment_size_bytes < 1:
            raise UsageError(f"segment_size_bytes={segment_size_bytes} must be at least 1")
        paths = StorePaths(folder)
        return cls(
            disk,
            paths,
            open_log(disk, paths, PageCache()),
            segment_size_bytes=segment_size_bytes,
            cache_bytes_max=cache_bytes_max,
            page_cache_bytes=usual_kept_bytes(disk)
            if page_cache_bytes is None
            else page_cache_bytes,
            syncs=syncs,
        )

    @property
    def layout(self) -> LogLayout:
        """The entries without their bodies. The log's own: copy it to keep it."""
        return self._layout

    @property
    def last_id(self) -> EntryId:
        """Term and index of the last entry, durable or not."""
        return self._layout.last_id

    @property
    def end_position(self) -> Position:
        """The place at which the next entry's header will stand."""
        return self._layout.end_position

    @property
    def chain_crc_before_first(self) -> int:
        """The chain CRC of the entry that the first one follows; 0 before the first of all."""
        return self._index.chain_crc_before(self._layout.first_index)

    @property
    def durable_index(self) -> Index:
        """The last entry of those that survive a crash, all of them from the first."""
        return self._writer.durable_index

    @property
    def durable_id(self) -> EntryId:
        """Term and index of the last durable entry."""
        index, layout = self._writer.durable_index, self._layout
        if index < layout.first_index - 1:
            return EntryId(NO_TERM, NO_INDEX)  # begun anew, and not even that is durable
        term = layout.last_term if index == layout.last_index else layout.term_of(index)
        assert term is not None, f"the durable entry {index} left the log"
        return EntryId(term, index)

    @property
    def has_writes(self) -> bool:
        """True while `take_writes` would give a batch once the present one is done."""
        return self._writer.has_writes

    @property
    def failure(self) -> str | None:
        """The reason why the log takes no more writes; None while it is well."""
        return self._writer.latch.reason

    # Changing the log.

    def is_next(self, entry: Entry) -> bool:
        """Return whether a sealed entry follows this log directly, and is right in all that `append` verifies.

        It need not be verified again when it is appended now.
        """
        layout = self._layout
        if entry.index != layout.last_index + 1 or entry.position != layout.end_position:
            return False
        chain = self._index.last_chain_crc
        if not is_right_after(entry, chain):
            return False
        self._seen_next = entry, chain
        return True

    def append(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Put entries after the end, sealing those without a header; all or none.

        Args:
            entries: contiguous from last_index + 1 and `end_position`. A leader's new entries have
                no header yet; entries that came from a leader have one, which is verified against
                this log's own chain.

        Returns:
            The entries as stored.

        Raises:
            PeerProtocolError: a sealed entry does not follow this log; nothing was appended.
            UsageError: an unsealed entry does not follow this log; nothing was appended.
            DiskFailedError: the log takes no more writes.
        """
        self._writer.latch.check()
        layout, log_index = self._layout, self._index
        index, term = layout.last_index + 1, layout.last_term
        position: int = layout.end_position
        chain = log_index.last_chain_crc
        seen, self._seen_next = self._seen_next, None
        sealed: list[Entry] = []
        chains: list[int] = []
        for entry in entries:
            if entry.index != index or entry.position != position or entry.term < term:
                kind = PeerProtocolError if entry.header else UsageError
                raise kind(
                    f"entry {entry.id} at position {entry.position} does not follow entry "
                    f"{index - 1}@{term}, which ends at {position}"
                )
            if not entry.header:
                stored = seal(entry, chain)
            else:
                stored = entry
                if seen is None or seen[0] is not entry or seen[1] != chain:
                    _check_from_peer(entry, chain)
            chain = chain_crc(stored)
            sealed.append(stored)
            chains.append(chain)
            index, position, term = index + 1, position + stored.size_bytes, stored.term
        log_index.append(sealed, chains)
        for stored in sealed:
            self._cache.add(stored)
        assert layout.end_position == position, f"{layout.end_position} is not {position}"
        self._writer.add(sealed)
        self._cache.shrink(self._writer.durable_index)
        return tuple(sealed)

    def truncate_from(self, first: Index) -> None:
        """Remove `first` and everything after it; on disk with the next batch.

        Raises:
            OutOfRangeError: there is no such entry.
            DiskFailedError: the log takes no more writes.
        """
        self._writer.latch.check()
        self._index.check_has(first)
        self._writer.truncate_from(first)
        self._index.truncate_from(first)
        self._pages.close_others(self._index.sealed.parts())
        self._cache.truncate_from(first)

    def kept_from(self, index: Index) -> Index:
        """Return the first entry that would be kept if everything before `index` was dropped: whole segments go."""
        count = self._row.count_before(index)
        return self._row[count].first_index if count else self._layout.first_index

    def drop_before(self, index: Index) -> FrontDrop | None:
        """Forget the segments that lie wholly before an entry; None: there are none.

        They must be durable. Their files are there until the drop has run; it need not be run before the log is
        used or closed, and files that are left are no harm.
        """
        count = self._row.count_before(index)
        if not count:
            return None
        segment = self._row[count]
        first, prev_index = segment.first_index, Index(segment.first_index - 1)
        assert prev_index <= self.durable_index, f"entry {prev_index} is dropped, and not durable"
        prev_term = self._layout.term_of(prev_index)
        assert prev_term is not None, f"entry {first} has none before it"
        start = LogStart(
            prev_index, prev_term, segment.first_position, self._index.chain_crc_of(prev_index)
        )
        self._row.take_front(count)
        self._index.forget_before(first)
        self._pages.close_others(self._index.sealed.parts())
        self._cache.forget_before(first)
        return FrontDrop(self._disk, self._paths, start)

    def begin_after(self, before: ChainEnd) -> None:
        """Forget everything: the next entry follows one that is not kept. On disk with the next batch.

        No batch and no drop may be out. Nothing counts as durable until that batch has run.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        self.begun_count += 1
        self._writer.begin_after(before)
        self._index.begin_after(before)
        self._pages.close_others(())
        self._cache.clear()

    def mend(self, entry: Entry) -> None:
        """Write a durable entry back to where it stands, and sync; its place is verified again.

        Raises:
            PeerProtocolError: it is not the entry that this log has.
            CorruptionError: the disk took it, and does not give it: as damaged as before.
            DiskFailedError: the write or the sync failed.
            OSError: a shortage; nothing was written.
        """
        latch = self._writer.latch
        latch.check()
        self._index.check_has(entry.index)
        _check_from_peer(entry, self._index.chain_crc_before(entry.index))
        if chain_crc(entry) != self._index.chain_crc_of(entry.index):
            raise PeerProtocolError(f"entry {entry.id} is not the one that this log has")
        # The chain CRC covers the header, so the place is the one where the entry was written.
        assert entry.position == self._layout.position_of(entry.index), f"{entry.id} elsewhere"
        segment, _ = self._row.find(entry.position)
        byte = entry.position - segment.first_position
        try:
            data = self._row.open_data(segment)
        except OSError as error:
            if is_shortage(error):
                raise
            raise latch.fail(error) from error
        try:
            data.write_at(byte, (entry.header, entry.body))
            data.sync()
        except OSError as error:
            raise latch.fail(error) from error
        try:
            self._reader.read(entry.index, Index(entry.index + 1))
        except OSError as error:
            path = self._paths.data_path(segment.first_position)
            problem = f"unreadable after it was written: {error}"
            raise CorruptionError(path, byte, problem) from error

    # Making it durable.

    def take_writes(self) -> WriteBatch | None:
        """Return the next writes to carry out; None when there are none.

        A batch stays within one segment and `WRITE_BATCH_BYTES_MAX`, so there may be more to take
        after it. The batch before must have been reported with `written`. After DiskFullError the
        same batch may be run again.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        return self._writer.take()

    def written(self, batch: WriteBatch) -> EntryId:
        """Note that a batch has run, and return the last durable entry.

        Entries of the batch that were truncated meanwhile do not count.
        """
        finished = self._writer.written(batch)
        if finished is not None:
            assert batch.segment is not None, "a segment is finished for the entries of another one"
            self._finished = self._sealed(finished, batch.segment)
            self._index.finish(self._finished)
        self._cache.shrink(self._writer.durable_index)
        return self.durable_id

    def _sealed(self, finished: Segment, following: Segment) -> SealedIndex:
        """Return the entries of a finished segment, for the look-ups to come."""
        layout, index = self._layout, self._index
        first, last = finished.first_index, Index(following.first_index - 1)
        prev_term, last_term = layout.term_of(Index(first - 1)), layout.term_of(last)
        assert prev_term is not None, f"entry {first} has none before it"
        assert last_term is not None, f"entry {last} left the log"
        before = ChainEnd(
            Index(first - 1), prev_term, finished.first_position, index.chain_crc_before(first)
        )
        end = ChainEnd(last, last_term, following.first_position, index.chain_crc_of(last))
        written = None
        if first == layout.open_index:
            written = WrittenEntries(
                first,
                layout.positions_of(first, following.first_index),
                index.chain_crcs_of(first, following.first_index),
            )
        return SealedIndex(Examination(self._disk, self._paths, before, end), self._pages, written)

    def take_finished(self) -> FinishedEntries | None:
        """Return the segment that the last batch finished, once: whoever has a copy of `layout` finishes it there."""
        taken, self._finished = self._finished, None
        return taken

    # Verifying finished segments.

    def unverified(self) -> SealedIndex | None:
        """Return the newest finished segment whose index was not read whole since the start; None: all were."""
        parts = reversed(self._index.sealed.parts())
        return next((part for part in parts if not part.is_verified), None)

    def examined(self, part: SealedIndex, found: Finding) -> None:
        """Take what an examination of a finished segment has found, if it is still one.

        Raises:
            DiskFailedError: it and its index are both damaged; the node must stop.
        """
        if part in self._index.sealed.parts() and not part.is_verified:
            part.take(found)

    def flush_index(self) -> None:
        """Make data and index durable, at an orderly end. No batch may be out.

        Raises:
            DiskFullError: no room for the index; it is made again from the data on opening.
            DiskFailedError: it failed, now or earlier.
        """
        self._writer.flush_index()

    # Looking things up without waiting.

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Let look-ups raise `PageNotLoadedError` rather than wait for the disk."""
        self._pages.may_wait = False
        try:
            yield
        finally:
            self._pages.may_wait = True

    def missing_pages(self, start: Position, end: Position) -> list[PageLoad]:
        """Plan the reading of what look-ups of bytes start..end-1 would wait for."""
        start = max(start, self._layout.first_position)
        found: list[PageLoad] = []
        for part in self._index.sealed.between(start, end):
            numbers = part.missing_pages(start, end)
            if numbers is None or numbers:
                found.append(page_load(part, numbers))
        return found

    def put_pages(self, load: PageLoad) -> None:
        """Take what a load has read.

        Raises:
            DiskFailedError: a segment and its index are both damaged; the node must stop.
        """
        if load.finding is not None:
            self.examined(load.part, load.finding)
        load.put()

    def close(self) -> None:
        """Close all files. What no batch has written is lost; it was never reported as durable."""
        self._row.close()
        self._pages.close_others(())

    # Reading it.

    def entries(self, first: Index, end: Index, bytes_max: int | None = None) -> list[Entry]:
        """Return the entries first..end-1, from memory or, with every checksum verified, from disk.

        Args:
            first: first entry.
            end: one after the last entry.
            bytes_max: fewer entries when these would have more bytes, headers included; at least one.

        Raises:
            OutOfRangeError, CompactedError: not all of them are in the log.
            CorruptionError: the disk gave other bytes than were written.
            OSError: the disk failed.
        """
        if first >= end:
            return []
        self._index.check_has(first)
        self._index.check_has(Index(end - 1))
        if bytes_max is not None:
            end = self._layout.end_within(first, bytes_max=bytes_max, count_max=end - first)
        found: list[Entry] = []
        index = first
        while index < end:
            entry = self._cache.get(index)
            if entry is not None:
                found.append(entry)
                index = Index(index + 1)
                continue
            stop = min(end, self._cache.first_index) if len(self._cache) else end
            found.extend(self._reader.read(index, stop))
            index = Index(found[-1].index + 1)
        assert found[-1].index == end - 1, f"read up to {found[-1].index} of {first} to {end - 1}"
        return found

    def entry_at(self, position: Position) -> Entry:
        """Return the entry whose header or body covers a byte of the log.

        Raises:
            OutOfRangeError: the log ends before.
            CompactedError: the log starts after it.
            CorruptionError, OSError: as `entries`.
        """
        index = self._index.index_at(position)
        return self.entries(index, Index(index + 1))[0]

    def cached(self, index: Index) -> Entry | None:
        """Return the entry if it is in memory."""
        return self._cache.get(index)

    @property
    def newest_position(self) -> Position:
        """The place of the entry from which on all are in memory; the log's end if none is."""
        first = self._cache.first
        return self._layout.end_position if first is None else first.position

    def newest_body(self, position: int) -> tuple[int, memoryview] | None:
        """Return the body of the entry in memory that covers a byte of the log, and its place; None: there is none."""
        index = self._layout.index_at(Position(position))
        entry = None if index is None else self._cache.get(index)
        return (
            None if entry is None else (entry.position + ENTRY_HEADER_BYTES, memoryview(entry.body))
        )

    def newest_around(self, positions: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Return where the bodies of entries begin that cover some bytes, ascending, perhaps others between, and these.

        Args:
            positions: of the bytes, ascending, from `newest_position` to the log's end.
        """
        index_at = self._layout.index_at
        first, last = index_at(Position(positions[0])), index_at(Position(positions[-1]))
        assert first is not None, f"{positions[0]} lies outside the log"
        assert last is not None, f"{positions[-1]} lies outside the log"
        if last - first < _BETWEEN_MAX * len(positions):
            return self._cache.bodies_between(first, last)
        found = dict.fromkeys(index_at(Position(each)) for each in positions)
        return self._cache.bodies_of(each for each in found if each is not None)

    def first_in_memory(self) -> Index:
        """Return the entry from which on all are in memory; one after the last if none is."""
        return self._cache.first_index if len(self._cache) else Index(self._layout.last_index + 1)

    def damaged(self, first: Index, end: Index) -> list[Index]:
        """Return which of the durable entries first..end-1 the disk does not give as they were written.

        Raises:
            OSError: a shortage; nothing is known of those that were not read.
        """
        first = max(first, self._layout.first_index)
        return self._reader.damaged(first, min(end, Index(self.durable_index + 1)))

    def plan_check(self, first: Index, bytes_max: int, *, last: Index | None = None) -> CheckPlan:
        """Plan the reading of durable entries from `first` on, at least one, none after `last`, within one segment."""
        end = self.durable_index if last is None else min(last, self.durable_index)
        return self._reader.plan_check(first, end, bytes_max=bytes_max)

    def file_place(self, position: Position) -> FilePlace:
        """Return where a kept byte of the log stands on the disk."""
        return self._reader.file_place(position)

    def file_places(self, position: Position, size_bytes: int) -> list[tuple[FilePlace, int]]:
        """Return where some durable bytes of the log stand on the disk, and how many of them at each place."""
        return [
            (self._reader.file_place(start), size)
            for start, size, _ in self._row.pieces(position, size_bytes)
        ]

    def note_reader(self, position: Position) -> None:
        """Note that somebody reads on from a position, and will want what follows."""
        self._stale.note_reader(position)

    def read_resident(self, position: Position, size_bytes: int) -> bytes | bytearray | None:
        """Return durable bytes of the log, not verified, if the system has all of them in memory; None if not."""
        if not self._layout.first_position <= position <= self._layout.end_position - size_bytes:
            return None
        pieces: list[bytes | bytearray] = []
        for start, size, segment in self._row.pieces(position, size_bytes):
            try:
                file = self._row.open_data(segment)
            except OSError:
                return None  # whoever reads it otherwise meets the same, and tells
            data = file.read_resident(start - segment.first_position, size)
            if data is None:
                return None
            pieces.append(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def chain_crc_before(self, index: Index) -> int:
        """Return the chain CRC of the entry before a kept one; 0 before the first of all."""
        self._index.check_has(index)
        return self._index.chain_crc_before(index)

    def chain_crc_of(self, index: Index) -> int:
        """Return the chain CRC of a kept entry, or of that which the first follows: it identifies the log to there."""
        if index != self._layout.first_index - 1:
            self._index.check_has(index)
        return self._index.chain_crc_of(index)


def _check_from_peer(entry: Entry, prev_chain_crc: int) -> None:
    try:
        check_entry(entry, prev_chain_crc)
    except EntryFormatError as error:
        raise PeerProtocolError(
            f"entry {entry.id} from a peer does not fit this log: {error}"
        ) from error
