"""A member gets the leader's newest snapshot of the state: where it must, and where that spares it the fold.

It is fetched in parts over a connection of its own, one part at a time and no faster than the settings allow, so that
nothing of the group waits for it. A broken connection goes on where it stopped; another leader, whose file is
another, begins anew. A large state is then built beside the one that is shown, in short steps, while nothing is folded;
only to show it is one step (docs/adr/0205).

- *Behind the leader's start* (docs/adr/0180). What the member needs next is no longer in the leader's log. Once the
  snapshot is durable here, the state is replaced and the log is begun anew where the leader's begins.
- *A store that began empty*, while the leader still has its whole log. The snapshot only spares the fold.

Either way the log comes by replication, from the first entry that the leader has: what the state shows stands there.
The state is ahead of the own log until the log reaches the snapshot's entry; there the engine compares the chain CRC,
so a state of another log stops the node (docs/adr/0062).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import trio

from dledger.codec.client_rpc import SnapshotAnswer, SnapshotCall
from dledger.config import LogConfig, Peer
from dledger.errors import CorruptionError, DLedgerError, PeerProtocolError
from dledger.forgetting import may_begin_after
from dledger.raft.ids import Index, NodeId
from dledger.runtime.clock import now_s
from dledger.runtime.driver import Driver
from dledger.runtime.events_log import log_event
from dledger.runtime.handshake import Identity
from dledger.runtime.member_connection import MemberConnection, open_member_connection
from dledger.runtime.snapshotting import Snapshotter
from dledger.runtime.task_group import open_task_group
from dledger.starting_state import (
    BRING_BACK,
    check_restored,
    load_steps,
    made_to_stay,
    restore_from,
)
from dledger.state_machine import SnapshotMachine, SnapshotRefusedError, SwappingMachine
from dledger.storage.snapshots import SnapshotCopy, SnapshotFile, SnapshotStore
from dledger.storage.whole_snapshot import GIVEN_BYTES_MAX

PAUSE_S: Final = 0.2
BEHIND_PAUSE_S: Final = 0.5
"""Between two looks whether this member is behind the leader's start: it has been away for long then."""

RETRY_S: Final = 5.0
"""After a snapshot that came damaged or was refused, or a disk that took none."""

ASK_TIMEOUT_S: Final = 5.0
WAITING_LINE_S: Final = 10.0
"""Between two lines that say that no leader gives a state."""


TURN_S: Final = 0.002
"""A state is taken in for so long, and then everybody else has a turn."""


async def in_turns(steps: Iterator[None]) -> None:
    """Carry out short steps, with a turn of the loop for everybody else now and then."""
    is_left = True
    while is_left:
        end_s = now_s() + TURN_S
        is_left = any(now_s() >= end_s for _ in steps)
        await trio.lowlevel.checkpoint()


class TransferPace:
    """Holds a transfer down to a rate."""

    def __init__(self, bytes_per_s: int) -> None:
        """Start now; 0: there is no bound."""
        self._bytes_per_s = bytes_per_s
        self._due_s = now_s()

    async def after(self, size_bytes: int) -> None:
        """Wait until so many more bytes may have come."""
        if self._bytes_per_s:
            self._due_s += size_bytes / self._bytes_per_s
            await trio.sleep(max(0.0, self._due_s - now_s()))


