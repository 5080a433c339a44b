"""Where the log begins for this group: what stands before it is forgotten (docs/retention.md, docs/adr/0181).

The leader says in the log up to where everything is to be forgotten, and why; the fold does it if nothing there is
still needed. So the beginning is the same on every replica at the same applied index, whenever each of them gives the
bytes back.

It also notes where the time of the log leaps, for whoever leads next: a clock that was wrong once has made everything
before it look old, and the records themselves do not say which of the two times is right.

Nothing here knows what is due, or what is needed (broker/store/needs.py).
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple

import msgspec
from crc32c import crc32c

from broker.store.pins import Pin, Pins
from dledger.raft.ids import Index, Position
from dledger_mq.message.numbers import StoreTimeMs

ForgetCause = Literal["time", "size", "disk", "operator"]
"""The reason for which the leader lets entries be forgotten."""

JUMP_MS: Final = 3 * 24 * 3_600_000
"""From one record to the next: a longer pause is noted. A constant of the fold, and RocketMQ's reserved time."""

_CHANGE: Final = struct.Struct(">qqq")


class TimeJump(NamedTuple):
    """A leap of the log's time: the group was idle for long, or a clock was wrong.

    Attributes:
        before_ms: store time of the newest record before it.
        after_ms: of the first one after it.
        position: of the entry with that one.
    """

    before_ms: StoreTimeMs
    after_ms: StoreTimeMs
    position: Position


class _SavedRetention(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The table in a snapshot; the jump and the pins came later, and are left out while there are none."""

    index: Index
    position: Position
    cause: Literal["time", "size", "disk", "operator", ""]
    moved_ms: StoreTimeMs
    move_count: int
    digest: int
    jump: TimeJump | None = None
    pins: tuple[list[tuple[str, Pin]], int] | None = None
    topics: list[tuple[str, Position]] | None = None


class Retention:
    """The beginning of what is kept. Everything that changes it is for the fold; everybody else reads.

    Attributes:
        index: the first entry that is kept.
        position: the byte place where that entry begins.
        cause: the reason of the last move; empty: there was none.
        moved_ms: store time at which it was moved last.
        move_count: of all moves by retention.
        pins: what others have asked to be kept for a while.
        jump: the last leap of the log's time, as long as anything from before it is kept.
        topics: by name, where messages begin to be shown, of topics of which less is shown than the log has.
        digest: CRC32C chained over every move, jump and hiding.
    """

    def __init__(self) -> None:
        self.index = Index(1)
        self.position = Position(0)
        self.cause: ForgetCause | Literal[""] = ""
        self.moved_ms = StoreTimeMs(0)
        self.move_count = 0
        self.pins = Pins()
        self.jump: TimeJump | None = None
        self.topics: dict[str, Position] = {}
        self.digest: int = 0

    def move(
        self, index: Index, position: Position, cause: ForgetCause, now_ms: StoreTimeMs
    ) -> None:
        """Let the kept entries begin later than before."""
        assert index > self.index, f"entry {index} is to be first, after entry {self.index}"
        assert position > self.position, f"{position} is to begin what begins at {self.position}"
        self.index, self.position, self.cause, self.moved_ms = index, position, cause, now_ms
        self.move_count += 1
        if self.jump is not None and self.jump.position <= position:
            self.jump = None
        self.pins.overrun(position)
        self.topics = {name: at for name, at in self.topics.items() if at > position}
        change = _CHANGE.pack(index, position, now_ms)
        self.digest = crc32c(cause.encode(), crc32c(change, self.digest))

    def begin_at(self, index: Index, position: Position, now_ms: StoreTimeMs) -> None:
        """Begin a log that never had what stands before a place: nothing was deleted by retention yet."""
        self.move(index, position, "operator", now_ms)
        self.move_count = 0

    def beginning_of(self, topic: str) -> Position:
        """Return where the messages of a topic begin to be shown."""
        return self.topics.get(topic, self.position)

    def hide(self, topic: str, position: Position) -> None:
        """Show the messages of a topic from a later position on."""
        assert position > self.beginning_of(topic), f"{topic} is shown from {position} on already"
        self.topics[topic] = position
        self.digest = crc32c(topic.encode(), crc32c(_CHANGE.pack(0, position, 0), self.digest))

    def show(self, topic: str) -> None:
        """Forget what was hidden of a topic, which is deleted."""
        self.topics.pop(topic, None)

    def note_jump(self, before_ms: StoreTimeMs, after_ms: StoreTimeMs, position: Position) -> None:
        """Note that the log's time leaps at the entry that begins at a position."""
        assert after_ms - before_ms > JUMP_MS, f"from {before_ms} to {after_ms} is no jump"
        if position > self.position:  # else nothing from before it is kept
            self.jump = TimeJump(before_ms, after_ms, position)
        self.digest = crc32c(_CHANGE.pack(before_ms, after_ms, position), self.digest)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved: tuple[object, ...] = (
            self.index,
            self.position,
            self.cause,
            self.moved_ms,
            self.move_count,
            self.digest,
            self.jump,
            self.pins.saved(),
            list(self.topics.items()) or None,
        )
        while saved[-1] is None:
            saved = saved[:-1]
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        saved = msgspec.msgpack.decode(data, type=_SavedRetention)
        self.index, self.position, self.cause = saved.index, saved.position, saved.cause
        self.moved_ms, self.move_count = saved.moved_ms, saved.move_count
        self.jump, self.digest = saved.jump, saved.digest
        self.pins.take(saved.pins)
        self.topics = dict(saved.topics or ())
