"""One reading of a whole store of RocketMQ, from which follows what can be imported (plan.py).

The log is read from end to end, with every checksum; of the messages only tallies are kept, and of those that wait on
RocketMQ's own topics what it takes to know them again. Nothing is written, and nothing is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from broker.importing.commit_log import (
    LogEnd,
    LogFile,
    SourceLogReader,
    last_byte,
    list_log_files,
)
from broker.importing.errors import SourceError
from broker.importing.json_tables import SourceTables, read_tables
from broker.importing.queue_files import KnownQueue, read_queues
from broker.importing.tallies import QueueTally, Tallies
from broker.importing.waiting import (
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TRANSACTION_GROUP,
    OpenHalves,
    WaitingTimers,
)
from broker.store.schedule import SCHEDULE_KEY
from broker.store.timers import TIMER_KEY
from broker.store.transactions import HALF_KEY, OP_KEY
from broker.store.unit_stores import QueueKey
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.sys_flags import INNER_BATCH, TRANSACTION_PREPARED

PROGRESS_MESSAGES: Final = 4096
"""Messages between two reports of progress."""

DLEDGER_PREFIX: Final = "dledger-"
"""Of the folder with a member's log, where RocketMQ runs on DLedger."""

_IS_INDEX: Final = re.compile(r"[0-9]{1,18}")
_LIGHT: Final = b"INNER_MULTI_DISPATCH"


class Treatment(Enum):
    """The ways in which an import deals with the messages of a topic."""

    AS_IT_IS = "as it is"
    DELAYED = "what waits, queue offsets kept"
    TIMED = "what waits, queue offsets anew"
    HALF = "open ones, queue offsets anew"
    INTERNAL = "not needed here"


def treatment_of(topic: bytes) -> Treatment:
    """Return what is done with a topic's messages, by its name."""
    if topic == SCHEDULE_KEY:
        return Treatment.DELAYED
    if topic == TIMER_KEY:
        return Treatment.TIMED
    if topic == HALF_KEY:
        return Treatment.HALF
    if topic == OP_KEY or topic.startswith(REVIVE_PREFIX):
        return Treatment.INTERNAL
    return Treatment.AS_IT_IS


@dataclass(frozen=True, slots=True)
class Source:
    """A store of RocketMQ: where its parts are.

    Attributes:
        folder: storePathRootDir.
        log_folders: storePathCommitLog.
        until: where the log is to be taken for ended; None: where it ends.
    """

    folder: Path
    log_folders: Sequence[Path]
    until: PhysicalOffset | None = None

    @property
    def in_entries(self) -> bool:
        """Return whether the log is DLedger's."""
        return all(folder.parent.name.startswith(DLEDGER_PREFIX) for folder in self.log_folders)


@dataclass(slots=True)
class SourceSurvey:
    """The content of a store, as it was read.

    Attributes:
        source: where it is.
        files: of the commit log.
        end: of the commit log.
        tables: the files of `config`.
        known: consume queues as RocketMQ has them.
        tallies: queues as they stand in the log.
        halves, timers: of those that wait.
        message_count, message_bytes: all records.
        first_ms, last_ms: store times of the first and the last record; 0 without any.
        hidden_count: half messages of RocketMQ before 4.3, which no queue shows.
        batch_topics: topics with messages of several in one record.
        light_count: messages that light queues (LMQ) show too.
        was_stopped: the broker had ended in order.
        uncommitted_count: entries of such a log that are not known to be committed.
    """

    source: Source
    files: list[LogFile]
    end: LogEnd
    tables: SourceTables
    known: dict[QueueKey, KnownQueue]
    halves: OpenHalves
    timers: WaitingTimers
    was_stopped: bool
    uncommitted_count: int = 0
    tallies: Tallies = field(default_factory=dict)
    message_count: int = 0
    message_bytes: int = 0
    first_ms: StoreTimeMs = StoreTimeMs(0)
    last_ms: StoreTimeMs = StoreTimeMs(0)
    hidden_count: int = 0
    batch_topics: set[bytes] = field(default_factory=set)
    light_count: int = 0

    def add(self, message: StoredMessage) -> None:
        """Count the next record.

        Raises:
            TooManyWaitError: more messages wait than can be kept in memory.
        """
        self.message_count += 1
        self.message_bytes += message.size_bytes
        self.first_ms = self.first_ms or message.store_timestamp_ms
        self.last_ms = max(self.last_ms, message.store_timestamp_ms)
        if message.sys_flag & TRANSACTION_PREPARED:
            self.hidden_count += 1
            return
        topic = message.topic.encode()
        key = (topic, QueueId(message.queue_id))
        offset, place = message.queue_offset, message.physical_offset
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = QueueTally(
                QueueOffset(offset),
                QueueOffset(offset),
                PhysicalOffset(place),
                counted_from=self._delivered_to(key),
            )
        tally.add(message)
        if message.sys_flag & INNER_BATCH:
            self.batch_topics.add(topic)
        if _LIGHT in message.properties and message.find(_LIGHT):
            self.light_count += 1
        if topic == HALF_KEY:
            self.halves.begin(message)
        elif topic == OP_KEY:
            self.halves.end_by_op(message)
        elif topic == TIMER_KEY:
            self.timers.add(message)
        elif message.prepared_transaction_offset:
            self.halves.end_by_commit(message)

    def _delivered_to(self, key: QueueKey) -> QueueOffset:
        """Return up to where a delay level was delivered, 0 for other queues."""
        topic, queue_id = key
        if topic != SCHEDULE_KEY:
            return QueueOffset(0)
        return self.tables.delay_offsets.get(queue_id + 1, QueueOffset(0))


