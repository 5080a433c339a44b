"""Writes the store that a group begins with: RocketMQ's records in entries, and its tables as control records.

A record keeps its bytes but for the eight that say where it stands; those that wait on topics of the broker's own get
new queue offsets too. Queues whose beginning RocketMQ had deleted begin where they began, by a first state that says
so. Everything is written into a folder beside the target, which gets its name at the very end, once it was compared: an
import that was interrupted leaves no store.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from broker.importing.commit_log import SourceLogReader
from broker.importing.errors import ImportFailedError, SourceError, TargetError
from broker.importing.plan import ImportPlan
from broker.importing.survey import SourceSurvey, Treatment, check_unchanged, treatment_of
from broker.importing.tallies import (
    OFFSET,
    PROPERTY_CRC_BYTES,
    QUEUE_OFFSET_AT,
    digest_record,
    has_property_crc,
)
from broker.store.control import (
    COMMITS_PER_COMMAND,
    Command,
    CommitOffsets,
    ForbidTopic,
    OffsetCommit,
    PutGroup,
    PutTopic,
    SetDelayLevels,
)
from broker.store.saved import QueueRow
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.unit_files import DERIVED, SegmentFiles, UnitFiles
from broker.store.unit_stores import QueueKey
from dledger.errors import DLedgerError, StoreLockedError
from dledger.founding_store import BEFORE_FIRST, FoundingStore
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, Position
from dledger.storage.lock import LOCK_NAME, StoreLock
from dledger.storage.posix import PosixDisk
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.record import PHYSICAL_OFFSET_AT, StoredMessage
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED

ENTRY_BYTES: Final = 1024 * 1024
"""Of an entry's body, unless one record has more."""

COMMANDS_PER_ENTRY: Final = 500
ASIDE_SUFFIX: Final = ".importing"

_NO_HOST: Final = bytes(8)


class Selection:
    """Says of each record whether it is taken over."""

    def __init__(self, plan: ImportPlan, found: SourceSurvey) -> None:
        self._plan = plan
        self._found = found

    def takes(self, message: StoredMessage, key: QueueKey, treatment: Treatment) -> bool:
        """Return whether a record goes over."""
        if message.sys_flag & TRANSACTION_PREPARED:
            return False
        if treatment is Treatment.HALF:
            return bool(self._plan.half_count) and self._found.halves.is_open(message)
        if treatment is Treatment.TIMED:
            return bool(self._plan.timer_count) and self._found.timers.is_waiting(message)
        queue = self._plan.queues.get(key)
        return (
            queue is not None
            and message.physical_offset >= queue.begun_at
            and message.queue_offset >= queue.min_offset
        )


def moved(data: bytes, physical_offset: PhysicalOffset, queue_offset: QueueOffset) -> bytes:
    """Return a record as it stands at another place; all its other bytes stay."""
    record = bytearray(data)
    OFFSET.pack_into(record, PHYSICAL_OFFSET_AT, physical_offset)
    OFFSET.pack_into(record, QUEUE_OFFSET_AT, queue_offset)
    if has_property_crc(data):
        end = len(record) - PROPERTY_CRC_BYTES
        crc = zlib.crc32(memoryview(record)[:end]) & 0x7FFF_FFFF
        digits = f"{crc:010d}"[::-1].encode()  # RocketMQ writes the last digit first
        record[-1 - len(digits) : -1] = digits
    return bytes(record)


def target_folder(named: Path) -> Path:
    """Return the folder of a new store as it is really called: it is empty, or not there yet.

    Raises:
        TargetError: with what is there, or why it cannot be given its name.
    """
    try:
        target = named.resolve()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise TargetError(
                f"{target} is not empty: an import makes a new store and adds to none"
            )
        if target.is_mount():
            raise TargetError(
                f"{target} is where a disk is mounted, and a store is put in its place as a whole folder: name one "
                "inside it"
            )
    except (OSError, RuntimeError) as error:  # the latter is a circle of links
        raise TargetError(f"{named}: {error}") from error
    return target


def check_target(target: Path, plan: ImportPlan) -> None:
    """Refuse a target in which something is, or which has no room. Nothing is written.

    Raises:
        TargetError: with what is there, or how much room is missing.
    """
    target = target_folder(target)
    try:
        folder = next(each for each in target.parents if each.exists())
        wanted = plan.room_bytes
        free = shutil.disk_usage(folder).free
        if free < wanted:
            raise TargetError(f"{folder} has {free} bytes of room, an import may need {wanted}")
    except OSError as error:
        raise TargetError(f"{error.filename}: {error.strerror}") from error


