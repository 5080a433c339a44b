"""Old entries are read for members that lack them, beside the loop and no faster than the settings allow.

What is read, and what becomes of it, is the core's business (docs/adr/0187). A member for which the group waits is
held down by nothing; nor is one below the rate at which it would come nearer to the log's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from dledger.catch_up import EntriesLoad
from dledger.raft.ids import NodeId
from dledger.raft.log_layout import LogLayout
from dledger.runtime.clock import now_s
from dledger.runtime.task_group import TaskGroup

GROWTH_WINDOW_S: Final = 1.0
"""The log's growth is measured over so much time at least: it comes in bursts."""

GROWTH_FACTOR: Final = 2
"""A member is sent at least so much more than the log grows by: else it would never arrive."""


class LogGrowth:
    """The rate at which the log grows, over the last second or so in which somebody asked."""

    def __init__(self, end_position: int, at_s: float) -> None:
        self._since = (at_s, end_position)
        self._bytes_per_s = 0.0

    def bytes_per_s(self, end_position: int, at_s: float) -> float:
        """Return the rate, now that the log ends here."""
        since_s, since_position = self._since
        if at_s - since_s >= GROWTH_WINDOW_S:
            grown_bytes = max(0, end_position - since_position)
            self._bytes_per_s = grown_bytes / (at_s - since_s)
            self._since = (at_s, end_position)
        return self._bytes_per_s


class CatchUpReads:
    """Runs the reads that the core asks for, one at a time for each member.

    Attributes:
        tasks: of the member that leads; set before anything is begun.
        bytes_per_s: read from the disk for one member in a second, at most; 0: there is no bound.
        load_count, load_bytes: reads since the start.
    """

    tasks: TaskGroup

    def __init__(self, layout: LogLayout, loaded: Callable[[EntriesLoad], None]) -> None:
        """Set up the reads of one member.

        Args:
            layout: of its log.
            loaded: called on the loop with what was read.
        """
        self.bytes_per_s = 0
        self.load_count = 0
        self.load_bytes = 0
        self._layout = layout
        self._loaded = loaded
        self._growth = LogGrowth(layout.end_position, now_s())
        self._due_s: dict[NodeId, float] = {}

    def begin(self, loads: list[EntriesLoad]) -> None:
        """Begin these reads."""
        for load in loads:
            self.tasks.start(self._run, load, name="catch-up")

    async def _run(self, load: EntriesLoad) -> None:
        await trio.sleep(self._wait_s(load, now_s()))
        # A disk that never answers must not keep the process from ending.
        await trio.to_thread.run_sync(load.run, abandon_on_cancel=True)
        self.load_count += 1
        self.load_bytes += load.plan.size_bytes
        self._loaded(load)

    def _wait_s(self, load: EntriesLoad, at_s: float) -> float:
        """Return for how long a read is to wait; what was not used of the rate before is lost."""
        growth = self._growth.bytes_per_s(self._layout.end_position, at_s)
        if not self.bytes_per_s or load.want.is_urgent:
            return 0.0
        bytes_per_s = max(self.bytes_per_s, GROWTH_FACTOR * growth)
        due_s = max(at_s, self._due_s.get(load.want.to, at_s))
        self._due_s[load.want.to] = due_s + load.plan.size_bytes / bytes_per_s
        return due_s - at_s
