"""Old entries are read for members that lack them, beside the loop and no faster than the settings allow.

What is read, and what becomes of it, is the core's business (docs/adr/0187). While somebody sends it is half the rate:
that leaves processors and disk to the sends (docs/adr/0205). A member for which the group waits is held down by
nothing; nor is one below the rate at which it would come nearer to the log's end. All of that is looked at again while
a read waits: the group may come to wait for its member meanwhile.
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

SHARE_BESIDE_SENDS: Final = 0.5
"""Of the rate, while the log grows."""

LOOK_S: Final = 0.1
"""Between two looks at whether a read still has to wait."""


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
        bytes_per_s: read from the disk for one member in a second, at most, while nobody sends; 0: there is no bound.
        load_count, load_bytes: reads since the start.
    """

    tasks: TaskGroup

    def __init__(
        self,
        layout: LogLayout,
        loaded: Callable[[EntriesLoad], None],
        is_waited_for: Callable[[NodeId], bool],
    ) -> None:
        """Set up the reads of one member.

        Args:
            layout: of its log.
            loaded: called on the loop with what was read.
            is_waited_for: whether the group commits nothing until this member has caught up.
        """
        self.bytes_per_s = 0
        self.load_count = 0
        self.load_bytes = 0
        self._layout = layout
        self._loaded = loaded
        self._growth = LogGrowth(layout.end_position, now_s())
        self._is_waited_for = is_waited_for
        self._owed: dict[NodeId, tuple[float, float]] = {}

    def begin(self, loads: list[EntriesLoad]) -> None:
        """Begin these reads."""
        for load in loads:
            self.tasks.start(self._run, load, name="catch-up")

    async def _run(self, load: EntriesLoad) -> None:
        wait_s = self._wait_s(load, now_s())
        while wait_s > 0:
            await trio.sleep(min(wait_s, LOOK_S))
            wait_s = self._wait_s(load, now_s())
        self._owe(load)
        # A disk that never answers must not keep the process from ending.
        await trio.to_thread.run_sync(load.run, abandon_on_cancel=True)
        self.load_count += 1
        self.load_bytes += load.plan.size_bytes
        self._loaded(load)

    def _wait_s(self, load: EntriesLoad, at_s: float) -> float:
        """Return for how long a read has to wait, as things are; what was not used of the rate before is lost."""
        growth, to = self._growth.bytes_per_s(self._layout.end_position, at_s), load.want.to
        since_s, owed_bytes = self._owed.get(to, (at_s, 0.0))
        share = SHARE_BESIDE_SENDS if growth else 1.0
        bytes_per_s = max(self.bytes_per_s * share, GROWTH_FACTOR * growth)
        owed_bytes = max(0.0, owed_bytes - (at_s - since_s) * bytes_per_s)
        if not self.bytes_per_s or self._is_waited_for(to):
            owed_bytes = 0.0
        self._owed[to] = (at_s, owed_bytes)
        return owed_bytes / bytes_per_s if owed_bytes else 0.0

    def _owe(self, load: EntriesLoad) -> None:
        """Note that a read begins, which the next one of its member has to wait for."""
        since_s, owed_bytes = self._owed[load.want.to]
        self._owed[load.want.to] = (since_s, owed_bytes + load.plan.size_bytes)
