"""Pins: what somebody outside the group has not taken over yet, as an archive, and asks to be kept for a while.

A pin is a place in the log with a name; everything from there on is kept, unless a disk is fairly full. It is bounded
twice, by the log's time since it was put last and by the size of what it keeps; past either bound retention goes on.
A pin whose place was forgotten stays in the table, so that people and the archive see it.

Nothing here knows what is due (broker/service/retention.py), or who archives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from broker.store.refusals import RefusalKind
from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

PINS_MAX: Final = 16
"""Archives of one group."""

NAME_CHARS_MAX: Final = 64


class Pin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One pin.

    Attributes:
        position: from here on the log is kept.
        put_ms: store time of the record that put it last.
        keep_ms: for so long after that.
        keep_bytes: as long as it keeps no more than that.
        by: address of who has put it.
        is_overrun: its place is forgotten.
    """

    position: Position
    put_ms: StoreTimeMs
    keep_ms: int
    keep_bytes: int
    by: str
    is_overrun: bool = False

    def holds(self, now_ms: int, end: int) -> bool:
        """Return whether it keeps anything at a time, in a log that ends at a position."""
        is_in_time = now_ms - self.put_ms <= self.keep_ms
        return is_in_time and not self.is_overrun and end - self.position <= self.keep_bytes


class HeldPin(NamedTuple):
    """A pin that keeps something; those with lower places come first."""

    position: PhysicalOffset
    name: str


class Pins:
    """The table. `put`, `drop` and `overrun` are for the fold; everybody else reads.

    Attributes:
        digest: CRC32C chained over every change that a record makes; 0: there was none.
    """

    def __init__(self) -> None:
        self.digest: int = 0
        self._table: dict[str, Pin] = {}

    def items(self) -> Iterator[tuple[str, Pin]]:
        """Yield the pins with their names, in the order in which they were put first."""
        return iter(self._table.items())

    def oldest(self, now_ms: int, end: int) -> HeldPin | None:
        """Return the pin that keeps most; None: none keeps anything."""
        held = (
            HeldPin(PhysicalOffset(pin.position), name)
            for name, pin in self._table.items()
            if pin.holds(now_ms, end)
        )
        return min(held, default=None)

    def put(self, name: str, pin: Pin) -> RefusalKind | None:
        """Put or move a pin; return the reason if it was refused."""
        if name not in self._table and len(self._table) >= PINS_MAX:
            return RefusalKind.OUT_OF_RANGE
        self._table[name] = pin
        self._chain((name, pin))
        return None

    def drop(self, name: str) -> None:
        """Remove a pin, if it is there."""
        if self._table.pop(name, None) is not None:
            self._chain((name,))

    def overrun(self, beginning: Position) -> None:
        """Note the pins whose places are forgotten, now that the log begins at a position."""
        for name, pin in self._table.items():
            if pin.position < beginning and not pin.is_overrun:
                self._table[name] = msgspec.structs.replace(pin, is_overrun=True)

    def saved(self) -> tuple[list[tuple[str, Pin]], int] | None:
        """Return the table as a snapshot keeps it; None: there never was a pin."""
        return (list(self._table.items()), self.digest) if self.digest or self._table else None

    def take(self, saved: tuple[list[tuple[str, Pin]], int] | None) -> None:
        """Replace the table by a saved one."""
        table, self.digest = saved or ([], 0)
        self._table = dict(table)

    def _chain(self, change: tuple[str, Pin] | tuple[str]) -> None:
        self.digest = crc32c(msgspec.msgpack.encode(change), self.digest)
