"""The queues of this node let go of what the group has forgotten, some at each look, none of it waiting for the disk.

Where a queue begins now is looked for in its units. Those that are not in memory are read beside the loop, in turn with
the reads of old messages. It must not know what is forgotten, and why.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.consume_queue import ConsumeQueues
from dledger.runtime.cold_reads import ever_wanted
from dledger.runtime.log_reader import LogReader


class Trims:
    """Trims queues. Invariant: one read at a time is under way."""

    def __init__(self, reader: LogReader, queues: Callable[[], ConsumeQueues]) -> None:
        """Begin with nothing forgotten; `reader` has the row of those who read beside the loop.

        The queues are asked for at each look: those of a state that was taken in are other ones.
        """
        self._reader = reader
        self._queues = queues
        self._is_reading = False

    def tick(self) -> None:
        """Trim the next queues, and let a thread look for the beginnings of those whose units are on the disk."""
        queues = self._queues()
        queues.sweep()
        if self._is_reading:
            return
        looks = queues.looks()
        if looks is not None:
            self._is_reading = True
            look, looked = looks
            self._reader.read_beside(look, lambda: self._end(looked), ever_wanted)

    def _end(self, looked: Callable[[], None]) -> None:
        self._is_reading = False
        looked()
