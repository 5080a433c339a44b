"""Appending through whoever leads, from any member of the group.

For programs that do not mind where they run. Who wants to be told that another member leads, to send its users
there, takes `LogAppender`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from dledger.config import LogConfig
from dledger.errors import LeaderNotReadyError, NotLeaderError, TooLargeError
from dledger.raft.ids import EntryId
from dledger.runtime.client import Client
from dledger.runtime.log_appender import LogAppender
from dledger.runtime.roster import Roster
from dledger.runtime.standing import Standing


class LogForwarder:
    """Appends here while this member leads, else as a client of the group."""

    def __init__(
        self, config: LogConfig, standing: Standing, appender: LogAppender, roster: Roster
    ) -> None:
        self._config = config
        self._roster = roster
        self._standing = standing
        self._appender = appender
        self._client: Client | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep a client of the group at hand; it connects when it is needed."""
        config = self._config
        async with Client(
            config.peers, group=config.group, secret=config.secret, tls=config.tls
        ) as client:
            self._client = client

            def follow() -> None:
                for peer in self._roster.peers():
                    client.know(peer, is_sure=True)

            self._roster.watchers.append(follow)
            follow()
            try:
                yield
            finally:
                self._roster.watchers.remove(follow)
                self._client = None

    async def append(self, body: bytes, *, timeout_s: float) -> EntryId:
        """Append an entry, and wait until it is applied here, whoever leads.

        A return says that the entry is committed. It is applied here too, unless the time was over before: this member
        may be behind (see `LogReader.applied_index`).

        Raises:
            RefusedError: it surely did not happen.
            OutcomeUnknownError: it may have happened, or may yet. Cancelling means the same.
        """
        limit = self._config.raft.entry_body_bytes_max
        if len(body) > limit:
            # Another member would take the sender for somebody who breaks the protocol.
            raise TooLargeError(f"a body of {len(body)} bytes exceeds entry_body_bytes_max={limit}")
        deadline = trio.current_time() + timeout_s
        with suppress(NotLeaderError, LeaderNotReadyError):
            return await self._appender.append(body, timeout_s=timeout_s)
        client = self._client
        if client is None:
            raise NotLeaderError(None, 0, "the node does not run yet")
        entry_id = await client.append(body, timeout_s=deadline - trio.current_time())
        with trio.move_on_at(deadline):
            await self._standing.running.wait_applied(entry_id.index)
        return entry_id
