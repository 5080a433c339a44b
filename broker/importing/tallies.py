"""What was seen of each queue: its first and last offset, how many messages and bytes, and a digest of their bytes.

A queue that is begun again at offset 0 was deleted with its topic: what it had before is void. Nothing here knows
topics, or what becomes of a message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from broker.store.unit_stores import QueueKey
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.record import PHYSICAL_OFFSET_AT, StoredMessage

QUEUE_OFFSET_AT: Final = 20
PROPERTY_CRC: Final = b"__CRC32#\x01"
PROPERTY_CRC_BYTES: Final = 20
"""The checksum of a whole record that RocketMQ 5 can append to the properties (`enabledAppendPropCRC`)."""

OFFSET: Final = struct.Struct(">q")
"""A physical offset, or a queue offset, as it stands in a record."""


@dataclass(slots=True)
class QueueTally:
    """One queue, as far as it was read.

    Attributes:
        first_offset: queue offset of the first message.
        next_offset: one after that of the last one.
        begun_at: physical offset of the first message; those before it are void.
        message_count, message_bytes: from there on; bytes only of messages from `counted_from` on.
        void_count: messages before.
        digest: of the records from there on, without what says where they stand.
        last_end: where the last record ends.
        last_ms: its store time.
        gap: the first place at which offsets do not follow each other; empty: they do.
    """

    first_offset: QueueOffset
    next_offset: QueueOffset
    begun_at: PhysicalOffset
    message_count: int = 0
    message_bytes: int = 0
    void_count: int = 0
    digest: int = 0
    last_end: PhysicalOffset = PhysicalOffset(0)
    last_ms: StoreTimeMs = StoreTimeMs(0)
    gap: str = ""
    counted_from: QueueOffset = QueueOffset(0)

    def add(self, message: StoredMessage) -> None:
        """Count the next message."""
        queue_offset = QueueOffset(message.queue_offset)
        physical_offset, size = PhysicalOffset(message.physical_offset), message.size_bytes
        if queue_offset != self.next_offset:
            if queue_offset == 0:
                self.void_count += self.message_count
                self.begun_at, self.first_offset = physical_offset, queue_offset
                self.message_count = self.message_bytes = 0
                self.gap = ""
            else:
                self.gap = self.gap or (
                    f"queue offset {queue_offset} follows {self.next_offset - 1} at physical offset {physical_offset}"
                )
        self.message_count += 1
        if queue_offset >= self.counted_from:
            self.message_bytes += size
        self.next_offset = QueueOffset(queue_offset + 1)
        self.last_end = PhysicalOffset(physical_offset + size)
        self.last_ms = message.store_timestamp_ms


Tallies = dict[QueueKey, QueueTally]


def has_property_crc(data: bytes) -> bool:
    """Return whether a record ends with the checksum of its own bytes."""
    return data[-PROPERTY_CRC_BYTES:].startswith(PROPERTY_CRC)


def digest_record(data: bytes, digest: int) -> int:
    """Count a record in a digest, without its places, and without a checksum that covers them."""
    end = len(data) - PROPERTY_CRC_BYTES if has_property_crc(data) else len(data)
    total: int = crc32c(data[:QUEUE_OFFSET_AT], digest)
    total = crc32c(memoryview(data)[PHYSICAL_OFFSET_AT + OFFSET.size : end], total)
    return total
