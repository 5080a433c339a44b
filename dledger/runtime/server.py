"""LogServer: one member of a group, with its state machine, on its port.

Everything that a user of the log calls stands here; how it is done stands in driver.py (the engine),
transport.py (members) and client_port.py (log clients).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

import trio

from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import (
    CompactedError,
    ConfigError,
    CorruptionError,
    DiskFailedError,
    DLedgerError,
    EntryDamagedError,
    LeaderNotReadyError,
    NotLeaderError,
    OutOfRangeError,
    ReadTimeoutError,
    StoppingError,
    UsageError,
)
from dledger.raft.effects import Committed, ReadAt, Role, TransferDone
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Position, Term
from dledger.repair.store_repair import REPAIRS_MAX, StoreRepair, is_repairable
from dledger.runtime.acquaintance import Acquaintance
from dledger.runtime.belonging import Belonging, EntryName
from dledger.runtime.callers import Answered, Done, wait_outcome
from dledger.runtime.client_port import ClientPort
from dledger.runtime.clock import draw, draw_incarnation, now_ms
from dledger.runtime.crew import Crew, open_crew
from dledger.runtime.driver import Driver, RoleView
from dledger.runtime.events_log import log_event
from dledger.runtime.handshake import Identity
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_clocks import ClockWatch
from dledger.runtime.repairing import repair_on
from dledger.runtime.scrubbing import scrub
from dledger.runtime.snapshot_fetch import SnapshotFetch
from dledger.runtime.snapshotting import SnapshotPart, Snapshotter, restore_newest
from dledger.runtime.statistics import Statistics, nothing_yet
from dledger.runtime.transport import Transport
from dledger.state_machine import SnapshotMachine, StateMachine
from dledger.storage.api import Disk
from dledger.storage.lock import StoreLock
from dledger.storage.member_file import check_log_members
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore

DRAIN_TIMEOUT_S: Final = 1.5
"""A hand-over before a stop takes two round trips; whoever needs longer is not waited for."""

REFUSED_BODY_BYTES_MAX: Final = 64 * 1024
"""Of an append to a group that takes none from clients, which is told so; who sends more is hung up on."""

ATTRIBUTE_LENGTH_MAX: Final = 1024


class LogServer:
    """A member of a group. `run` is its life; everything else is called while it runs.

    All methods belong to the trio thread. Synchronous ones never wait.

    Attributes:
        full_disks: whose disks are known to be full.
        lost_votes: who is known to have no vote.
        snapshotter: takes snapshots of the state; None until the store is open, and for a machine
            that has none.
    """

    def __init__(
        self,
        config: LogConfig,
        machine: StateMachine,
        *,
        accepts_appends: bool = True,
        clock: ClockWatch | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Prepare; nothing is opened before `run`.

        Args:
            config: checked here.
            machine: the fold; it is fed from its `applied_index + 1` on.
            accepts_appends: whether log clients may append raw bodies.
            clock: the service's clock, if members shall compare theirs.
            disk: another disk than the folder `config.store_path` (tests).

        Raises:
            ConfigError: the configuration contradicts itself, or Python runs with -O.
        """
        config.validate()
        self.config = config
        self._machine = machine
        self._clock = clock
        self._disk = disk
        self._driver: Driver | None = None
        self._repair: StoreRepair | None = None
        self._is_draining = False
        self._has_stopped = False
        self.snapshotter: Snapshotter | None = None
        self._fetch: Callable[[Driver], SnapshotFetch] | None = None
        self._shown: dict[str, str] = {}
        self._obstacles = Obstacles(
            config.raft.node_id,
            config.raft.voters,
            has_vote=lambda: self._driver is None or self.is_voter,
            has_begun=lambda: self.term > NO_TERM,
        )
        self.full_disks = self._obstacles.full_disks
        self.lost_votes = self._obstacles.lost_votes
        self._role_watchers: list[Callable[[RoleView], None]] = []
        self._applied_watchers: list[Callable[[], None]] = []
        self._client_port = ClientPort(self, accepts_appends=accepts_appends)
        members = frozenset(peer.node_id for peer in config.peers)
        process = draw_incarnation()
        self._acquaintance = Acquaintance(config.group, config.raft.node_id, process, members)
        identity = Identity(
            config.group,
            config.raft.node_id,
            process,
            members,
            config.secret.encode() if config.secret else None,
            dict(config.service_attributes),
            clock,
            self._acquaintance,
            self._obstacles,
            Belonging(config.raft.node_id, members, lambda: self.commit_index, self.committed_name),
        )
        body_bytes_max = config.raft.entry_body_bytes_max + ENTRY_HEADER_BYTES
        self._transport = Transport(
            identity,
            config.peers,
            blob_bytes_max=max(config.raft.entries_bytes_max, body_bytes_max),
            client_blob_bytes_max=(
                config.raft.entry_body_bytes_max if accepts_appends else REFUSED_BODY_BYTES_MAX
            ),
            serve_client=self._client_port.serve,
        )

    # Life.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the store, take the port and be a member until cancelled or failed.

        `task_status.started()` comes once the log is recovered and the port is open.

        Raises:
            StoreLockedError: another process uses the store.
            CorruptionError: the store is damaged.
            ListenError: the port is taken.
            DiskFailedError: a write or sync failed; the node has acknowledged nothing since.
            Exception: what the state machine or a callback raised.
        """
        assert self._driver is None, "a LogServer runs once"
        with ExitStack() as stack:
            disk = self._disk or self._take_store(stack)
            # Left in reverse order: whoever gets the lock next finds the port free.
            stack.callback(self._transport.close)
            await self._transport.listen()
            await trio.to_thread.run_sync(self._count_start, disk)
            async with open_crew() as crew:
                crew.start(self._live, disk, crew, stack, task_status, name="member")

    async def _live(
        self, disk: Disk, crew: Crew, stack: ExitStack, task_status: trio.TaskStatus[None]
    ) -> None:
        """Open the store, mended by the other members if need be, and be a member."""
        engine = await self._open_whole(disk, crew)
        stack.callback(self._stop, engine)
        if self._repair is None:
            crew.start(self._transport.run, name="transport")
        self._repair = None
        await self._run_with(engine, task_status)

    def _take_store(self, stack: ExitStack) -> Disk:
        """Lock the folder for this process.

        Raises:
            StoreLockedError: another process has it.
            ConfigError: there can be no store.
        """
        try:
            stack.enter_context(StoreLock(self.config.store_path))
            return PosixDisk(self.config.store_path)
        except OSError as error:
            raise ConfigError(
                f"no store can be kept in {self.config.store_path}: {error}"
            ) from error

    def _count_start(self, disk: Disk) -> None:
        """This start counts before anybody hears of it.

        Raises:
            ConfigError: the store is another member's.
            DiskFailedError: the disk failed.
        """
        try:
            self._acquaintance.open(disk, self.config.store_path)
        except OSError as error:
            raise DiskFailedError(f"the store cannot be opened: {error}") from error

    async def _open_whole(self, disk: Disk, crew: Crew) -> Engine:
        """Open the store; what is damaged in its log comes back from the other members first.

        Raises:
            CorruptionError: the store is damaged, and nobody can help.
            DiskFailedError: the disk failed.
        """
        for repair_count in range(REPAIRS_MAX + 1):
            # Recovery reads and verifies; other tasks of this process go on meanwhile.
            opened = await trio.to_thread.run_sync(self._open_engine, disk)
            if isinstance(opened, Engine):
                return opened
            if repair_count == REPAIRS_MAX:
                raise opened
            try:
                repair = await trio.to_thread.run_sync(StoreRepair, self.config, disk, opened)
            except OSError as error:
                raise DiskFailedError(f"the store cannot be read: {error}") from error
            if self._repair is None:
                crew.start(self._transport.run, name="transport")
            self._repair = repair
            await repair_on(self._transport, repair, self.node_id)
        raise AssertionError("the last turn returns or raises")

    def _open_engine(self, disk: Disk) -> Engine | CorruptionError:
        """The engine, or the damage that other members can mend."""
        try:
            engine = Engine(
                self.config,
                disk,
                draw=draw,
                now_ms=now_ms(),
                applied_index=self._machine.applied_index,
            )
        except (OSError, CorruptionError) as error:
            problem = is_repairable(self.config, error)
            if problem is not None:
                return problem
            if isinstance(error, OSError):
                raise DiskFailedError(f"the store cannot be opened: {error}") from error
            raise
        if engine.lost_vote is not None:
            log_event(logging.ERROR, "vote-lost", node=self.node_id, reason=engine.lost_vote)
        for note in engine.log.recovery_notes:
            log_event(logging.WARNING, "recovered", node=self.node_id, note=note)
        try:
            self._check_log(engine)
            if isinstance(self._machine, SnapshotMachine):
                self._restore(self._machine, engine, disk)
        except OSError as error:
            raise DiskFailedError(f"the store cannot be opened: {error}") from error
        return engine

    def _check_log(self, engine: Engine) -> None:
        """The log's last term must have been led by the members of the configuration.

        Raises:
            ConfigError: others did.
            DiskFailedError: the disk failed.
        """
        found = engine.last_membership()
        if found is None:
            return  # a log of before, or an empty one
        entry_id, writers = found
        members = frozenset(self.config.raft.voters)
        check_log_members(writers, entry_id, members, self.config.store_path)
        self._acquaintance.adopt_members()

    def _restore(self, machine: SnapshotMachine, engine: Engine, disk: Disk) -> None:
        """Bring the state machine to the newest good snapshot, and the engine behind it."""
        store = SnapshotStore(disk, spare_bytes=self.config.segment_size_bytes)
        newest = restore_newest(self.node_id, store, machine, engine.log)
        engine.start_behind(machine.applied_index)
        if newest is not None:
            engine.start_committed(newest.meta.index)
        snapshotter = Snapshotter(self.config, machine, engine, store, newest)
        self.snapshotter = snapshotter
        if engine.is_new_store:
            self._fetch = lambda driver: SnapshotFetch(
                self.config, driver, machine, store, snapshotter
            )

    async def _run_with(self, engine: Engine, task_status: trio.TaskStatus[None]) -> None:
        driver = Driver(self.config.raft, engine, self._machine, self._transport, self._obstacles)
        driver.role_watchers = self._role_watchers
        driver.applied_watchers = self._applied_watchers
        driver.pass_end_watchers.append(self._client_port.flush)
        self._driver = driver
        log_event(
            logging.INFO,
            "started",
            node=self.node_id,
            term=engine.node.term,
            index=engine.node.log.last_index,
        )
        self._acquaintance.on_missed = lambda reason: driver.give_up_vote(
            reason, self._acquaintance.overtake
        )
        if self._acquaintance.missed is not None:
            self._acquaintance.on_missed(self._acquaintance.missed)
        async with open_crew() as crew:
            crew.start(driver.run, name="driver")
            if self.snapshotter is not None:
                crew.start(self.snapshotter.run, name="snapshots")
            if self.config.scrub_bytes_per_s and len(self.config.peers) > 1:
                crew.start(scrub, driver, self.config.scrub_bytes_per_s, name="scrub")
            if self._fetch is not None:
                crew.start(self._fetch(driver).run, name="fetch snapshot")
            task_status.started()

    def _stop(self, engine: Engine) -> None:
        """Everybody gets an answer, and the store is closed."""
        self._has_stopped = True
        try:
            if self._driver is not None:
                self._driver.close()
        except (OSError, DLedgerError) as error:
            # The log is whole without its index; the next start rebuilds it.
            log_event(logging.ERROR, "close-failed", node=self.node_id, reason=error)
        self._client_port.flush()
        log_event(
            logging.INFO,
            "stopped",
            node=self.node_id,
            term=engine.node.term,
            index=engine.node.log.last_index,
        )

    async def drain(self) -> None:
        """Before a planned stop: hand leadership over if this node leads, then take nothing more."""
        if self._driver is not None and self.is_leader and len(self.config.peers) > 1:
            with trio.move_on_after(DRAIN_TIMEOUT_S):
                try:
                    await self.transfer(None, timeout_s=DRAIN_TIMEOUT_S)
                except DLedgerError as error:
                    log_event(logging.WARNING, "hand-over-failed", node=self.node_id, reason=error)
        self._is_draining = True

    # Who leads.

    @property
    def node_id(self) -> NodeId:
        """This member."""
        return self.config.raft.node_id

    @property
    def role(self) -> Role:
        """What this node is."""
        return self._running.engine.node.role if self._driver else Role.FOLLOWER

    @property
    def term(self) -> Term:
        """The highest term that it has seen."""
        return self._running.engine.node.term if self._driver else NO_TERM

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this term, as far as it is known."""
        return self._running.engine.node.leader_id if self._driver else None

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """Whether it may vote and is counted (docs/adr/0061)."""
        return self._driver is not None and self._driver.engine.node.is_voter

    @property
    def is_serving(self) -> bool:
        """Whether it leads and has applied the start of its term."""
        return self._driver is not None and self._driver.is_serving and not self._has_stopped

    def has_lease(self) -> bool:
        """Whether it leads and no other node can have been elected up to now."""
        return self._driver is not None and self._driver.engine.node.has_lease(now_ms())

    @property
    def is_current(self) -> bool:
        """Whether what is applied here is now all that anybody can have been told.

        It serves, holds the lease, and has applied what is committed: large entries are folded in pieces, and a
        follower may be done sooner.
        """
        return self.is_serving and self.has_lease() and self.applied_index >= self.commit_index

    def watch_role(self, callback: Callable[[RoleView], None]) -> None:
        """Call back on every change of role, term, leader, and when serving begins or ends."""
        self._role_watchers.append(callback)

    async def transfer(self, target: NodeId | None, *, timeout_s: float) -> NodeId:
        """Hand leadership over, to the best follower when `target` is None; returns who was told.

        Raises:
            RefusedError: it was not handed over, and this node goes on leading.
            OutcomeUnknownError: it may have been.
        """
        driver = self._driver
        if driver is None or not self.is_leader:
            raise NotLeaderError(self.leader_id, self.term)
        outcome = await wait_outcome(
            lambda answered: driver.request_transfer(target, answered), timeout_s
        )
        assert isinstance(outcome, TransferDone), f"a transfer ended as {outcome}"
        return outcome.target

    # Appending.

    @property
    def end_position(self) -> Position:
        """Where the header of the next proposed entry will stand."""
        return self._running.engine.node.log.end_position

    @property
    def pending_count(self) -> int:
        """Proposals that are not decided."""
        return self._driver.callers.pending_count if self._driver else 0

    def propose(self, body: bytes, done: Done) -> EntryId:
        """Append an entry at `end_position`. Its request may leave before this returns.

        `done` is called once, from a pass, in log order: after the entry was applied here, or with
        the failure. It must not raise.

        Raises:
            RefusedError: it was not taken and `done` is not called.
        """
        self._check_serving()
        return self._running.propose(body, done)

    def append_soon(self, body: bytes, done: Done) -> None:
        """Append an entry together with all others that come before the next pass.

        For callers that need not know index and position beforehand. `done` as in `propose`.

        Raises:
            RefusedError: it was not taken and `done` is not called.
        """
        self._check_serving()
        self._running.append_soon(body, done)

    async def append(self, body: bytes, *, timeout_s: float) -> EntryId:
        """Append an entry and wait until it is applied here.

        Raises:
            RefusedError: it surely did not happen.
            OutcomeUnknownError: it may have happened, or may yet. Cancelling means the same.
        """

        def ask(answered: Answered) -> None:
            self.append_soon(body, answered)

        outcome = await wait_outcome(ask, timeout_s)
        assert isinstance(outcome, Committed), f"an append ended as {outcome}"
        return outcome.last

    def _check_serving(self) -> None:
        driver = self._driver
        if self._has_stopped:
            raise StoppingError(f"{self.node_id} has stopped")
        if driver is None:
            raise NotLeaderError(None, 0, "the node does not run yet")
        if self._is_draining:
            raise StoppingError(f"{self.node_id} is about to stop")
        if not self.is_leader:
            raise NotLeaderError(self.leader_id, self.term, self.lost_votes.problem)
        if not driver.is_serving:
            raise LeaderNotReadyError(f"{self.node_id} has not yet applied the start of its term")

    # Reading.

    async def barrier(self, *, timeout_s: float) -> Index:
        """A linearizable read point: what was committed before the call is applied here.

        Raises:
            NotLeaderError: this node does not lead, or lost its leadership meanwhile.
            StoppingError: it stops.
            ReadTimeoutError: not confirmed in time.
            RefusedError: refused for another reason; nothing happened.
        """
        self._check_serving()
        driver = self._running
        try:
            with trio.fail_after(timeout_s):
                outcome = await wait_outcome(driver.request_read, math.inf)
                assert isinstance(outcome, ReadAt), f"a read ended as {outcome}"
                await driver.wait_applied(outcome.index)
        except trio.TooSlowError:
            raise ReadTimeoutError(f"the read was not confirmed within {timeout_s:g} s") from None
        if self._has_stopped:
            raise StoppingError(f"{self.node_id} has stopped")
        return outcome.index

    @property
    def applied_index(self) -> Index:
        """The last entry that the state machine contains."""
        return self._driver.applied_index if self._driver else self._machine.applied_index

    @property
    def commit_index(self) -> Index:
        """How far the log is known to be committed."""
        return self._driver.engine.node.commit_index if self._driver else NO_INDEX

    def committed_name(self, index: Index) -> EntryName | None:
        """What names a committed entry; None when it is not committed, or not kept any more."""
        if self._driver is None or index > self.commit_index:
            return None
        log = self._driver.engine.log
        term = log.shape.term_of(index) if log.shape.has(index) else None
        return None if term is None else EntryName(term, log.chain_crc_of(index))

    @property
    def first_position(self) -> Position:
        """Byte place of the first kept entry."""
        return self._running.engine.log.shape.first_position

    @property
    def committed_position(self) -> Position:
        """Where the first entry that is not known to be committed starts."""
        return self._running.engine.log.shape.position_of(Index(self.commit_index + 1))

    def watch_applied(self, callback: Callable[[], None]) -> None:
        """Call back after entries were applied and their proposers were answered."""
        self._applied_watchers.append(callback)

    def get(self, index: Index) -> Entry:
        """A committed entry.

        Raises:
            OutOfRangeError, CompactedError: it is not there.
            EntryDamagedError: the disk does not give it, or the log lacks what a fetched state contains; it
                comes from another member, perhaps soon.
            DiskFailedError, CorruptionError: nor can anybody help: this group has no other member.
        """
        return self.get_range(index, count_max=1, bytes_max=1)[0]

    def get_range(self, index: Index, *, count_max: int, bytes_max: int) -> list[Entry]:
        """Committed entries from `index`: at least one, at most `count_max`, at most about `bytes_max`.

        Raises:
            OutOfRangeError, CompactedError: the first is not there.
            EntryDamagedError, DiskFailedError, CorruptionError: as `get`, of the first.
        """
        driver = self._running
        first_index = driver.engine.log.shape.first_index
        if index < first_index and index > 0:
            raise CompactedError(index, first_index)
        commit_index = self.commit_index
        if commit_index < index <= driver.applied_index:
            raise EntryDamagedError(
                f"entry {index} has yet to come: the state of {self.node_id} is ahead of its log"
            )
        if not first_index <= index <= commit_index:
            raise OutOfRangeError(index, first_index, commit_index)
        end = Index(min(index + max(1, count_max), commit_index + 1))
        try:
            return driver.read(index, end, bytes_max)
        except OSError as error:
            raise DiskFailedError(f"entry {index} cannot be read: {error}") from error

    async def wait_mended(self) -> None:
        """Until some entry that was damaged is back."""
        await self._running.wait_mended()

    def entry_at(self, position: Position) -> Entry:
        """The committed entry that covers a byte of the log.

        Raises:
            OutOfRangeError, CompactedError: none does.
            EntryDamagedError, DiskFailedError, CorruptionError: as `get`.
        """
        shape = self._running.engine.log.shape
        index = shape.index_at(position)
        if index is None:
            # Behind the end, or before the first byte that is kept.
            is_behind = position >= shape.end_position
            index = Index(shape.last_index + 1 if is_behind else shape.first_index - 1)
        return self.get(index)

    async def snapshot_part(self, index: Index, offset: int) -> SnapshotPart:
        """A part of this member's snapshot of the state, for another member."""
        if self.snapshotter is None:
            return SnapshotPart(NO_INDEX, 0, 0, b"")
        return await self.snapshotter.part(index, offset)

    def position_of(self, index: Index) -> Position:
        """Byte place of an entry's header."""
        return self._running.engine.log.shape.position_of(index)

    # Members.

    @property
    def restoration(self) -> str:
        """What the operator called the restoring of all members, the last time; empty: never."""
        return self._acquaintance.restoration

    def show(self, name: str, value: str) -> None:
        """Add an attribute to what this member says of itself when it is asked for its status; empty: take it out."""
        self._shown.pop(name, None)
        if value:
            self._shown[name] = value[:ATTRIBUTE_LENGTH_MAX]

    def attributes(self, node_id: NodeId) -> Mapping[str, str]:
        """What a member told of itself; empty when it was never met."""
        if node_id == self.node_id:
            own = {**self.config.service_attributes, **self._shown}
            if self.restoration:
                own["incarnation"] = self.restoration
            if self._driver is not None and self._driver.store_is_old and not self.is_voter:
                own["store"] = "an older copy: no vote until a leader has admitted it"
            if self.lost_votes.problem:
                own["majority"] = self.lost_votes.problem[:ATTRIBUTE_LENGTH_MAX]
            if self._repair is not None:
                own["repair"] = self._repair.describe()[:ATTRIBUTE_LENGTH_MAX]
            elif self._driver is not None and self._driver.engine.live_repair.missing_count:
                count = self._driver.engine.live_repair.missing_count
                own["repair"] = f"{count} damaged entries are asked for"
            if self._clock is not None and self._clock.ahead_ms:
                own["clock_ahead_ms"] = str(self._clock.ahead_ms)
            trouble = self._disk_trouble()
            if trouble:
                own["disk"] = trouble
            return own
        return self._transport.attributes(node_id)

    def address_of(self, node_id: str) -> str:
        """`host:port` of a member; empty when there is no such member."""
        for peer in self.config.peers:
            if peer.node_id == node_id:
                return f"{peer.host}:{peer.port}"
        return ""

    def peers_connected(self) -> list[NodeId]:
        """Members that this node can send to, in the order of the configuration."""
        return self._transport.connected()

    def statistics(self) -> Statistics:
        """This member as it sees itself."""
        driver = self._driver
        if driver is None:
            return nothing_yet(self.node_id, tuple(self.peers_connected()))
        node, log = driver.engine.node, driver.engine.log
        return Statistics(
            node_id=self.node_id,
            role=node.role,
            term=node.term,
            leader_id=node.leader_id,
            is_serving=self.is_serving,
            first_index=log.shape.first_index,
            last_index=log.shape.last_index,
            durable_index=log.durable_index,
            commit_index=node.commit_index,
            applied_index=driver.applied_index,
            match_indexes={name: view.match_index for name, view in node.progress().items()},
            peers_connected=tuple(self.peers_connected()),
            pending_count=self.pending_count,
            sync_latency_us=round(driver.pace.average_ms * 1000),
            sync_count=driver.pace.count,
            pass_count=driver.pass_count,
            applied_count=driver.applied_count,
            disk_trouble=self._disk_trouble(),
        )

    def _disk_trouble(self) -> str:
        if self.full_disks.own:
            return f"full: {self.full_disks.own}"[:ATTRIBUTE_LENGTH_MAX]
        return self._driver.pace.trouble(now_ms()) if self._driver is not None else ""

    @property
    def _running(self) -> Driver:
        if self._driver is None:
            raise UsageError("the LogServer does not run yet")
        return self._driver
