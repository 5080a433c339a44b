"""Where the log begins for this group: what stands before it is forgotten (docs/retention.md, docs/adr/0181).

The leader says in the log up to where everything is to be forgotten, and why; the fold does it if nothing there is
still needed. So the beginning is the same on every replica at the same applied index, whenever each of them gives the
bytes back.

Nothing here knows what is due, or what is needed (broker/store/needs.py).
"""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec
from crc32c import crc32c

from dledger.raft.ids import Index, Position
from dledger_mq.message.numbers import StoreTimeMs

ForgetCause = Literal["time", "size", "disk", "operator"]
"""The reason for which the leader lets entries be forgotten."""

_CHANGE: Final = struct.Struct(">qqq")


class Retention:
    """The beginning of what is kept. `move` is for the fold; everybody else reads.

    Attributes:
        index: the first entry that is kept.
        position: the byte place where that entry begins.
        cause: the reason of the last move; empty: there was none.
        moved_ms: store time at which it was moved last.
        move_count: of all moves.
        digest: CRC32C chained over every move.
    """

    def __init__(self) -> None:
        self.index = Index(1)
        self.position = Position(0)
        self.cause: ForgetCause | Literal[""] = ""
        self.moved_ms = StoreTimeMs(0)
        self.move_count = 0
        self.digest: int = 0

    def move(
        self, index: Index, position: Position, cause: ForgetCause, now_ms: StoreTimeMs
    ) -> None:
        """Let the kept entries begin later than before."""
        assert index > self.index, f"entry {index} is to be first, after entry {self.index}"
        assert position > self.position, f"{position} is to begin what begins at {self.position}"
        self.index, self.position, self.cause, self.moved_ms = index, position, cause, now_ms
        self.move_count += 1
        change = _CHANGE.pack(index, position, now_ms)
        self.digest = crc32c(cause.encode(), crc32c(change, self.digest))

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (
            self.index,
            self.position,
            self.cause,
            self.moved_ms,
            self.move_count,
            self.digest,
        )
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        self.index, self.position, self.cause, self.moved_ms, self.move_count, self.digest = (
            msgspec.msgpack.decode(
                data,
                type=tuple[
                    Index,
                    Position,
                    Literal["time", "size", "disk", "operator", ""],
                    StoreTimeMs,
                    int,
                    int,
                ],
            )
        )
