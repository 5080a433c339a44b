"""Recent sends in 16 bytes each: for those that a busy group remembers beyond the newest ones.

Of a key a hash is kept, and where its record begins. Whoever asks for a key gets the places of all records that have
its hash; nearly always these are its own, and whoever reads them sees whether they are. Keys come in the order of the
log and go in whole tables: those that are too old, or the oldest one if there would be too many.

No snapshot has them: what was sealed before it a replica that begins with it does not know. Nothing that the fold
decides may depend on them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from crc32c import crc32c

from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

TABLE_KEYS: Final = 1024 * 1024
"""Keys of a table, a power of two: at most half of its slots, so that a search ends soon. 16 MiB."""

TABLES_MAX: Final = 6
"""6 291 456 keys, 60 s of 100 000 messages/s, in 96 MiB. A send is looked for in each of them."""

_TAG_SHIFT: Final = 40
_PLACE_MASK: Final = (1 << _TAG_SHIFT) - 1
_TAG_MASK: Final = 0xFF_FFFF


@dataclass(slots=True)
class SealedTable:
    """An open hash table. A slot is 0, or 24 bits of a key's hash and, in 40 bits, its record's distance from `base`.

    Attributes:
        base: one less than the first record's place, so that no distance is 0.
        firsts, times, counts: of each entry in it, in order: where the first record begins, the store time, how many
            keys it has here.
        count: of all keys.
    """

    base: int
    slots: array[int] = field(default_factory=lambda: array("Q", bytes(16 * TABLE_KEYS)))
    firsts: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    count: int = 0

    def add(
        self, keys: Sequence[bytes], offsets: Sequence[PhysicalOffset], store_ms: StoreTimeMs
    ) -> None:
        """Add keys of one entry; there must be room."""
        assert self.count + len(keys) <= TABLE_KEYS, f"{len(keys)} keys after {self.count}"
        slots, base, mask = self.slots, self.base, len(self.slots) - 1
        columns = zip(map(crc32, keys), map(crc32c, keys), offsets, strict=True)
        for hashed, tag, offset in columns:
            at = hashed & mask
            while slots[at]:
                at = at + 1 & mask
            slots[at] = (tag & _TAG_MASK) << _TAG_SHIFT | offset - base
        self.firsts.append(offsets[0])
        self.times.append(store_ms)
        self.counts.append(len(keys))
        self.count += len(keys)

    def time_of(self, offset: int) -> int:
        """Return the store time of the entry with a record."""
        return self.times[bisect_right(self.firsts, offset) - 1]

    def count_since(self, oldest_ms: StoreTimeMs) -> int:
        """Return how many keys are not older than that."""
        return sum(self.counts[bisect_left(self.times, oldest_ms) :])


class SealedSends:
    """The tables, oldest first.

    Invariants: at most TABLES_MAX tables; entries in the order of the log; store times do not fall.

    Attributes:
        forgotten_early: keys that went before their time, since there were too many, since this state was begun or
            loaded.
    """

    def __init__(self) -> None:
        self.forgotten_early = 0
        self._tables: deque[SealedTable] = deque()

    def __bool__(self) -> bool:
        return bool(self._tables)

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tables' slots."""
        return sum(table.slots.itemsize * len(table.slots) for table in self._tables)

    def add(
        self,
        keys: Sequence[bytes],
        offsets: Sequence[PhysicalOffset],
        store_ms: StoreTimeMs,
        *,
        oldest_ms: StoreTimeMs,
    ) -> None:
        """Remember the records of one entry.

        Args:
            keys: unique keys, in the order of the log.
            offsets: where their records begin, rising, after all that were added before.
            store_ms: the entry's latest store time.
            oldest_ms: what is older need not be remembered.
        """
        start = 0
        while start < len(keys):
            table = self._with_room(offsets[start], offsets[-1], oldest_ms)
            last_ms = StoreTimeMs(max(store_ms, table.times[-1])) if table.times else store_ms
            end = start + TABLE_KEYS - table.count
            table.add(keys[start:end], offsets[start:end], last_ms)
            start = end

    def _with_room(
        self, first: PhysicalOffset, last: PhysicalOffset, oldest_ms: StoreTimeMs
    ) -> SealedTable:
        """Return the newest table, or a new one if it is full, or began too far away."""
        tables = self._tables
        if tables and tables[-1].count < TABLE_KEYS and last - tables[-1].base <= _PLACE_MASK:
            return tables[-1]
        if len(tables) >= TABLES_MAX:
            self.forgotten_early += tables.popleft().count_since(oldest_ms)
        table = SealedTable(first - 1)
        tables.append(table)
        return table

    def forget(self, oldest_ms: StoreTimeMs) -> None:
        """Forget the tables in which everything is older than that."""
        tables = self._tables
        while tables and tables[0].times[-1] < oldest_ms:
            tables.popleft()

    def forget_before(self, beginning: Position) -> None:
        """Forget the tables that end before a position; what else stands before it nobody can read."""
        tables = self._tables
        while len(tables) > 1 and tables[1].base < beginning:
            tables.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._tables.clear()

    def find(self, key: bytes, oldest_ms: StoreTimeMs) -> list[PhysicalOffset]:
        """Return the places of records that have a key's hash and are not older than that, oldest first."""
        found: list[PhysicalOffset] = []
        at_first, tag, mask = crc32(key), crc32c(key) & _TAG_MASK, 2 * TABLE_KEYS - 1
        for table in self._tables:  # without a call for each, as there may be many
            slots = table.slots
            at = at_first & mask
            places: list[int] = []
            while slot := slots[at]:
                if slot >> _TAG_SHIFT == tag:
                    places.append(table.base + (slot & _PLACE_MASK))
                at = at + 1 & mask
            if places:
                places.sort()
                found += [PhysicalOffset(at) for at in places if table.time_of(at) >= oldest_ms]
        return found