def _check_ours(aside: Path) -> None:
    """Refuse to remove what no import has written.

    Raises:
        TargetError: the folder is not empty, and has no lock of an import.
    """
    try:
        is_foreign = aside.exists() and any(aside.iterdir()) and not (aside / LOCK_NAME).is_file()
    except OSError as error:
        raise TargetError(f"{error.filename}: {error.strerror}") from error
    if is_foreign:
        raise TargetError(
            f"{aside} is where the store is written first, and something else is in it: remove it, or name another "
            "store"
        )


def _clear(aside: Path) -> None:
    """Remove what an import has left behind that was interrupted; the lock stays.

    Raises:
        OSError: it cannot be removed.
    """
    for path in aside.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_NAME:
            path.unlink()


class StoreCopy:
    """One import. Blocks; what it holds in memory does not grow with the store but with its queues and what waits.

    Attributes:
        digests: of each queue's records, as they were read.
        counts: of each queue's records.
    """

    def __init__(
        self,
        found: SourceSurvey,
        plan: ImportPlan,
        target: Path,
        *,
        now_ms: int,
        delays_ms: Sequence[int] = (),
    ) -> None:
        """Prepare an import.

        Args:
            found: what the store holds.
            plan: what becomes of it; without problems.
            target: the folder of the new store, which is empty or missing.
            now_ms: the time, for a log without messages.
            delays_ms: RocketMQ's delay levels; none: the usual ones.

        Raises:
            TargetError: the target is not empty.
        """
        assert not plan.problems, f"{len(plan.problems)} problems are left"
        self.digests: dict[QueueKey, int] = {}
        self.counts: dict[QueueKey, int] = {}
        self._found = found
        self._plan = plan
        self._target = target_folder(target)
        self._aside = self._target.with_name(self._target.name + ASIDE_SUFFIX)
        self._now_ms = now_ms
        self._delays_ms = delays_ms

    def run(self, progress: Callable[[int, int], None], compare: Callable[[Path], bool]) -> bool:
        """Write the store, have it compared, and only then give it its name; return whether it got that.

        Args:
            progress: called now and then with the bytes of the old log that were copied, and all that there are.
            compare: gets the folder in which the new store lies until then; says whether it is as it should be.

        Raises:
            TargetError: the target is not empty.
            ImportFailedError, SourceError: reading or writing failed; there is no new store, but where the text says
                so.
        """
        check_target(self._target, self._plan)
        _check_ours(self._aside)
        try:
            with StoreLock(self._aside):
                self._write(progress)
                is_equal = compare(self._aside)
                if is_equal:
                    check_unchanged(self._found)
                    self._put_in_place()
        except StoreLockedError as error:
            raise TargetError(f"{error}: another import writes to {self._target}") from error
        except (OSError, DLedgerError) as error:
            raise ImportFailedError(
                f"{error}; nothing was imported, what was written lies in {self._aside} and is removed by the next "
                "import"
            ) from error
        return is_equal

    def _origin(self) -> int:
        """Return the checksum of what tells one store from another, also of stores without a message."""
        plan, found = self._plan, self._found
        tables = (plan.topics, plan.groups, sorted(plan.forbidden.items()), sorted(plan.offsets))
        return crc32c(repr((found.end.physical_offset, found.last_ms, tables)).encode())

    def _write(self, progress: Callable[[int, int], None]) -> None:
        """Write everything beside the target."""
        _clear(self._aside)
        derived = self._aside / DERIVED
        disk = PosixDisk(str(self._aside))
        # Stores of different origins must not be taken for copies of each other.
        store = FoundingStore(disk, Position(self._plan.position), self._origin())
        state = BrokerState(
            UnitFiles(derived), SegmentFiles(derived), far_timers=TimerFiles(derived)
        )
        self._begin(state)
        store.save_state(state)
        writer = _EntryWriter(store, state)
        now_ms = self._first_ms()
        for commands in _grouped(self._first_commands()):
            writer.write_commands(commands, now_ms)
        self._copy_records(writer, progress)
        for commands in _grouped(self._last_commands()):
            writer.write_commands(commands, max(now_ms, self._found.last_ms))
        store.save_state(state)
        store.finish()
        shutil.rmtree(derived)

    def _put_in_place(self) -> None:
        """Give the store its name.

        Raises:
            OSError: it cannot get it.
            ImportFailedError: it has it, and may lose it again.
        """
        if self._target.exists():
            self._target.rmdir()
        self._aside.rename(self._target)
        try:
            PosixDisk(str(self._target.parent)).sync_folder("")
        except OSError as error:
            raise ImportFailedError(
                f"{self._target} is the new store, whole and compared, but its name may be lost if the power is cut "
                f"now: {self._target.parent} could not be synced ({error.strerror})"
            ) from error

    def _begin(self, state: BrokerState) -> None:
        """Bring an empty state to where the queues begin."""
        for key, queue in self._plan.queues.items():
            if queue.min_offset:
                row = QueueRow(key[0], key[1], queue.min_offset, queue.min_offset, 0, 0)
                for _ in state.queues.create(key).load_steps(row, (), 1):
                    pass
        position = Position(self._plan.position)
        first_ms = StoreTimeMs(self._first_ms())
        state.retention.begin_at(Index(BEFORE_FIRST + 1), position, first_ms)
        state.queues.forget(position)
        state.last_store_ms = first_ms
        state.applied_index = BEFORE_FIRST

    def _first_ms(self) -> int:
        """Return the time from which the new log counts: that of the first record, if there is any."""
        return self._found.first_ms or self._now_ms

    def _first_commands(self) -> Iterator[Command]:
        if self._delays_ms:
            yield SetDelayLevels(list(self._delays_ms))
        for topic in self._plan.topics:
            yield PutTopic(topic)
        for group in self._plan.groups:
            yield PutGroup(group)
        for (name, topic_name), bits in self._plan.forbidden.items():
            yield ForbidTopic(name, topic_name, bits)

    def _last_commands(self) -> Iterator[Command]:
        commits = [
            OffsetCommit(group, topic, queue_id, offset)
            for topic, group, queue_id, offset in self._plan.offsets
        ]
        for first in range(0, len(commits), COMMITS_PER_COMMAND):
            yield CommitOffsets(commits[first : first + COMMITS_PER_COMMAND], is_forced=True)

    def _copy_records(self, writer: _EntryWriter, progress: Callable[[int, int], None]) -> None:
        """Copy the records in the order of the log.

        Raises:
            SourceError: the log is not what it was when it was read first.
        """
        files, end = self._found.files, self._found.end
        begin, total = files[0].first_offset, end.physical_offset - files[0].first_offset
        selection = Selection(self._plan, self._found)
        reader = SourceLogReader(
            files, end.physical_offset, in_entries=self._found.source.in_entries
        )
        for message, data in reader.records():
            key = (message.topic.encode(), QueueId(message.queue_id))
            treatment = treatment_of(key[0])
            if not selection.takes(message, key, treatment):
                continue
            is_kept = treatment in (Treatment.AS_IT_IS, Treatment.DELAYED)
            offset = QueueOffset(message.queue_offset) if is_kept else writer.next_offset(key)
            if writer.add(data, offset):
                progress(message.physical_offset - begin, total)
            self.digests[key] = digest_record(data, self.digests.get(key, 0))
            self.counts[key] = self.counts.get(key, 0) + 1
        writer.flush()
        if reader.end is None or reader.end.physical_offset != end.physical_offset:
            raise SourceError(
                f"the commit log has changed while it was read: it ends at {reader.end}"
            )
        progress(total, total)


