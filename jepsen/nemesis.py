"""What breaks things, each fault with its cure."""

from __future__ import annotations

from typing import Final

import trio

from jepsen.history import Recorder
from jepsen.observer import Observer
from jepsen.processes import Group

LEADER_WAIT_S: Final = 15.0
WHOLE_WAIT_S: Final = 10.0


class LeaderKiller:
    """Kills whoever leads with SIGKILL, again and again, and starts it again.

    The next kill waits until all nodes are together again (or that took too long): with two of three
    nodes down there is nothing to fail over to.
    """

    def __init__(
        self,
        group: Group,
        observer: Observer,
        history: Recorder,
        *,
        kills: int,
        period_s: float,
        restart_after_s: float,
    ) -> None:
        self.done = 0
        self._group = group
        self._observer = observer
        self._history = history
        self._kills = kills
        self._period_s = period_s
        self._restart_after_s = restart_after_s

    async def run(self) -> None:
        """Do all kills."""
        next_at = trio.current_time() + self._period_s
        while self.done < self._kills:
            await trio.sleep_until(next_at)
            await self._observer.wait_whole(WHOLE_WAIT_S)
            name = await self._observer.wait_leader(LEADER_WAIT_S)
            if name is None:
                self._history.add("note", text=f"no leader to kill within {LEADER_WAIT_S} s")
                return
            next_at = max(next_at, trio.current_time()) + self._period_s
            await self._kill(name)

    async def _kill(self, name: str) -> None:
        node = self._group.node(name)
        # Noted before it happens: an answer that is on its way already counts as later.
        self._history.add("kill", node=name, term=self._observer.term)
        node.kill()
        self.done += 1
        await trio.sleep(self._restart_after_s)
        node.start()
        self._history.add("restart", node=name)
