"""Keeps changes of a node's own settings without holding up its loop: the disk is waited for in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from broker.server.node_settings import NodeSettings
from dledger import DiskFullError

WAITING_MAX: Final = 64
"""Changes that may wait for the disk; tools ask for one at a time."""

_Change = tuple[Mapping[str, str], str, Callable[[str | None], None]]


class NodeKeeper:
    """Writes one change after the other; implements `KeepNodeSettings`."""

    def __init__(
        self,
        settings: NodeSettings,
        nursery: trio.Nursery,
        *,
        wall_ms: Callable[[], int],
        flush: Callable[[], None],
    ) -> None:
        """Set up the tasks.

        Args:
            settings: the file.
            nursery: of the tasks that wait for the disk.
            wall_ms: returns the milliseconds since 1970.
            flush: sends the answers that `done` has made.
        """
        self._settings = settings
        self._nursery = nursery
        self._wall_ms = wall_ms
        self._flush = flush
        self._waiting: deque[_Change] = deque()
        self._is_writing = False

    def values(self) -> Mapping[str, str]:
        """Return the changes that hold; see `KeepNodeSettings`."""
        return self._settings.values()

    def notes(self) -> Mapping[str, tuple[str, int]]:
        """Return who has changed a key, and when; see `KeepNodeSettings`."""
        return {key: (each.by, each.at_ms) for key, each in self._settings.table.items()}

    def keep(self, values: Mapping[str, str], by: str, done: Callable[[str | None], None]) -> None:
        """Make changes durable, in the order in which they come; see `KeepNodeSettings`."""
        if len(self._waiting) >= WAITING_MAX:
            done(f"nothing was changed: {WAITING_MAX} changes wait for the disk already")
            return
        self._waiting.append((values, by, done))
        if not self._is_writing:
            self._is_writing = True
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Write the changes that wait, one after the other, and answer each."""
        while self._waiting:
            values, by, done = self._waiting.popleft()
            table = self._settings.changed(values, by, self._wall_ms())
            problem = None
            try:
                await trio.to_thread.run_sync(partial(self._settings.write, table))
            except DiskFullError as error:
                problem = f"nothing was changed: {error}"
            except OSError as error:
                problem = (
                    f"the disk failed, and what holds after the next start is unknown: {error}"
                )
            done(problem)
            self._flush()
        self._is_writing = False