class _EntryWriter:
    """Gathers records into entries, and has each folded."""

    def __init__(self, store: FoundingStore, state: BrokerState) -> None:
        self._store = store
        self._state = state
        self._staging = Staging(state, _NO_HOST)
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._next_offsets: dict[QueueKey, QueueOffset] = {}

    def next_offset(self, key: QueueKey) -> QueueOffset:
        """Return the next offset of a queue whose messages are counted anew."""
        offset = self._next_offsets.get(key, QueueOffset(0))
        self._next_offsets[key] = QueueOffset(offset + 1)
        return offset

    def add(self, data: bytes, queue_offset: QueueOffset) -> bool:
        """Add a record; return whether an entry was written before it."""
        is_full = bool(self._pieces) and self._bytes + len(data) > ENTRY_BYTES
        if is_full:
            self.flush()
        place = self._store.end_position + ENTRY_HEADER_BYTES + self._bytes
        self._pieces.append(moved(data, PhysicalOffset(place), queue_offset))
        self._bytes += len(data)
        return is_full

    def flush(self) -> None:
        """Write what was gathered."""
        if self._pieces:
            body = b"".join(self._pieces)
            self._pieces, self._bytes = [], 0
            self._append(body)

    def write_commands(self, commands: Sequence[Command], now_ms: int) -> None:
        """Write control records as one entry."""
        assert not self._pieces, f"{len(self._pieces)} records are not written"
        for command in commands:
            self._staging.stage_control(command, now_ms)
        staged = self._staging.build_entry(self._store.end_position, now_ms)
        self._append(staged.body)

    def _append(self, body: bytes) -> None:
        entry = self._store.append(body)
        self._state.apply([entry])
        if self._state.refusals.count:
            refusal = self._state.refusals.newest[-1]
            raise ImportFailedError(
                f"a record was not accepted: {refusal.kind.name}, {refusal.detail}; nothing was imported"
            )


def _grouped(commands: Iterator[Command]) -> Iterator[list[Command]]:
    """Yield commands in groups of at most COMMANDS_PER_ENTRY."""
    group: list[Command] = []
    for command in commands:
        group.append(command)
        if len(group) == COMMANDS_PER_ENTRY:
            yield group
            group = []
    if group:
        yield group