class SnapshotFetch:
    """Fetches snapshots for one member."""

    def __init__(
        self,
        config: LogConfig,
        driver: Driver,
        machine: SnapshotMachine,
        *,
        store: SnapshotStore,
        snapshotter: Snapshotter,
        peer_of: Callable[[NodeId], Peer | None],
    ) -> None:
        self._config = config
        self._driver = driver
        self._machine = machine
        self._store = store
        self._snapshotter = snapshotter
        self._peer_of = peer_of
        self._next_line_s = 0.0
        self._copy: SnapshotCopy | None = None
        self._source: NodeId | None = None
        self._asked_count = 0
        self._unshown: SwappingMachine | None = None

    async def run(self, *, is_new: bool) -> None:
        """Fetch whenever this member needs a snapshot, until cancelled; first for a store that began empty."""
        if is_new:
            await self.spare_fold()
        while True:
            await trio.sleep(BEHIND_PAUSE_S)
            await self.catch_up()
            if self._driver.engine.lacks_state:
                self._log_waiting()

    async def catch_up(self) -> None:
        """Fetch a snapshot if this member is behind the leader's start, and begin the log anew behind it.

        Also if it has lost its state, and its log does not reach back far enough to fold it again: the log stays then.
        While nobody leads, any member may give it: perhaps nobody can lead before this one, whose log is the longest.
        """
        engine = self._driver.engine
        source_id = engine.needs_snapshot_of
        if source_id != engine.node.leader_id:
            return
        if source_id is None and engine.lacks_state:
            source_id = self._next_member()
        source = self._peer_of(source_id) if source_id is not None else None
        if source is None:
            return  # where it listens comes with the handshake
        if not engine.may_begin_anew and not engine.lacks_state:
            return  # the step before is still being saved
        if self._begin_anew():
            return  # the state was there already
        try:
            await self._has_fetched_from(source)
        except (OSError, CorruptionError) as error:
            if engine.failure is not None:
                raise
            self._log(logging.WARNING, "snapshot-not-fetched", reason=error)
            await trio.sleep(RETRY_S)
        finally:
            if engine.needs_snapshot_of is None and not engine.lacks_state:
                self._give_up_copy()

    def _next_member(self) -> NodeId | None:
        """Return the other members one after the other; None: there is none."""
        node, own = self._driver.engine.node, self._config.raft.node_id
        others = [member for member in node.configuration.members if member != own]
        self._asked_count += 1
        return others[self._asked_count % len(others)] if others else None

    async def spare_fold(self) -> None:
        """Fetch and take in for a new store; ends when that is done, or when it would spare nothing any more."""
        try:
            while not self._driver.engine.node.is_voter:
                leader_id = self._driver.engine.node.leader_id
                is_other = leader_id is not None and leader_id != self._config.raft.node_id
                leader = self._peer_of(leader_id) if leader_id is not None and is_other else None
                if leader is not None and await self._has_fetched_from(leader):
                    return
                await trio.sleep(PAUSE_S)
        except (OSError, CorruptionError) as error:
            # The log has everything that the snapshot has: fold it.
            self._log(logging.WARNING, "snapshot-not-fetched", reason=error)
        finally:
            self._give_up_copy()

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
        identity = Identity.of_client(
            config.group, frozenset({peer.node_id}), config.secret, config.tls
        )
        connection = await open_member_connection(peer, identity, blob_bytes_max=GIVEN_BYTES_MAX)
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
        if snapshot is None:
            return
        try:
            if await self._take_in(snapshot):
                self._begin_anew()
        finally:
            if self._unshown is not None:
                unshown, self._unshown = self._unshown, None
                await in_turns(unshown.giving_up())

    async def _copy_all(self, connection: MemberConnection) -> SnapshotFile | None:
        """Return the file, whole and verified; None when the leader has none that is worth it."""
        if self._copy is not None and self._source != connection.peer.node_id:
            self._give_up_copy()
        self._source = connection.peer.node_id
        pace = TransferPace(self._config.snapshot_fetch_bytes_per_s)
        while True:
            if self._copy is not None and self._copy.has_ended:
                self._copy = None
            copy = self._copy
            wanted = (copy.index, copy.size_bytes) if copy is not None else (0, 0)
            call = SnapshotCall(connection.next_token(), *wanted)
            answer, blob = await connection.ask(call, timeout_s=ASK_TIMEOUT_S)
            if not isinstance(answer, SnapshotAnswer):
                raise PeerProtocolError(f"{connection.peer} answers with {type(answer).__name__}")
            if not answer.index or answer.index <= self._least_index():
                return None
            if copy is None or copy.index != answer.index:
                if copy is not None:
                    copy.abandon()
                copy = self._copy = self._store.begin_copy(Index(answer.index))
            if answer.offset != copy.size_bytes or not len(blob):
                raise PeerProtocolError(f"{connection.peer} sent byte {answer.offset}")
            await trio.to_thread.run_sync(copy.add, bytes(blob))
            if copy.size_bytes >= answer.size_bytes:
                return await trio.to_thread.run_sync(copy.finish)
            await pace.after(len(blob))

    def _least_index(self) -> Index:
        """Return the entry after which a snapshot must end to be worth anything here."""
        driver = self._driver
        if not driver.engine.lacks_state:
            return driver.applied_index
        return Index(driver.engine.log.layout.first_index - 2)

    def _log_waiting(self) -> None:
        """Say so, now and then, and what to do if it never comes."""
        engine = self._driver.engine
        if now_s() < self._next_line_s:
            return
        self._next_line_s = now_s() + WAITING_LINE_S
        self._log(
            logging.WARNING,
            "waits-for-a-state",
            leader=engine.node.leader_id or "-",
            reason=f"the log begins with entry {engine.log.layout.first_index}, no snapshot here reaches it, and no "
            f"leader has given one yet; if no member has one, {BRING_BACK}",
        )

    def _give_up_copy(self) -> None:
        """Forget what was copied so far, if anything; whole, it is a snapshot and stays."""
        if self._copy is not None:
            self._copy.abandon()
        self._copy = None

    async def _take_in(self, snapshot: SnapshotFile) -> bool:
        """Replace the state, if it is still behind; return whether it is that of the snapshot now.

        Raises:
            CorruptionError: it was refused. A machine that takes it in at once has no state then: it is folded again,
                or fetched again later where the log does not reach back far enough.
        """
        driver, machine = self._driver, self._machine
        if snapshot.meta.index <= driver.applied_index:
            return False
        driver.hold_fold()
        try:
            if isinstance(machine, SwappingMachine):
                await self._swap_in(snapshot, machine)
            else:
                restore_from(self._store, snapshot, machine)
                check_restored(snapshot, machine)
                self._replaced_by(snapshot)
        except (CorruptionError, SnapshotRefusedError, OSError) as error:
            self._log(logging.ERROR, "snapshot-refused", reason=f"{snapshot.path}: {error}")
            if machine.applied_index < driver.applied_index:
                driver.state_replaced(machine.applied_index, None)  # empty
            # Whoever gave it has no other one yet: it is not fetched again at once.
            raise CorruptionError(snapshot.path, 0, f"it was refused: {error}") from error
        finally:
            driver.release_fold()
        return True

    async def _swap_in(self, snapshot: SnapshotFile, machine: SwappingMachine) -> None:
        """Take the state in beside the one that the machine shows, which is that of the snapshot then, at once.

        Raises:
            CorruptionError, SnapshotRefusedError, OSError: it failed; the machine is what it was.
        """
        taken_in = self._unshown = machine.beside()
        with made_to_stay():
            await in_turns(load_steps(self._store, snapshot, taken_in))
            machine.swap(taken_in)
        self._replaced_by(snapshot)

    def _replaced_by(self, snapshot: SnapshotFile) -> None:
        self._driver.state_replaced(snapshot.meta.index, snapshot.meta.chain_crc)
        self._snapshotter.fetched(snapshot)
        self._log(logging.INFO, "snapshot-fetched", index=snapshot.meta.index, peer=self._source)

    def _begin_anew(self) -> bool:
        """Begin the log anew where the leader's begins, if this one ends before and the state is there; return whether.

        Where something is being saved just now it is tried again soon: the state stays ahead of the log until then.
        """
        engine, newest = self._driver.engine, self._snapshotter.newest
        start = engine.start_of_leader
        if start is None or not may_begin_after(
            engine, start, newest.meta if newest is not None else None
        ):
            return False
        log_ended = engine.log.last_id
        self._driver.log_begun_after(start)
        self._log(logging.WARNING, "log-begun-anew", after=start.index, it_ended_with=log_ended)
        return True

    def _log(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, node=self._config.raft.node_id, **fields)
