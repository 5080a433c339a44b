"""Memory for frames that have begun and not ended, over all connections of a port, a broker's or the log's own.

A length, or a bound of it, is known long before the bytes, so a frame is given room whole, before it is read on:
frames that were begun can always end, and nothing locks up however many are begun at once. Who gets no room is not
read from, and waits in order, with no more in memory than one small read; its sender notices a slow network only.

What has no room is small, but it is held by each connection. So of those with such *loose* bytes only some may hold
a whole small frame; the others must ask for room from the first kilobyte on, and are read in pieces of that size.

Room that nobody fills would keep the others out. So while some wait, those who have room must fill it at a pace;
the slower ones are closed. Without a queue a connection may be as slow as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import trio

ROOM_BYTES_MAX: Final = 64 * 1024 * 1024
"""Four of the largest frames of a broker's port."""

FREE_BYTES: Final = 16 * 1024
"""A smaller frame needs no room, and a connection that has none is read in pieces of this size when room is short."""

FEW_BYTES: Final = 1024
"""The same while many connections hold something without room."""

LOOSE_SHARE: Final = 4
"""They are many once they may hold this part of the room besides it."""

PACE_S: Final = 0.5
PACE_BYTES: Final = 128 * 1024
"""A connection that has room and receives less than this in that time, while others wait, is closed."""


class Holder(Protocol):
    """A connection, as far as its room is concerned."""

    peer: str
    received_bytes: int

    @property
    def has_unread(self) -> bool:
        """True while something was sent that was not read yet: then this side is slow, and not the other."""
        ...

    def cut_off(self, reason: str) -> None:
        """Close this connection; it gives its room back."""
        ...


class _Waiter:
    """A connection that waits for room."""

    __slots__ = ("event", "need_bytes")

    def __init__(self, need_bytes: int) -> None:
        self.need_bytes = need_bytes
        self.event = trio.Event()


class FrameRoom:
    """The room of all connections: given to some, waited for by others.

    Invariants: `used_bytes` is the sum of what was given and at most `bytes_max`; a holder has room or
    waits for it, never both; who waits is given room in the order in which it came.

    Attributes:
        bytes_max: at least twice the largest frame.
        used_bytes: room that was given.
        loose_count: connections that hold a part of a frame and have no room for it.
    """

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.loose_count = 0
        self._loose_max = bytes_max // LOOSE_SHARE // FREE_BYTES
        self._given: dict[Holder, int] = {}
        self._waiting: dict[Holder, _Waiter] = {}
        self._received_before: dict[Holder, int] = {}
        self._contended = trio.Event()

    @property
    def is_short(self) -> bool:
        """True while one of the largest frames might have to wait: small pieces are read then."""
        return 2 * self.used_bytes > self.bytes_max or self._has_many_loose

    @property
    def free_bytes(self) -> int:
        """Size up to which a frame needs no room."""
        return FEW_BYTES if self._has_many_loose else FREE_BYTES

    @property
    def _has_many_loose(self) -> bool:
        return self.loose_count >= self._loose_max

    @property
    def waiting_count(self) -> int:
        """Connections that wait for room."""
        return len(self._waiting)

    def want(self, holder: Holder, need_bytes: int) -> bool:
        """Request room for a frame that has begun; return False if the caller must `wait` before it reads on."""
        assert holder not in self._given, "one frame at a time"
        assert holder not in self._waiting, "a holder waits once"
        if not self._waiting and self.used_bytes + need_bytes <= self.bytes_max:
            self._give(holder, need_bytes)
            return True
        self._waiting[holder] = _Waiter(need_bytes)
        self._contended.set()
        return False

    def is_waiting(self, holder: Holder) -> bool:
        """Return whether it wants room and has none yet."""
        return holder in self._waiting

    async def wait(self, holder: Holder) -> None:
        """Wait until the holder has the room that it wanted, or has left."""
        waiter = self._waiting.get(holder)
        if waiter is not None:
            await waiter.event.wait()

    def leave(self, holder: Holder) -> None:
        """Give room back: the frame is whole, or the connection is gone."""
        given = self._given.pop(holder, 0)
        self.used_bytes -= given
        assert self.used_bytes >= 0, f"{-self.used_bytes} bytes more are given back than were given"
        self._received_before.pop(holder, None)
        waiter = self._waiting.pop(holder, None)
        if waiter is not None:
            waiter.event.set()
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting:
            holder, waiter = next(iter(self._waiting.items()))
            if self.used_bytes + waiter.need_bytes > self.bytes_max:
                return
            del self._waiting[holder]
            self._give(holder, waiter.need_bytes)
            waiter.event.set()
        self._contended = trio.Event()

    def _give(self, holder: Holder, need_bytes: int) -> None:
        self.used_bytes += need_bytes
        assert self.used_bytes <= self.bytes_max, (
            f"{self.used_bytes} bytes of {self.bytes_max} are given"
        )
        self._given[holder] = need_bytes

    async def keep_pace(self, on_closed: Callable[[list[Holder]], None]) -> None:
        """Close holders that have room and do not use it while others wait. Runs until cancelled.

        Args:
            on_closed: called with those that were closed.
        """
        while True:
            await self._contended.wait()
            await trio.sleep(PACE_S)
            closed = self.close_slow()
            if closed:
                on_closed(closed)

    def close_slow(self) -> list[Holder]:
        """Close holders that have had room since the last call and filled too little of it; for every PACE_S.

        Returns:
            The holders that were closed.
        """
        if not self._waiting:
            self._received_before.clear()
            return []
        before = self._received_before
        slow = [
            holder
            for holder in self._given
            if holder in before
            and holder.received_bytes - before[holder] < PACE_BYTES
            and not holder.has_unread
        ]
        for holder in slow:
            holder.cut_off("others waited for the room of its unfinished frame")
        self._received_before = {holder: holder.received_bytes for holder in self._given}
        return slow
