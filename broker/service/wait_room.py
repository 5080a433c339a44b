"""Memory of what waits: requests of one kind of wait, bounded by their bytes where a count says little. Pure.

Nearly every request is small, and how many may wait bounds those. A client may also send ones of 16 MiB, or with
subscriptions that take more once they are read than they did on the wire. Those share the room of their kind of wait;
the small ones, with what they share, need none, so that nobody keeps them out by large ones.

It must not know what a request asks for, nor what becomes of one for which there is no room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

ROOM_BYTES: Final = 64 * 1024 * 1024
"""Four of the largest frames; more than a broker stages of what waited for a leader."""

FREE_BYTES: Final = 8192
"""A request that keeps no more needs no room; usual ones keep half of that."""


class MemoryKeeper(Protocol):
    """Something that waits, and what it keeps in memory meanwhile."""

    @property
    def kept_bytes(self) -> int:
        """Roughly what it keeps in memory by itself."""
        ...

    @property
    def shared(self) -> tuple[object, int] | None:
        """A thing that it keeps and others may keep as well, with its bytes, roughly; None: there is none."""
        ...


@dataclass(slots=True)
class _Shared:
    """A thing that `count` of those in the room keep."""

    thing: object
    size_bytes: int
    count: int = 0


class WaitRoom:
    """The room of one kind of wait.

    Invariant: `used_bytes` is the sum of what those in it keep, each shared thing once, and at most `bytes_max`.
    """

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max
        self._inside: dict[int, tuple[MemoryKeeper, int, _Shared | None]] = {}
        """By their identity: requests are compared by their values. What keeps little is not here."""
        self._shared: dict[int, _Shared] = {}

    def has_room(self, each: MemoryKeeper) -> bool:
        """Return whether one more may wait."""
        own_bytes, shared = self._needs(each)
        return self._fits(own_bytes, shared)

    def enter(self, each: MemoryKeeper) -> bool:
        """Let one wait, until it leaves; return False if there is no room for it."""
        assert id(each) not in self._inside, "it waits already"
        own_bytes, shared = self._needs(each)
        if not own_bytes and shared is None:
            return True
        if not self._fits(own_bytes, shared):
            return False
        self.used_bytes += own_bytes
        if shared is not None:
            if not shared.count:
                self.used_bytes += shared.size_bytes
                self._shared[id(shared.thing)] = shared
            shared.count += 1
        self._inside[id(each)] = each, own_bytes, shared
        return True

    def leave(self, each: MemoryKeeper) -> None:
        """Give back the room of one that waits no longer; without any, nothing happens."""
        if id(each) not in self._inside:
            return
        _, own_bytes, shared = self._inside.pop(id(each))
        self.used_bytes -= own_bytes
        if shared is not None:
            shared.count -= 1
            if not shared.count:
                self.used_bytes -= shared.size_bytes
                del self._shared[id(shared.thing)]
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes wait"

    def _needs(self, each: MemoryKeeper) -> tuple[int, _Shared | None]:
        """Return the bytes that one needs for itself, and what it shares."""
        own_bytes, shared = each.kept_bytes, each.shared
        if own_bytes + (shared[1] if shared is not None else 0) <= FREE_BYTES:
            return 0, None
        found = None
        if shared is not None:
            found = self._shared.get(id(shared[0])) or _Shared(*shared)
        return own_bytes if own_bytes > FREE_BYTES else 0, found

    def _fits(self, own_bytes: int, shared: _Shared | None) -> bool:
        need_bytes = own_bytes
        if shared is not None and not shared.count:
            need_bytes += shared.size_bytes
        return not need_bytes or self.used_bytes + need_bytes <= self._bytes_max
