"""The newest entries in memory: everything not yet durable, and as much more as the bound allows.

It knows neither files nor the layout of the log; which entries are durable is said to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import NO_INDEX, Index

_GONE_MAX: Final = 1024
"""Places of entries that were dropped at the beginning of a column, before these are cut off."""


class EntryCache:
    """A gapless run of entries that ends with the log's last one, or nothing.

    Entries come in at the end only; reading old entries from disk leaves the cache alone, so a slow
    follower cannot push out what the others need.

    Invariant: `_by_index` holds exactly the indexes first_index..first_index + len - 1; the columns hold in this order
    where their bodies begin in the log, and these, behind `_gone` places that are not in use any more.
    """

    __slots__ = (
        "_bodies",
        "_by_index",
        "_bytes",
        "_bytes_max",
        "_first_index",
        "_gone",
        "_positions",
    )

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._by_index: dict[Index, Entry] = {}
        self._first_index = NO_INDEX
        self._bytes = 0
        self._positions: list[int] = []
        self._bodies: list[bytes] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries held, headers included."""
        return self._bytes

    @property
    def first_index(self) -> Index:
        """Oldest entry held; meaningless when empty."""
        return self._first_index

    @property
    def first(self) -> Entry | None:
        """The oldest entry held; None when it is empty."""
        return self._by_index.get(self._first_index)

    def get(self, index: Index) -> Entry | None:
        """Return the entry, or None when it is not held."""
        return self._by_index.get(index)

    def bodies_between(self, first: Index, last: Index) -> tuple[list[int], list[bytes]]:
        """Return where the bodies of entries begin, and these, from the first to the last, which are all held."""
        at = self._gone + first - self._first_index
        end = at + last - first + 1
        return self._positions[at:end], self._bodies[at:end]

    def bodies_of(self, indexes: Iterable[Index]) -> tuple[list[int], list[bytes]]:
        """Return what `bodies_between` does of some entries."""
        shift = self._gone - self._first_index
        places = [shift + index for index in indexes]
        return [self._positions[at] for at in places], [self._bodies[at] for at in places]

    def add(self, entry: Entry) -> None:
        """Take in the log's new last entry."""
        if not self._by_index:
            self._first_index = entry.index
        assert entry.index == self._first_index + len(self._by_index), "a gap in the cache"
        self._by_index[entry.index] = entry
        self._bytes += entry.size_bytes
        self._positions.append(entry.position + ENTRY_HEADER_BYTES)
        self._bodies.append(entry.body)

    def truncate_from(self, first: Index) -> None:
        """Forget `first` and everything after it."""
        for index in range(max(first, self._first_index), self._first_index + len(self._by_index)):
            self._bytes -= self._by_index.pop(Index(index)).size_bytes
        kept = self._gone + len(self._by_index)
        del self._positions[kept:], self._bodies[kept:]
        assert bool(self._by_index) == (self._bytes > 0), (
            f"{len(self._by_index)} entries of {self._bytes} bytes"
        )

    def forget_before(self, first: Index) -> None:
        """Forget the entries before `first`."""
        while self._by_index and self._first_index < first:
            self._pop_first()

    def clear(self) -> None:
        """Forget everything."""
        self._by_index.clear()
        self._positions.clear()
        self._bodies.clear()
        self._bytes = self._gone = 0

    def shrink(self, durable_index: Index) -> None:
        """Drop the oldest durable entries until the bound holds."""
        while self._bytes > self._bytes_max and self._by_index:
            if self._first_index > durable_index:
                return
            self._pop_first()

    def _pop_first(self) -> None:
        self._bytes -= self._by_index.pop(self._first_index).size_bytes
        self._first_index = Index(self._first_index + 1)
        self._bodies[self._gone] = b""
        self._gone += 1
        if self._gone > max(_GONE_MAX, len(self._by_index)):
            del self._positions[: self._gone], self._bodies[: self._gone]
            self._gone = 0
