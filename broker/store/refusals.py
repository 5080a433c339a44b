"""Records that the fold did not carry out, noted alike on every replica (docs/formats/control.md).

Nothing here decides what is refused.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec
from crc32c import crc32c

from dledger.raft.ids import Index
from dledger_mq.message.numbers import PhysicalOffset

KEPT_MAX: Final = 256
DETAIL_LENGTH_MAX: Final = 500
_RECORD = struct.Struct(">qB")


class RefusalKind(IntEnum):
    """A reason why a record was not carried out. Numbers enter the digest: never renumber."""

    WRONG_QUEUE_OFFSET = 1
    """The record's queue offset is not its queue's max offset: our own leader is at fault, an alarm."""
    MALFORMED = 2
    """The body on a control topic is no control record."""
    INVALID_NAME = 3
    OUT_OF_RANGE = 4
    UNKNOWN_GROUP = 5
    SYSTEM_NAME = 6
    """A topic or group that every broker has was to be deleted."""
    STALE_PROGRESS = 7
    """A delay level was to advance from another offset than the one it has: an alarm."""
    STALE_RESOLUTION = 8
    """An op record ended a transaction that was not open: an alarm."""
    STILL_NEEDED = 9
    """Entries were to be forgotten that the state still needs, to the 64 KiB: the leader tries again."""


ALARMS: Final = frozenset(
    {RefusalKind.WRONG_QUEUE_OFFSET, RefusalKind.STALE_PROGRESS, RefusalKind.STALE_RESOLUTION}
)
"""Kinds that no request of a client can cause."""


@dataclass(frozen=True, slots=True)
class FoldRefusal:
    """One record that was not carried out."""

    index: Index
    physical_offset: PhysicalOffset
    kind: RefusalKind
    detail: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", self.detail[:DETAIL_LENGTH_MAX])


class Refusals:
    """The newest refusals, and a count and digest of all.

    Attributes:
        count: of all refusals since the log's start.
        alarm_count: of those that only a fault of ours explains.
        digest: CRC32C chained over place and kind; the detail is for people and does not count.
    """

    def __init__(self) -> None:
        self.count = 0
        self.alarm_count = 0
        self.digest: int = 0
        self.newest: deque[FoldRefusal] = deque(maxlen=KEPT_MAX)

    def add(self, refusal: FoldRefusal) -> None:
        """Record one."""
        self.count += 1
        self.alarm_count += refusal.kind in ALARMS
        assert self.alarm_count <= self.count, f"{self.alarm_count} alarms of {self.count} refusals"
        self.newest.append(refusal)
        self.digest = crc32c(_RECORD.pack(refusal.physical_offset, refusal.kind), self.digest)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        newest = [(r.index, r.physical_offset, int(r.kind), r.detail) for r in self.newest]
        return msgspec.msgpack.encode((newest, self.count, self.alarm_count, self.digest))

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        newest, self.count, self.alarm_count, self.digest = msgspec.msgpack.decode(
            data, type=tuple[list[tuple[Index, PhysicalOffset, RefusalKind, str]], int, int, int]
        )
        self.newest = deque((FoldRefusal(*row) for row in newest), maxlen=KEPT_MAX)

    def at(self, physical_offset: PhysicalOffset) -> FoldRefusal | None:
        """Return why the record at a physical offset was not carried out, if that is among the newest."""
        return next((r for r in self.newest if r.physical_offset == physical_offset), None)
