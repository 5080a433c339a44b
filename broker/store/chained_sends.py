"""Recent sends in 12 bytes each: half a key's hash, where its record begins, and the key before it in its chain.

Whoever asks for a key gets the places of records that have its hash; nearly always these are its own, and whoever reads
them sees whether they are. Keys come in the order of the log and are numbered in it. Those whose hashes begin alike are
chained, each to the one before it, and a cell names the newest: so an entry's keys are added by columns, in one short
loop, and nothing is ever taken out of a chain. It ends where the keys are too old, or were too many: these go in whole
tables, the oldest first.

Nothing that the fold decides may depend on them. So Python's own hash will do, which differs from process to process:
the keys have it already, and no client can send keys that share a chain.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dledger.raft.ids import Position
from dledger_mq.message import compiled
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

TABLE_KEYS: Final = 16_384
"""Keys of a table, which are forgotten together. 192 KiB."""

TABLES_MAX: Final = 384
"""6 291 456 keys, 60 s of 100 000 messages/s, in 72 MiB beside the cells."""

CELLS: Final = 1 << 21
"""Chains, a power of two. 8 MiB, of which the system gives what is touched."""

CHAIN_MAX: Final = 4096
"""Keys of a chain that are looked at, in about a millisecond. Only a key that is sent over and over makes a longer one:
what shares its chain may be missed, and is then stored twice."""

NUMBERS: Final = 1 << 32
"""Those of keys begin anew there: a cell has four bytes for one."""

_FIRST_NUMBER: Final = 1
"""Not 0, which untouched cells have; whoever takes it for a number finds no key there."""

_NO_CELLS: Final = memoryview(b"").cast("I")

_KEY_BYTES: Final = 12
"""In the three columns of a table."""

_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)
_TAG_SHIFT: Final = 32
_HALF_MASK: Final = 0xFFFF_FFFF


def _column() -> memoryview:
    """Return memory for all keys of a table: what grows is moved again and again, and leaves holes behind."""
    return memoryview(bytearray(4 * TABLE_KEYS)).cast("I")


def _cells() -> memoryview:
    """Return empty cells; a state that is begun for a moment touches none of them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, 4 * CELLS, flags=flags)).cast("I")


def _halves(numbers: Iterable[int]) -> memoryview:
    """Return numbers of 64 bits as halves, one after the other."""
    return memoryview(array("q", numbers)).cast("B").cast("I")


class HashedKeys(NamedTuple):
    """Keys in columns of four bytes each, in the order of the log.

    Attributes:
        cells, tags: the halves of their hashes.
        lows: where their records begin, without the upper half.
        first: where the first one does.
    """

    cells: memoryview
    tags: memoryview
    lows: memoryview
    first: PhysicalOffset

    @classmethod
    def of(cls, keys: Sequence[bytes], offsets: Sequence[PhysicalOffset]) -> HashedKeys:
        """Return the columns of some keys, one at least, whose records begin at these places."""
        hashes, places = _halves(map(hash, keys)), _halves(offsets)
        halves = (hashes[_LOW::2], hashes[_HIGH::2], places[_LOW::2])
        cells, tags, lows = (memoryview(half.tobytes()).cast("I") for half in halves)
        return cls(cells, tags, lows, offsets[0])


@dataclass(slots=True)
class ChainedTable:
    """Keys in the order of the log, in columns.

    Attributes:
        count: of its keys; what stands behind them in the columns of keys means nothing.
        tags: half of a key's hash.
        before: number of the key before it in its chain.
        lows: where its record begins, without the upper half.
        starts, firsts, times: of each entry in it, in order: its first key's place here, where its first record
            begins, the store time.
    """

    count: int = 0
    tags: memoryview = field(default_factory=_column)
    before: memoryview = field(default_factory=_column)
    lows: memoryview = field(default_factory=_column)
    starts: array[int] = field(default_factory=lambda: array("I"))
    firsts: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))

    def offset_at(self, place: int, entry: int) -> PhysicalOffset:
        """Return where the record of a key begins; an entry is shorter than 4 GiB."""
        first = self.firsts[entry]
        return PhysicalOffset(first + ((self.lows[place] - first) & _HALF_MASK))

    def count_since(self, oldest_ms: StoreTimeMs) -> int:
        """Return how many keys are not older than that."""
        entry = bisect_left(self.times, oldest_ms)
        return self.count - self.starts[entry] if entry < len(self.starts) else 0


