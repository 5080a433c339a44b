"""The timers that fall due later: units kept sorted outside memory, except those for which the disk has no room.

What a unit is, and which ones are far, is the business of `timers.py`; here they are bytes in an order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Final, Protocol

from sortedcontainers import SortedList

from broker.store.errors import NoRoomError
from broker.store.places import MemoryPlace, PartPlace

FAR_WRITE_UNITS: Final = 4096
"""Far units gather up to this count and are then written together."""


class FarTimers(PartPlace, Protocol):
    """Keeps units sorted outside memory. It may lose everything at a restart."""

    def add(self, units: Sequence[bytes]) -> None:
        """Keep units, in any order; none of them is there yet.

        Raises:
            NoRoomError: none of them is kept.
        """
        ...

    def discard(self, unit: bytes) -> bool:
        """Forget one unit; return whether it was there."""
        ...

    def take_first(self, count: int) -> list[bytes]:
        """Remove the `count` first units and return them in order; fewer when there are no more."""
        ...

    def first(self) -> bytes | None:
        """Return the first unit, None when there is none."""
        ...

    def clear(self) -> None:
        """Forget all units."""
        ...

    def frozen(self) -> Iterator[bytes]:
        """Return all units in order, as they are now, however slowly they are then read."""
        ...


class MemoryFarTimers(MemoryPlace):
    """A `FarTimers` for tests and for brokers that keep everything in memory."""

    def __init__(self) -> None:
        self._units: SortedList[bytes] = SortedList()

    def add(self, units: Sequence[bytes]) -> None:
        """Keep units; see `FarTimers`."""
        self._units.update(units)

    def discard(self, unit: bytes) -> bool:
        """Forget one unit; see `FarTimers`."""
        is_there = unit in self._units
        self._units.discard(unit)
        return is_there

    def take_first(self, count: int) -> list[bytes]:
        """Remove the first units; see `FarTimers`."""
        taken = list(self._units[:count])
        del self._units[:count]
        return taken

    def first(self) -> bytes | None:
        """Return the first one; see `FarTimers`."""
        return self._units[0] if self._units else None

    def clear(self) -> None:
        """Forget all; see `FarTimers`."""
        self._units.clear()

    def frozen(self) -> Iterator[bytes]:
        """Return all of them; see `FarTimers`."""
        return iter(list(self._units))


class FarUnits:
    """All far units, wherever they are: gathering, in the store, or waiting for room in it.

    Invariant: each is in one of these places, and `count` is that of all together.
    """

    def __init__(self, store: FarTimers) -> None:
        self.count = 0
        self._store = store
        self._unwritten: list[bytes] = []
        self._without_room: SortedList[bytes] = SortedList()

    def add(self, unit: bytes) -> None:
        """Take in a unit that is not there."""
        self.count += 1
        self._unwritten.append(unit)
        if len(self._unwritten) >= FAR_WRITE_UNITS:
            self._write()

    def add_all(self, units: Sequence[bytes]) -> None:
        """Take in units that are not there, and write them at once."""
        self.count += len(units)
        self._unwritten += units
        self._write()

    def discard(self, unit: bytes) -> bool:
        """Forget one unit; return whether it was there."""
        self._write()
        if unit in self._without_room:
            self._without_room.remove(unit)
        elif not self._store.discard(unit):
            return False
        self.count -= 1
        assert self.count >= 0, f"{self.count} far units are left"
        return True

    def take_first(self, count: int) -> list[bytes]:
        """Remove the first units and return them in order; fewer when there are no more."""
        self._write()
        taken = self._store.take_first(count)
        waiting = self._without_room
        if waiting:
            both = sorted([*taken, *waiting[:count]])
            taken = both[:count]
            del waiting[:count]
            waiting.update(both[count:])
        assert len(taken) == min(count, self.count), (
            f"{len(taken)} units came when {count} of {self.count} were to come"
        )
        self.count -= len(taken)
        return taken

    def first(self) -> bytes | None:
        """Return the first unit, None when there is none."""
        self._write()
        firsts = (self._store.first(), self._without_room[0] if self._without_room else None)
        first = min((first for first in firsts if first is not None), default=None)
        assert (first is None) == (self.count == 0), f"the first of {self.count} units is {first!r}"
        return first

    def frozen(self) -> Iterator[bytes]:
        """Return all units in order, as they are now."""
        self._write()
        if not self.count:
            return iter(())
        return merge(list(self._without_room), self._store.frozen())

    def clear(self) -> None:
        """Forget all units."""
        self._store.clear()
        self.count = 0
        self._unwritten = []
        self._without_room.clear()

    def _write(self) -> None:
        """Hand over what gathered; that for which there is no room is offered again with what comes."""
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        waiting = self._without_room
        try:
            self._store.add(unwritten)
            unwritten = []
            if waiting:
                self._store.add(list(waiting))
                waiting.clear()
        except NoRoomError:
            waiting.update(unwritten)