def survey(source: Source, progress: Callable[[int, int], None]) -> SourceSurvey:
    """Read a store.

    Args:
        source: where it is.
        progress: called now and then with the bytes of the log that were read, and all that there are.

    Raises:
        SourceError: there is no store that can be read.
        TooManyWaitError: more messages wait than can be kept in memory.
    """
    _check_kind(source.folder)
    files = list_log_files(source.log_folders)
    tables = read_tables(source.folder / "config")
    begin, total = files[0].first_offset, files[-1].end_offset - files[0].first_offset
    reader = SourceLogReader(files, source.until, in_entries=source.in_entries)
    transactions = tables.offsets.get((names.HALF_TOPIC, TRANSACTION_GROUP), {})
    found = SourceSurvey(
        source=source,
        files=files,
        end=LogEnd(begin, files[0].path, "", begin),
        tables=tables,
        known=read_queues(source.folder / "consumequeue"),
        halves=OpenHalves(transactions.get(QueueId(0), QueueOffset(0))),
        timers=WaitingTimers(tables.timers),
        was_stopped=not _abort(source).exists(),
    )
    for message, _ in reader.records():
        found.add(message)
        if not found.message_count % PROGRESS_MESSAGES:
            progress(message.physical_offset - begin, total)
    assert reader.end is not None, "all records were read"
    found.end = reader.end
    if source.in_entries:
        committed = read_committed_index(source.log_folders[0].parent / "checkpoint")
        found.uncommitted_count = max(0, reader.last_index - committed)
    if source.until is not None and found.end.physical_offset != source.until:
        raise SourceError(
            f"--until {source.until}: no record ends there, the nearest ends at {found.end.physical_offset}"
        )
    progress(total, total)
    return found


def check_unchanged(found: SourceSurvey) -> None:
    """Look again at what a broker would have changed by now: `abort`, the files, and what stands behind the end.

    Raises:
        SourceError: a broker was started on the store meanwhile, so messages may be missing.
    """
    source, end = found.source, found.end
    change = ""
    if found.was_stopped and _abort(source).exists():
        change = f"{_abort(source)} is there now: a broker was started"
    elif list_log_files(source.log_folders) != found.files:
        change = "it has other files now"
    elif source.until is None:
        last = last_byte(found.files, end.physical_offset)
        if last != end.physical_offset:
            change = f"it ended at physical offset {end.physical_offset}, now at {last}"
    if change:
        raise SourceError(
            f"{source.folder}: the commit log has changed while it was read, {change}; nothing was imported: stop the "
            "broker and begin again"
        )


def _abort(source: Source) -> Path:
    """Return the file that is there while a broker runs, and after it has crashed."""
    return source.folder / "abort"


def find_log(folder: Path) -> Path:
    """Return the folder of a store's commit log: `commitlog`, or DLedger's.

    Raises:
        SourceError: there are several, and which one counts cannot be known.
    """
    plain = folder / "commitlog"
    members = sorted(folder.glob(f"{DLEDGER_PREFIX}*"))
    if not members:
        return plain
    if len(members) > 1 or (plain.is_dir() and any(plain.iterdir())):
        raise SourceError(
            f"{folder} has {len(members)} logs of DLedger ({members[0].name}, ...), and perhaps a plain one: name the "
            "folder with the one that counts with --commitlog; a plain one before it is not read"
        )
    return members[0] / "data"


def read_committed_index(path: Path) -> int:
    """Read which entry DLedger knew to be committed when it stopped; -1 if it does not say.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return -1
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}") from error
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "committedIndex" and _IS_INDEX.fullmatch(value.strip()):
            return int(value)
    return -1


def revive_pending(found: SourceSurvey) -> int:
    """Return how many notes of pop about messages in flight lie in the log and were not worked off."""
    count = 0
    for (topic, queue_id), tally in found.tallies.items():
        if topic.startswith(REVIVE_PREFIX):
            offsets = found.tables.offsets.get((topic.decode(), REVIVE_GROUP), {})
            done = offsets.get(queue_id, QueueOffset(0))
            count += max(0, tally.next_offset - max(done, tally.first_offset))
    return count + found.timers.pop_count


def _check_kind(folder: Path) -> None:
    """Refuse a folder that is no store of the kind that is known here.

    Raises:
        SourceError: with the reason.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder")
    try:
        children = sorted(each.name for each in folder.iterdir())
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from error
    for name in children:
        if name.startswith("consumequeue_rocksdb"):
            raise SourceError(
                f"{folder / name}: a store with storeType=defaultRocksDB cannot be imported"
            )
