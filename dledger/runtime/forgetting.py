"""Giving back the room of what the group has forgotten: whole segments go from the front of the own log.

The state machine says what nobody needs any more (`ForgettingMachine`), `dledger.forgetting` what this member may drop
of it now. Each member does that for itself. Files are removed in a thread, beside the writes of the log.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import DiskFullError
from dledger.forgetting import ForgettingBounds, covered_index, first_to_keep
from dledger.raft.ids import Index
from dledger.runtime.clock import now_ms, now_s
from dledger.runtime.events_log import log_event
from dledger.runtime.snapshotting import Snapshotter
from dledger.state_machine import ForgettingMachine
from dledger.storage.log_start import FrontDrop

CHECK_INTERVAL_S: Final = 1.0
RETRY_S: Final = 30.0
"""A drop for which there was no room, or that the disk refused, is tried again after this."""


class Forgetting:
    """Drops what one member need not keep.

    Attributes:
        dropped_bytes: of the log, since the start.
    """

    def __init__(
        self,
        config: LogConfig,
        machine: ForgettingMachine,
        engine: Engine,
        snapshotter: Snapshotter,
    ) -> None:
        self.dropped_bytes = 0
        self._config = config
        self._machine = machine
        self._engine = engine
        self._snapshotter = snapshotter
        self._bounds = ForgettingBounds(
            config.catch_up_bytes_max, config.raft.election_timeout_max_ms
        )

    async def run(self) -> None:
        """Drop whatever may go, until cancelled."""
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            try:
                await self.forget()
            except OSError as error:
                # Where an old entry stands could not be looked up: descriptors or memory are short.
                self._log(logging.WARNING, "not-forgotten", reason=error, next_try_s=RETRY_S)
                await trio.sleep(RETRY_S)

    async def forget(self) -> bool:
        """Drop what may go now; return whether there was anything. Asks for a snapshot where one is in the way."""
        covered = await self._covered_index()
        engine, keep_from = self._engine, self._machine.keep_from
        self._ask_for_snapshot(keep_from, covered)
        position = engine.log.layout.first_position
        drop = engine.forget_before(
            first_to_keep(engine, keep_from, covered=covered, bounds=self._bounds, now_ms=now_ms())
        )
        if drop is None:
            return False
        await self._carry_out(drop, drop.start.position - position)
        return True

    async def _covered_index(self) -> Index:
        """Return the last entry that both snapshots contain; the newest alone must do where there is no room for more.

        Otherwise a full disk would stay full: no snapshot without room, and no room without a snapshot.
        """
        snapshotter = self._snapshotter
        if snapshotter.has_no_room:
            return await snapshotter.whole_index()
        newest, older = snapshotter.newest, snapshotter.older
        return covered_index(newest.meta if newest else None, older.meta if older else None)

    def _ask_for_snapshot(self, keep_from: Index, covered: Index) -> None:
        """Have a snapshot taken sooner, where that gives back at least twice the room that it takes."""
        log = self._engine.log
        applied_index = self._machine.applied_index
        wanted = log.kept_from(Index(min(keep_from, applied_index + 1)))
        if wanted <= covered + 1:
            return
        waiting_bytes = log.layout.position_of(wanted) - log.layout.first_position
        if waiting_bytes >= max(self._config.segment_size_bytes, 2 * self._snapshotter.size_bytes):
            self._snapshotter.want()

    async def _carry_out(self, drop: FrontDrop, size_bytes: int) -> None:
        """Remove the files, again until it is done: the log has no other start from here on."""
        started_s = now_s()
        while True:
            try:
                await trio.to_thread.run_sync(drop.run)
                break
            except (OSError, DiskFullError) as error:
                self._log(logging.WARNING, "not-forgotten", reason=error, next_try_s=RETRY_S)
            await trio.sleep(RETRY_S)
        self._engine.dropped()
        self.dropped_bytes += size_bytes
        self._log(
            logging.INFO,
            "forgotten",
            before=drop.start.index + 1,
            bytes=size_bytes,
            seconds=round(now_s() - started_s, 3),
        )

    def _log(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, node=self._config.raft.node_id, **fields)
