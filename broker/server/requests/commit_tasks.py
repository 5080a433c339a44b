"""The tasks around the group commit: the one that flushes, and those that wait until a record is committed.

What an entry is made of, and what becomes of it, is decided in commits.py, which knows of no tasks.
"""

from __future__ import annotations

import trio

from broker.server.requests.commits import Commits
from broker.store.staging import StagedEntry
from dledger import DLedgerError


async def keep_flushing(commits: Commits) -> None:
    """Flush whenever something is staged; runs after the connections that were ready together."""
    while True:
        wanted = trio.Event()
        # Set before the flush: a waiter that it fails may stage anew.
        commits.wanted = wanted.set
        commits.flush()
        await wanted.wait()


class AwaitCommit:
    """A waiter for tasks: `wait` returns when the record is applied, or raises what failed.

    Attributes:
        staged, place: the entry and the record's place in it, once `wait` has returned.
    """

    def __init__(self) -> None:
        self._done = trio.Event()
        self._error: DLedgerError | None = None
        self.staged: StagedEntry | None = None
        self.place = -1

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        assert not self._done.is_set(), "its outcome was reported before"
        self.staged, self.place = staged, place
        self._done.set()

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""
        assert not self._done.is_set(), "its outcome was reported before"
        self._error = error
        self._done.set()

    async def wait(self) -> None:
        """Wait for the outcome.

        Raises:
            DLedgerError: it failed; the class says whether that is definite.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error
