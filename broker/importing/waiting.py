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
from dledger_mq.message.properties import REAL_TOPIC, UNIQ_KEY
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.sys_flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

WAITING_MAX: Final = 2_000_000
"""Half messages, and timers, that may wait: about 200 bytes each."""

REVIVE_PREFIX: Final = b"rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

TIMER_RECALLED: Final = b"TIMER_DEL_UNIQKEY"


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
        self._newest: dict[bytes, QueueOffset] = {}

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def begin(self, message: StoredMessage) -> None:
        """Note a half message. Each check of RocketMQ writes it again, and only the newest counts.

        Raises:
            TooManyWaitError: there are too many.
        """
        offset = message.queue_offset
        if message.queue_id:
            self.strange_queues += 1
            return
        if offset < self.from_offset:
            return
        key = _key(message)
        before = self._newest.get(key) if key is not None else None
        if before is not None:
            self._end(before)
        if key is not None:
            self._newest[key] = offset
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
        return self._by_place.get(message.physical_offset) == message.queue_offset

    def _end(self, offset: QueueOffset) -> None:
        found = self._open.pop(offset, None)
        if found is None:
            return
        place, key = found
        del self._by_place[place]
        if key is not None and self._newest.get(key) == offset:
            del self._newest[key]


class WaitingTimers:
    """Messages that wait for a due time of their own.

    Attributes:
        pop_count: those of them that are notes of pop, about messages in flight.
    """

    def __init__(self, progress: TimerProgress) -> None:
        self.pop_count = 0
        self._progress = progress
        self._newest: dict[bytes, QueueOffset] = {}
        self._recalled: set[bytes] = set()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._newest.keys() - self._recalled)

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
            self._recalled.add(_hash(recalled))
            return
        if (message.find(REAL_TOPIC) or b"").startswith(REVIVE_PREFIX):
            self.pop_count += 1
            return
        self._newest[_key(message) or _hash(b"%d" % message.queue_offset)] = message.queue_offset
        if len(self._newest) > WAITING_MAX or len(self._recalled) > WAITING_MAX:
            raise TooManyWaitError(f"more than {WAITING_MAX} timers wait")

    def is_waiting(self, message: StoredMessage) -> bool:
        """Return whether a message of the timer topic waits, once everything was read."""
        if message.find(TIMER_RECALLED) is not None:
            return False
        key = _key(message) or _hash(b"%d" % message.queue_offset)
        return self._newest.get(key) == message.queue_offset and key not in self._recalled


def _key(message: StoredMessage) -> bytes | None:
    """Return what names a message among those that wait: a recall has the same text."""
    topic, unique = message.find(REAL_TOPIC), message.find(UNIQ_KEY)
    return None if topic is None or unique is None else _hash(topic + b"+" + unique)


def _hash(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).digest()