class ChainedSends:
    """The tables, oldest first.

    Invariants: at most TABLES_MAX tables, all but the newest full; entries in the order of the log; store times do not
    fall; a chain goes from newer keys to older ones as far as they are remembered.

    Attributes:
        forgotten_early: keys that went before their time, since there were too many, since this state was begun or
            loaded.
    """

    def __init__(self) -> None:
        self.forgotten_early = 0
        self._tables: deque[ChainedTable] = deque()
        self._heads = _NO_CELLS
        self._first = _FIRST_NUMBER
        self._count = 0
        self._oldest_ms = StoreTimeMs(0)

    def __bool__(self) -> bool:
        return bool(self._count)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of cells and columns."""
        return _KEY_BYTES * TABLE_KEYS * len(self._tables) + self._heads.nbytes

    def add(self, keys: HashedKeys, store_ms: StoreTimeMs, *, oldest_ms: StoreTimeMs) -> None:
        """Remember the records of one entry.

        Args:
            keys: unique keys whose records stand after all that were added before.
            store_ms: the entry's latest store time.
            oldest_ms: what is older need not be remembered.
        """
        self._oldest_ms = oldest_ms
        before = memoryview(self._chain(keys.cells))
        start, end = 0, len(keys.lows)
        while start < end:
            table = self._with_room(oldest_ms)
            first = table.count
            stop = min(start + TABLE_KEYS - first, end)
            table.count = first + stop - start
            table.starts.append(first)
            table.firsts.append(keys.first + ((keys.lows[start] - keys.first) & _HALF_MASK))
            table.times.append(store_ms)
            table.tags[first : table.count] = keys.tags[start:stop]
            table.before[first : table.count] = before[start:stop]
            table.lows[first : table.count] = keys.lows[start:stop]
            self._count += stop - start
            start = stop

    def _chain(self, hashes: memoryview) -> array[int]:
        """Number keys and make them the newest of their chains; return the numbers of those before them."""
        if not len(self._heads):
            self._heads = _cells()
        start = (self._first + self._count) % NUMBERS
        linked = compiled.chain(self._heads, start, hashes)
        if linked is not None:
            return array("I", linked)
        numbers: Iterable[int] = range(start, start + len(hashes))
        if start + len(hashes) > NUMBERS:
            numbers = [number % NUMBERS for number in numbers]
        heads, mask = self._heads, CELLS - 1
        before: list[int] = []
        put = before.append
        for number, hashed in zip(numbers, hashes, strict=True):  # runs per message
            cell = hashed & mask
            put(heads[cell])
            heads[cell] = number
        return array("I", before)

    def _with_room(self, oldest_ms: StoreTimeMs) -> ChainedTable:
        """Return the newest table, or a new one if it is full."""
        tables = self._tables
        if tables and tables[-1].count < TABLE_KEYS:
            return tables[-1]
        if len(tables) >= TABLES_MAX:
            self.forgotten_early += tables[0].count_since(oldest_ms)
            self._forget_oldest()
        tables.append(ChainedTable())
        return tables[-1]

    def _forget_oldest(self) -> None:
        gone = self._tables.popleft().count
        self._first = (self._first + gone) % NUMBERS
        self._count -= gone

    def forget(self, oldest_ms: StoreTimeMs) -> None:
        """Forget the tables in which everything is older than that."""
        self._oldest_ms = oldest_ms
        tables = self._tables
        while tables and tables[0].times[-1] < oldest_ms:
            self._forget_oldest()
        if not tables:
            self.clear()

    def forget_before(self, beginning: Position) -> None:
        """Forget the tables that end before a position; what else stands before it nobody can read."""
        tables = self._tables
        while len(tables) > 1 and tables[1].firsts[0] <= beginning:
            self._forget_oldest()

    def clear(self) -> None:
        """Forget everything."""
        self._tables.clear()
        self._heads = _NO_CELLS
        self._first, self._count = _FIRST_NUMBER, 0

    def has_any(self, keys: list[bytes]) -> bool:
        """Return whether `find` finds a place for one of these keys."""
        if not self._count:
            return False
        likely = compiled.chained_keys(
            keys,
            self._heads,
            self._first,
            self._count,
            NUMBERS,
            self._tables,
            TABLE_KEYS,
            CHAIN_MAX,
        )
        return any(self.find(key, 1) for key in (keys if likely is None else likely))

    def find(self, key: bytes, count_max: int) -> list[PhysicalOffset]:
        """Return the places of the newest records that have a key's hash and are not too old, oldest first."""
        hashed, first, end = hash(key), self._first, self._count
        if not end:
            return []
        at = (self._heads[hashed & CELLS - 1] - first) % NUMBERS
        if at >= end:  # in its own lines, as it is so for most keys
            return []
        found: list[PhysicalOffset] = []
        tag = hashed >> _TAG_SHIFT & _HALF_MASK
        for _ in range(CHAIN_MAX):
            table, place = self._tables[at // TABLE_KEYS], at % TABLE_KEYS
            if table.tags[place] == tag:
                entry = bisect_right(table.starts, place) - 1
                if table.times[entry] < self._oldest_ms:
                    break
                found.append(table.offset_at(place, entry))
            # A number that has begun anew since leads to a newer key, and ends the chain, too.
            at, end = (table.before[place] - first) % NUMBERS, at
            if at >= end or len(found) >= count_max:
                break
        found.reverse()
        return found
