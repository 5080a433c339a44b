"""A member whose store began empty gets the leader's newest snapshot of the state.

The log comes to it by replication like to any follower, from the first entry that the leader has. The
snapshot only spares it the fold of what it contains: it is fetched in parts over a connection of its
own, one part at a time, so that nothing of the group waits for it. A broken connection goes on where it
stopped; another leader, whose file is another, begins anew.

From then on the state is ahead of the own log, until the log reaches the snapshot's entry; there the
engine compares the chain CRC, so a state of another log stops the node (docs/adr/0062).
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from dledger.codec.client_rpc import SnapshotAnswer, SnapshotCall
from dledger.config import LogConfig, Peer
from dledger.errors import CorruptionError, DLedgerError, PeerProtocolError
from dledger.raft.ids import Index, NodeId
from dledger.runtime.driver import Driver
from dledger.runtime.events_log import log_event
from dledger.runtime.handshake import Identity
from dledger.runtime.member_connection import MemberConnection, open_member_connection
from dledger.runtime.snapshotting import Snapshotter, check_restored
from dledger.runtime.task_group import open_task_group
from dledger.state_machine import SnapshotMachine, SnapshotRefusedError
from dledger.storage.snapshots import (
    PART_BYTES_MAX,
    SnapshotCopy,
    SnapshotFile,
    SnapshotStore,
)

PAUSE_S: Final = 0.2
ASK_TIMEOUT_S: Final = 5.0


class SnapshotFetch:
    """Fetches one snapshot for a member that began with an empty store."""

    def __init__(
        self,
        config: LogConfig,
        driver: Driver,
        machine: SnapshotMachine,
        *,
        store: SnapshotStore,
        snapshotter: Snapshotter,
    ) -> None:
        self._config = config
        self._driver = driver
        self._machine = machine
        self._store = store
        self._snapshotter = snapshotter
        self._by_id = {peer.node_id: peer for peer in config.peers}
        self._copy: SnapshotCopy | None = None
        self._source: NodeId | None = None

    async def run(self) -> None:
        """Fetch and take in; ends when that is done, or when it would spare nothing any more."""
        try:
            while not self._driver.engine.node.is_voter:
                leader_id = self._driver.engine.node.leader_id
                if leader_id is None or leader_id == self._config.raft.node_id:
                    await trio.sleep(PAUSE_S)
                    continue
                if await self._has_fetched_from(self._by_id[leader_id]):
                    return
                await trio.sleep(PAUSE_S)
        except (OSError, CorruptionError) as error:
            # The log has everything that the snapshot has: fold it.
            self._log(logging.WARNING, "snapshot-not-fetched", reason=error)
        finally:
            if self._copy is not None:
                self._copy.abandon()

    async def _has_fetched_from(self, peer: Peer) -> bool:
        """Fetch from a member; return False where it was not reached or broke off.

        Raises:
            CorruptionError: what came is no whole snapshot.
            OSError: the own disk failed.
        """
        try:
            await self._fetch_from(peer)
        except CorruptionError:
            raise
        except DLedgerError as error:
            self._log(logging.DEBUG, "snapshot-interrupted", peer=peer.node_id, reason=error)
            return False
        return True

    async def _fetch_from(self, peer: Peer) -> None:
        """Copy the snapshot over its own connection; the state is replaced only once the file is whole and verified."""
        config = self._config
        identity = Identity.of_client(config.group, frozenset(self._by_id), config.secret)
        connection = await open_member_connection(peer, identity, blob_bytes_max=PART_BYTES_MAX)
        snapshot: SnapshotFile | None = None
        async with open_task_group() as tasks:
            tasks.start(connection.run, name="snapshot connection")
            try:
                snapshot = await self._copy_all(connection)
            except (DLedgerError, OSError) as error:
                tasks.fail(error)
            finally:
                connection.close("fetched")
                tasks.stop()
        if snapshot is not None:
            self._take_in(snapshot)

    async def _copy_all(self, connection: MemberConnection) -> SnapshotFile | None:
        """Return the file, whole and verified; None when the leader has none that is worth it."""
        if self._copy is not None and self._source != connection.peer.node_id:
            self._copy.abandon()
            self._copy = None
        self._source = connection.peer.node_id
        while True:
            copy = self._copy
            wanted = (copy.index, copy.size_bytes) if copy is not None else (0, 0)
            call = SnapshotCall(connection.next_token(), *wanted)
            answer, blob = await connection.ask(call, timeout_s=ASK_TIMEOUT_S)
            if not isinstance(answer, SnapshotAnswer):
                raise PeerProtocolError(f"{connection.peer} answers with {type(answer).__name__}")
            if not answer.index or answer.index <= self._driver.applied_index:
                return None
            if copy is None or copy.index != answer.index:
                if copy is not None:
                    copy.abandon()
                copy = self._copy = self._store.begin_copy(Index(answer.index))
            if answer.offset != copy.size_bytes or not len(blob):
                raise PeerProtocolError(f"{connection.peer} sent byte {answer.offset}")
            await trio.to_thread.run_sync(copy.add, bytes(blob))
            if copy.size_bytes >= answer.size_bytes:
                self._copy = None
                return await trio.to_thread.run_sync(copy.finish)

    def _take_in(self, snapshot: SnapshotFile) -> None:
        """Replace the state, between two passes, if it is still behind."""
        driver, machine = self._driver, self._machine
        if snapshot.meta.index <= driver.applied_index:
            return
        try:
            machine.restore(self._store.chunks(snapshot))
            check_restored(snapshot, machine)
        except (CorruptionError, SnapshotRefusedError, OSError) as error:
            self._log(logging.ERROR, "snapshot-refused", reason=f"{snapshot.path}: {error}")
            driver.state_replaced(machine.applied_index, None)  # empty: fold from the start
            return
        driver.state_replaced(snapshot.meta.index, snapshot.meta.chain_crc)
        self._snapshotter.newest = snapshot
        self._log(logging.INFO, "snapshot-fetched", index=snapshot.meta.index, peer=self._source)

    def _log(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, node=self._config.raft.node_id, **fields)
