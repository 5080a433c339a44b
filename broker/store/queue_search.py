"""Searches along a queue that last while somebody waits for the disk, and the queue grows.

What is found out of an offset stays true as long as the queue is the same one, since units never change. It must not
know what is searched for.
"""

from __future__ import annotations

from dledger.raft.ids import Position
from dledger_mq.message.numbers import QueueOffset


class Search:
    """A search, as far as it has come.

    Attributes:
        low: the units before it are before the place wanted.
        high: it and those behind it are not; None: nothing is known.
    """

    __slots__ = ("_queue", "high", "low")

    def __init__(self) -> None:
        self._queue: object = None
        self.low = QueueOffset(0)
        self.high: QueueOffset | None = None

    def go_on_in(self, queue: object) -> None:
        """Begin anew if this is another queue: the topic was deleted, and perhaps made again."""
        if self._queue is not queue:
            self._queue, self.low, self.high = queue, QueueOffset(0), None


class TrimSearch(Search):
    """A search for the first message that stands at a beginning or behind it."""

    __slots__ = ("beginning",)

    def __init__(self, beginning: Position) -> None:
        super().__init__()
        self.beginning = beginning
