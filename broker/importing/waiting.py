"""Which of the messages that wait on RocketMQ's own topics still wait: half messages, timers, what pop has in flight.

RocketMQ keeps what is done with them beside the log: in op messages, in commits that name their half message, in the
progress of its timers. All that is gathered in one reading of the log; then `is_open` and `is_waiting` say which of
them are taken over. The numbers kept in memory are bounded.

Delayed messages need none of this: their progress is one offset for each level.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from broker.importing.json_tables import TimerProgress
from broker.store.timers import timer_of
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from dledger_mq.message.properties import (
    REAL_TOPIC,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.sys_flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

WAITING_MAX: Final = 2_000_000
"""Half messages, and timers, that may wait: about 200 bytes each."""

REVIVE_PREFIX: Final = b"rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

TIMER_RECALLED: Final = b"TIMER_DEL_UNIQKEY"
_TIMER_WRITTEN_AGAIN: Final = b"TIMER_ROLL_TIMES"


class TooManyWaitError(Exception):
    """More messages wait than can be kept in memory."""


class OpenHalves:
    """Half messages whose transaction is open, as far as the log was read.

    Attributes:
        from_offset: those before this offset of the half topic's queue are done.
        strange_queues: half messages in other queues than 0, which RocketMQ does not write.
    """

    def __init__(self, from_offset: QueueOffset) -> None:
        self.from_offset = from_offset
        self.strange_queues = 0
        self._open: dict[QueueOffset, tuple[PhysicalOffset, bytes | None]] = {}
        self._by_place: dict[int, QueueOffset] = {}
        self._written = _Written()

    def __len__(self) -> int:
        """Return how many are open."""
        return sum(offset >= self.from_offset for offset in self._open)

    def begin(self, message: StoredMessage) -> None:
        """Note a half message. Each check of RocketMQ writes it again, and only the newest counts.

        Those that are done are noted too: one of them may have been written again.

        Raises:
            TooManyWaitError: there are too many.
        """
        offset = message.queue_offset
        if message.queue_id:
            self.strange_queues += 1
            return
        key = _written_key(message)
        is_again = (
            message.find(TRANSACTION_CHECK_TIMES) is not None
            or message.find(TRAN_PREPARED_QUEUE_OFFSET) is not None
        )
        before = self._written.oldest(key) if is_again and key is not None else None
        if before is not None:
            self._end(QueueOffset(before))
        if key is not None:
            self._written.add(key, offset)
        self._open[offset] = PhysicalOffset(message.physical_offset), key
        self._by_place[message.physical_offset] = offset
        if len(self._open) > WAITING_MAX:
            raise TooManyWaitError(f"more than {WAITING_MAX} half messages may be open")

    def end_by_op(self, message: StoredMessage) -> None:
        """Note an op message: half queue offsets in decimal, in 5.x with a comma after each."""
        for text in message.body.split(b","):
            if text.isdigit() and len(text) <= 18:
                self._end(QueueOffset(int(text)))

    def end_by_commit(self, message: StoredMessage) -> None:
        """Note a committed message: its half message is done, even if no op message says so yet."""
        if message.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_COMMIT:
            offset = self._by_place.get(message.prepared_transaction_offset)
            if offset is not None:
                self._end(offset)

    def is_open(self, message: StoredMessage) -> bool:
        """Return whether a half message is open, once everything was read."""
        offset = self._by_place.get(message.physical_offset)
        return offset == message.queue_offset and offset >= self.from_offset

    def _end(self, offset: QueueOffset) -> None:
        found = self._open.pop(offset, None)
        if found is None:
            return
        place, key = found
        del self._by_place[place]
        if key is not None:
            self._written.remove(key, offset)


class WaitingTimers:
    """Messages that wait for a due time of their own.

    Attributes:
        pop_count: those of them that are notes of pop, about messages in flight.
    """

    def __init__(self, progress: TimerProgress) -> None:
        self.pop_count = 0
        self._progress = progress
        self._waiting: dict[int, bytes | None] = {}
        self._written = _Written()
        self._recalled: set[bytes] = set()

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(name not in self._recalled for name in self._waiting.values())

    def add(self, message: StoredMessage) -> None:
        """Note a message of the timer topic. A delay of days is written again on the way: the newest counts.

        Raises:
            TooManyWaitError: there are too many.
        """
        timer = timer_of(message)
        if timer is None:
            return
        is_in_wheel = message.queue_offset < self._progress.queue_offset
        if is_in_wheel and timer.due_ms < self._progress.read_ms:
            return
        recalled = message.find(TIMER_RECALLED)
        if recalled is not None:
            self._recalled.add(_recall_key(recalled, timer.due_ms))
        elif (message.find(REAL_TOPIC) or b"").startswith(REVIVE_PREFIX):
            self.pop_count += 1
        else:
            self._note(message, timer.due_ms)
        if len(self._waiting) > WAITING_MAX or len(self._recalled) > WAITING_MAX:
            raise TooManyWaitError(f"more than {WAITING_MAX} timers wait")

    def _note(self, message: StoredMessage, due_ms: int) -> None:
        """Note one that waits, in the place of the one that it was written again from."""
        place, name = message.physical_offset, _name(message)
        key = _written_key(message, due_ms)
        if key is not None:
            is_again = message.find(_TIMER_WRITTEN_AGAIN) is not None
            before = self._written.oldest(key) if is_again else None
            if before is not None:
                self._written.remove(key, before)
                del self._waiting[before]
            self._written.add(key, place)
        self._waiting[place] = None if name is None else _recall_key(name, due_ms)

    def is_waiting(self, message: StoredMessage) -> bool:
        """Return whether a message of the timer topic waits, once everything was read."""
        place = message.physical_offset
        return place in self._waiting and self._waiting[place] not in self._recalled


class _Written:
    """Messages that may yet be written again, by what stays then: RocketMQ does it in the order of their queue."""

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, ...]] = {}

    def oldest(self, key: bytes) -> int | None:
        """Return the first one under a key that is there; None: there is none."""
        places = self._places.get(key)
        return places[0] if places else None

    def add(self, key: bytes, place: int) -> None:
        """Note one behind those that are there."""
        self._places[key] = (*self._places.get(key, ()), place)

    def remove(self, key: bytes, place: int) -> None:
        """Forget one."""
        rest = tuple(each for each in self._places[key] if each != place)
        if rest:
            self._places[key] = rest
        else:
            del self._places[key]


def _name(message: StoredMessage) -> bytes | None:
    """Return what names a message among those that wait: a recall has the same text."""
    topic, unique = message.find(REAL_TOPIC), message.find(UNIQ_KEY)
    return None if topic is None or unique is None else topic + b"+" + unique


def _written_key(message: StoredMessage, due_ms: int = 0) -> bytes | None:
    """Return what stays when RocketMQ writes a message again, and mostly differs when a producer sends it again.

    A producer that uses one message object twice sends two messages with the same UNIQ_KEY.
    """
    name = _name(message)
    return None if name is None else _hash(b"%b+%d+%d" % (name, message.born_timestamp_ms, due_ms))


def _recall_key(name: bytes, due_ms: int) -> bytes:
    """Return what a recall and its message have in common: RocketMQ lets them meet at the same due time only."""
    return _hash(b"%b+%d" % (name, due_ms))


def _hash(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).digest()
