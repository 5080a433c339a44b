"""Messages that wait until the saves queued before them are durable, which the engine holds back."""

from __future__ import annotations

from collections import deque
from typing import Final

from dledger.raft.effects import Waits
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import Message

HELD_COUNT_MAX: Final = 4096
"""A disk may have no room for days, and each heartbeat is answered: the oldest are dropped, as the network
may drop them. It is minutes of heartbeats, and more answers than requests are ever under way."""


class HeldSends:
    """Messages that wait for the saves that were queued before them.

    A batch of the log may hold only a part of what is queued (it stays within one segment and a
    number of bytes), so each save of the log also notes where the log ended with it.

    Invariants: save numbers never decrease from front to back, in `_waiting` as in `_log_saves`;
    the indexes in `_log_saves` do not either; durable_count <= save_count.

    Attributes:
        is_full: the disk has no room for what waits. Then even what confirms nothing new is held: a leader must
            not count on members that can take nothing, and another one may find a majority that can.
    """

    __slots__ = (
        "_hard_state_count",
        "_log_saves",
        "_waiting",
        "durable_count",
        "is_full",
        "save_count",
    )

    def __init__(self) -> None:
        self.save_count = 0
        self.durable_count = 0
        self.is_full = False
        self._hard_state_count = 0
        self._waiting: deque[tuple[int, NodeId, Message]] = deque(maxlen=HELD_COUNT_MAX)
        self._log_saves: deque[tuple[int, Index]] = deque()

    def saves_hard_state(self) -> None:
        """Note that a hard state is queued; the next job takes it in any case."""
        self.save_count += 1
        self._hard_state_count = self.save_count

    def saves_log(self, last_index: Index) -> None:
        """Note that a change of the log is queued, after which it ends at `last_index`.

        What was queued for entries that are removed again is as durable as their removal, once those
        are durable that are left of them: a message may confirm both.
        """
        self.save_count += 1
        number = self.save_count
        saves = self._log_saves
        while saves and saves[-1][1] > last_index:
            number, _ = saves.pop()
        assert not saves or saves[-1][0] < number, f"save {number} after save {saves[-1][0]}"
        saves.append((number, last_index))

    def taken(self, batch_last_index: Index | None) -> int:
        """Return the number of the last save that a job includes, and forget the saves of the log that it takes.

        Args:
            batch_last_index: where the log ends with the job's batch; None: it takes everything.
        """
        saves = self._log_saves
        if batch_last_index is None:
            saves.clear()
            return self.save_count
        while saves and saves[0][1] <= batch_last_index:
            saves.popleft()
        return saves[0][0] - 1 if saves else self.save_count

    def may_leave(self, waits: Waits) -> bool:
        """Return whether the saves that a message waits for are durable, even if later ones are not."""
        match waits:
            case Waits.ALL:
                return self.save_count == self.durable_count
            case Waits.TERM:
                is_saved = self._hard_state_count <= self.durable_count
                return is_saved and (not self.is_full or self.save_count == self.durable_count)
            case Waits.NOTHING:
                return True

    def hold(self, to: NodeId, message: Message) -> None:
        """Keep a message until the saves queued so far are durable; the oldest of too many is dropped."""
        self._waiting.append((self.save_count, to, message))

    def release(self, durable_count: int) -> list[tuple[NodeId, Message]]:
        """Note what is durable; return the messages that waited for nothing beyond it."""
        assert self.durable_count <= durable_count <= self.save_count, (
            f"save {durable_count} is durable after {self.durable_count}, {self.save_count} is the last"
        )
        self.durable_count = durable_count
        self.is_full = False
        free: list[tuple[NodeId, Message]] = []
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable_count:
            _, to, message = waiting.popleft()
            free.append((to, message))
        return free

    def drop(self) -> None:
        """Drop all held messages: what they would confirm may not be on disk."""
        self._waiting.clear()
