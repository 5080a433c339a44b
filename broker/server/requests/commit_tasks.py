"""Waiting in a task until a record is committed.

What an entry is made of, and what becomes of it, is decided in commits.py, which knows of no tasks.
"""

from __future__ import annotations

import trio

from broker.store.staging import StagedEntry
from dledger import DLedgerError


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
