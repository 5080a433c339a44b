"""Reads a store that was just imported as a member would at its start, and compares it with what RocketMQ had.

Compared are the min and max offset of each queue, how many records it has, and a digest of all their bytes but those
that say where they stand; for queues whose offsets are counted anew, their number and digest. Nothing is written but
what every start writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.importing.errors import ImportFailedError
from broker.importing.plan import ImportPlan
from broker.importing.survey import Treatment, treatment_of
from broker.importing.tallies import digest_record
from broker.store.parse import KEY, PHYSICAL_OFFSET, SIZE_BYTES, parse_records
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.topics import CONTROL_TOPICS
from broker.store.unit_files import DERIVED, SegmentFiles, UnitFiles
from broker.store.unit_stores import QueueKey
from dledger.errors import DLedgerError
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index
from dledger.starting_state import restore_newest
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.snapshots import SnapshotStore
from dledger_mq.message.numbers import PhysicalOffset

_CONTROL: Final = frozenset(topic.encode() for topic in CONTROL_TOPICS)


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """A queue that is not what it was; `was` and `now` are for people."""

    topic: str
    queue_id: int
    was: str
    now: str


@dataclass(slots=True)
class _Read:
    """The records of a queue in the new store."""

    count: int = 0
    digest: int = 0


def check_store(
    target: Path,
    plan: ImportPlan,
    digests: Mapping[QueueKey, int],
    progress: Callable[[int, int], None],
) -> list[QueueDifference]:
    """Compare a new store with what was read from the old one.

    Args:
        target: the new store.
        plan: by which it was made.
        digests: of each queue's records, as they were read from the old one.
        progress: called now and then with the bytes that were read, and all that there are.

    Raises:
        ImportFailedError: it cannot be read.
    """
    derived = target / DERIVED
    state = BrokerState(UnitFiles(derived), SegmentFiles(derived), far_timers=TimerFiles(derived))
    disk = PosixDisk(str(target))
    try:
        log = SegmentedLog.open(disk)
        try:
            restore_newest(SnapshotStore(disk), state, log)
            if state.applied_index != log.last_id.index:
                raise ImportFailedError(
                    f"{target}: the state ends with entry {state.applied_index}, the log with {log.last_id.index}"
                )
            return _compare(plan, digests, state, _read_log(log, progress))
        finally:
            log.close()
    except (OSError, DLedgerError) as error:
        raise ImportFailedError(
            f"{target} cannot be read back: {error}; nothing was imported"
        ) from error
    finally:
        shutil.rmtree(derived, ignore_errors=True)


def _read_log(log: SegmentedLog, progress: Callable[[int, int], None]) -> dict[QueueKey, _Read]:
    """Read every entry from the disk, with all checksums."""
    found: dict[QueueKey, _Read] = {}
    layout = log.layout
    first = layout.first_position
    for number in range(layout.first_index, layout.last_index + 1):
        (entry,) = log.entries(Index(number), Index(number + 1))
        start = PhysicalOffset(entry.position + ENTRY_HEADER_BYTES)
        for record in parse_records(entry.body, start):
            key = record[KEY]
            if key[0] not in _CONTROL:
                at = record[PHYSICAL_OFFSET] - start
                read = found.setdefault(key, _Read())
                read.count += 1
                read.digest = digest_record(entry.body[at : at + record[SIZE_BYTES]], read.digest)
        progress(entry.end_position - first, layout.end_position - first)
    return found


def _compare(
    plan: ImportPlan,
    digests: Mapping[QueueKey, int],
    state: BrokerState,
    found: Mapping[QueueKey, _Read],
) -> list[QueueDifference]:
    """Return the queues that differ."""
    differences: list[QueueDifference] = []
    nothing = _Read()
    for key in sorted(plan.queues.keys() | digests.keys() | found.keys()):
        topic = key[0].decode(errors="replace")
        read = found.get(key, nothing)
        planned = plan.queues.get(key)
        minimum, maximum = state.queues.min_max(topic, key[1])
        now = f"{minimum}..{maximum}, {read.count} records, digest {read.digest:08x}"
        if planned is not None:
            count, bounds = planned.message_count, f"{planned.min_offset}..{planned.max_offset}"
        else:
            is_half = treatment_of(key[0]) is Treatment.HALF
            count = plan.half_count if is_half else plan.timer_count
            bounds = f"0..{count}"
        was = f"{bounds}, {count} records, digest {digests.get(key, 0):08x}"
        if was != now:
            differences.append(QueueDifference(topic, key[1], was, now))
    return differences
