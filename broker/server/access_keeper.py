"""Keeps the access rules of a node without holding up its loop: files are waited for in a thread.

It must not know who asks, nor what a change is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from broker.access.changes import Change
from broker.access.errors import AccessRulesError
from broker.access.guard import AccessGuard
from broker.access.plain_acl import AclFile
from broker.access.rule_files import RuleFiles

WAITING_MAX: Final = 64
"""Changes that may wait for the disk; tools ask for one at a time."""


class AccessKeeper:
    """Implements `KeepRules`; the guard goes by what was changed before it is answered."""

    def __init__(
        self,
        files: RuleFiles,
        guard: AccessGuard,
        nursery: trio.Nursery,
        *,
        wall_ms: Callable[[], int],
        flush: Callable[[], None],
    ) -> None:
        """Set up the tasks.

        Args:
            files: where the rules stand.
            guard: goes by them.
            nursery: of the tasks that wait for the disk.
            wall_ms: returns the milliseconds since 1970.
            flush: sends the answers that `done` has made.
        """
        self._files = files
        self._guard = guard
        self._nursery = nursery
        self._wall_ms = wall_ms
        self._flush = flush
        self._waiting_count = 0

    @property
    def default_name(self) -> str:
        """See `KeepRules`."""
        return str(self._files.path)

    @property
    def files(self) -> Sequence[AclFile]:
        """See `KeepRules`."""
        return self._files.files

    def change(self, change: Change, done: Callable[[str | None], None]) -> None:
        """See `KeepRules`."""
        if self._waiting_count >= WAITING_MAX:
            done(f"{WAITING_MAX} changes wait for the disk already")
            return
        self._waiting_count += 1
        self._nursery.start_soon(self._carry_out, change, done)

    async def _carry_out(self, change: Change, done: Callable[[str | None], None]) -> None:
        problem = None
        try:
            self._guard.rules = await self._files.change_beside(change, self._wall_ms())
        except AccessRulesError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{self._files.path} cannot be written: {error.strerror or error}"
        self._waiting_count -= 1
        done(problem)
        self._flush()
