"""Requests that wait until something was read from the disk beside the loop, and then go on; at most so many.

None waits beyond its deadline, and for a client that is gone nothing is read. What is read, and what becomes of a
request, is said by whoever lets it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from broker.service.wait_room import MemoryKeeper, WaitRoom
from broker.store.not_in_memory import FilesNotLoadedError, NotInMemoryError, NotLoadedError
from dledger.runtime.log_reader import LogReader


class DiskWaiter(MemoryKeeper, Protocol):
    """Something that waits."""

    @property
    def deadline_ms(self) -> int:
        """The end of its wait, by the monotonic clock."""
        ...

    @property
    def is_closed(self) -> bool:
        """True once nobody wants its answer."""
        ...


W = TypeVar("W", bound=DiskWaiter)


def _nothing() -> None:
    """Do nothing: nobody listens yet."""


class DiskWaits(Generic[W]):
    """The requests that wait.

    Attributes:
        is_ending: none may wait any more.
        answered: called after one went on; it has to send the answers that there are.
    """

    def __init__(self, reader: LogReader, give_up: Callable[[W], None], *, most: int) -> None:
        """Start with none.

        Args:
            reader: the log.
            give_up: called when one waits no longer, though that was not read yet.
            most: of them that may wait.
        """
        self.is_ending = False
        self.answered: Callable[[], None] = _nothing
        self._reader = reader
        self._give_up = give_up
        self._most = most
        self._room = WaitRoom()
        self._waiting: dict[int, W] = {}
        """By their identity: requests are compared by their values."""

    @property
    def count(self) -> int:
        """The count of those that wait."""
        return len(self._waiting)

    def has_room_for(self, each: W) -> bool:
        """Return whether one more may wait."""
        is_full = self.is_ending or len(self._waiting) >= self._most
        # No request keeps as much as there is room for; nearly always it is the only one, and need not be measured.
        return not is_full and (not self._waiting or self._room.has_room(each))

    def wait_for(self, each: W, missing: NotInMemoryError, go_on: Callable[[], None]) -> None:
        """Let one wait, for which there was room, until what is missing was read, or cannot be; then it goes on."""
        assert id(each) not in self._waiting, "it waits already"
        self._room.enter(each)
        self._waiting[id(each)] = each
        done, is_wanted = (lambda: self._resume(each, go_on)), (lambda: self._is_wanted(each))
        if isinstance(missing, NotLoadedError):
            self._reader.load(missing.places, done, is_wanted)
        else:
            assert isinstance(missing, FilesNotLoadedError), f"{missing!r} says not what to read"
            self._reader.read_beside(missing.warm, done, is_wanted)

    def expire(self, now_ms: int) -> None:
        """Give up waiting for those that are late, and forget those whose clients are gone."""
        if self._waiting:
            waiting = self._waiting.values()
            self._stop_waiting(
                [each for each in waiting if each.deadline_ms <= now_ms or each.is_closed]
            )

    def end(self) -> None:
        """Give up waiting for all at once; none waits from now on."""
        self.is_ending = True
        self._stop_waiting(tuple(self._waiting.values()))

    def _stop_waiting(self, late: Iterable[W]) -> None:
        for each in late:
            del self._waiting[id(each)]
            self._room.leave(each)
            if not each.is_closed:
                self._give_up(each)

    def _is_wanted(self, each: W) -> bool:
        return id(each) in self._waiting and not each.is_closed

    def _resume(self, each: W, go_on: Callable[[], None]) -> None:
        if self._waiting.pop(id(each), None) is None:
            return  # it was given up
        self._room.leave(each)
        if not each.is_closed:
            go_on()
            self.answered()
