"""LogServer: the life of one member of a group, with its state machine, on its port.

What is asked of a member while it lives stands in values of their own: appending here (log_appender.py) or through
whoever leads (log_forwarder.py), reading (log_reader.py), what it says of itself (member_status.py). How it is done
stands in driver.py (the engine), peer_links.py and transport.py (members) and client_port.py (log clients).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from dledger.config import LogConfig, peer_at
from dledger.engine import Engine
from dledger.errors import DLedgerError, UsageError
from dledger.group_secret import GroupSecret
from dledger.raft.configuration import ChangeKind, Configuration, MemberChange
from dledger.raft.effects import (
    Committed,
    MembersChanged,
    MembersCommitted,
    Role,
    TransferDone,
)
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, NodeId, Term
from dledger.runtime.announcer import RoleView
from dledger.runtime.callers import wait_outcome
from dledger.runtime.client_port import ClientPort
from dledger.runtime.clock import draw_process_number
from dledger.runtime.cold_reads import ColdReads, TaskThreads
from dledger.runtime.driver import Driver
from dledger.runtime.events_log import log_event
from dledger.runtime.group_check import GroupCheck
from dledger.runtime.handshake import Identity
from dledger.runtime.index_checks import check_indexes
from dledger.runtime.log_appender import LogAppender
from dledger.runtime.log_forwarder import LogForwarder
from dledger.runtime.log_reader import LogReader
from dledger.runtime.member_status import MemberStatus
from dledger.runtime.part_checks import check_parts
from dledger.runtime.peer_clocks import ClockWatch
from dledger.runtime.preferred_leaders import PreferredLeaders
from dledger.runtime.roster import Roster
from dledger.runtime.scrubbing import scrub
from dledger.runtime.standing import Standing
from dledger.runtime.store_identity import StoreIdentity
from dledger.runtime.store_opening import OpenStore, StoreOpening, take_store
from dledger.runtime.task_group import TaskGroup, open_task_group
from dledger.runtime.transport import Transport
from dledger.state_machine import StateMachine
from dledger.storage.api import Disk
from dledger.storage.part_cache import PartCache

DRAIN_TIMEOUT_S: Final = 1.5
"""A hand-over before a stop takes two round trips; whoever needs longer is not waited for."""

REFUSED_BODY_BYTES_MAX: Final = 64 * 1024
"""Of an append to a group that takes none from clients, which is refused by name; whoever sends more is hung up on."""


class LogServer:
    """A member of a group. `run` is its life; everything else is called while it runs.

    All methods belong to the trio thread. Synchronous ones never wait.

    Attributes:
        config: as it was given.
        appender: appends while this member leads, and else says who does.
        forwarder: appends through whoever leads.
        reader: reads what is committed here, and knows how new that is.
        roster: the members, as this node knows them.
        status: this member's report of itself, and the others' of themselves.
        full_disks: whose disks are known to be full.
        lost_votes: who is known to have no vote.
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
        """Build a member that does not run yet; `run` opens store and port.

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
        self._disk = disk
        self._role_watchers: list[Callable[[RoleView], None]] = []
        self._standing = Standing(config.raft)
        obstacles = self._standing.obstacles
        self.full_disks = obstacles.full_disks
        self.lost_votes = obstacles.lost_votes
        self.appender = LogAppender(self._standing)
        self.roster = Roster(self.node_id, config.peers, joins=config.raft.joins)
        self.why_not_added: Callable[[NodeId], str | None] = lambda _node_id: None
        self.forwarder = LogForwarder(config, self._standing, self.appender, self.roster)
        self.reader = LogReader(self._standing, machine)
        self._client_port = ClientPort(self, accepts_appends=accepts_appends)
        process = draw_process_number()
        self._store_identity = StoreIdentity(config.group, process, self.roster)
        self._transport = self._make_transport(
            self._make_identity(process, clock), accepts_appends=accepts_appends
        )
        self.status = MemberStatus(
            config,
            self._standing,
            roster=self.roster,
            transport=self._transport,
            store_identity=self._store_identity,
            clock=clock,
        )

    def _make_identity(self, process: int, clock: ClockWatch | None) -> Identity:
        """Return what this member reports of itself in handshakes, and what it demands of the other side."""
        config = self.config
        group_check = GroupCheck(
            self.roster,
            lambda: self.reader.commit_index,
            self.reader.committed_fingerprint,
            lease_ms=config.raft.lease_ms,
        )
        return Identity(
            group=config.group,
            node_id=self.node_id,
            process=process,
            members=frozenset(),
            secret=GroupSecret.of(config.secret),
            tls=config.tls,
            attributes=dict(config.service_attributes),
            clock=clock,
            store_identity=self._store_identity,
            obstacles=self._standing.obstacles,
            group_check=group_check,
        )

    def _make_transport(self, identity: Identity, *, accepts_appends: bool) -> Transport:
        """Return the transport, whose bounds allow one entry of the largest size, and no body that is refused."""
        config, raft = self.config, self.config.raft
        entry_bytes_max = raft.entry_body_bytes_max + ENTRY_HEADER_BYTES
        return Transport(
            identity,
            next(peer for peer in config.peers if peer.node_id == self.node_id),
            roster=self.roster,
            blob_bytes_max=max(raft.entries_bytes_max, entry_bytes_max),
            client_blob_bytes_max=(
                raft.entry_body_bytes_max if accepts_appends else REFUSED_BODY_BYTES_MAX
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
        assert self._standing.driver is None, "a LogServer runs once"
        self.roster.watchers.append(self._voters_changed)
        with ExitStack() as stack:
            disk = self._disk or take_store(self.config.store_path, stack)
            # Left in reverse order: whoever gets the lock next finds the port free.
            stack.callback(self._transport.close)
            await self._transport.listen()
            opening = StoreOpening(
                self.config,
                self._machine,
                disk,
                store_identity=self._store_identity,
                standing=self._standing,
                roster=self.roster,
            )
            await trio.to_thread.run_sync(opening.count_start)
            self._store_identity.follow_record()
            opening.follow_roster()
            async with open_task_group() as tasks:
                tasks.start(self._live, opening, tasks, stack, task_status, name="member")

    async def _live(
        self,
        opening: StoreOpening,
        tasks: TaskGroup,
        stack: ExitStack,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Open the store, mended by the other members if need be, and be a member."""

        def start_transport() -> None:
            tasks.start(self._transport.run, name="transport")

        store = await opening.open_whole(self._transport.links, start_transport)
        stack.callback(self._stop, store.engine)
        if self._standing.repair is None:
            start_transport()
        self._standing.repair = None
        await self._run_with(store, task_status)

    async def _run_with(self, store: OpenStore, task_status: trio.TaskStatus[None]) -> None:
        """Run driver and background tasks until cancelled or failed; watchers are set before the first pass."""
        engine = store.engine
        driver = Driver(
            self.config.raft,
            engine,
            self._machine,
            links=self._transport.links,
            obstacles=self._standing.obstacles,
        )
        driver.catch_up.bytes_per_s = self.config.catch_up_bytes_per_s
        driver.announcer.role_watchers = self._role_watchers
        driver.announcer.members_watchers.append(partial(self._follow_changes, engine))
        self._follow_members(engine)
        preferred = PreferredLeaders(self.config.raft.preferred_leaders, self.roster)
        self.roster.watchers.append(preferred.look)
        preferred.look()
        driver.gatherers = self.appender.gatherers
        driver.applied_watchers = self.reader.applied_watchers
        driver.pass_end_watchers.append(self._client_port.flush)
        self._standing.driver = driver
        self.reader.snapshotter = store.snapshotter
        if store.snapshotter is not None:
            store.snapshotter.fold = driver
        log_event(
            logging.INFO,
            "started",
            node=self.node_id,
            term=engine.node.term,
            index=engine.node.log.last_index,
        )
        self._store_identity.on_missed = lambda reason: driver.give_up_vote(
            reason, self._store_identity.overtake
        )
        if self._store_identity.missed is not None:
            self._store_identity.on_missed(self._store_identity.missed)
        async with self.forwarder.opened(), open_task_group() as tasks:
            self.reader.cold = cold = ColdReads(
                engine.log,
                PartCache(self.config.part_cache_bytes_max),
                TaskThreads(tasks),
                commit_index=lambda: self.reader.commit_index,
            )
            tasks.start(cold.run, name="cold reads")
            tasks.start(driver.run, name="driver")
            self._start_watching(store, driver, tasks)
            task_status.started()

    def _start_watching(self, store: OpenStore, driver: Driver, tasks: TaskGroup) -> None:
        """Start what goes on beside the driver for as long as the member lives."""
        if store.snapshotter is not None:
            tasks.start(store.snapshotter.run, name="snapshots")
        tasks.start(check_indexes, driver, name="index checks")
        if store.parts is not None:
            tasks.start(check_parts, store.parts, self.node_id, name="part checks")
        if self.config.scrub_bytes_per_s:
            tasks.start(self._scrub, driver, name="scrub")
        tasks.start(self._store_identity.keep_members, name="members")
        if store.forgetting is not None:
            tasks.start(store.forgetting.run, name="forgetting")
        if store.make_fetch is not None:
            fetch = store.make_fetch(driver)
            tasks.start(partial(fetch.run, is_new=store.engine.is_new_store), name="fetch snapshot")

    def _follow_changes(self, engine: Engine, news: MembersChanged | MembersCommitted) -> None:
        """Follow each change that came at once with later ones: who was removed in it may be back elsewhere by now."""
        if news.index < engine.node.configuration_index:
            self.roster.change(news.configuration, news.index, is_committed=False)
        self._follow_members(engine)

    def _follow_members(self, engine: Engine) -> None:
        """Let everybody know who the members are by the log."""
        node = engine.node
        self.roster.change(
            node.configuration,
            node.configuration_index,
            is_committed=node.is_configuration_committed,
        )

    def _voters_changed(self) -> None:
        self._standing.obstacles.voters_changed(self.roster.in_force.voters)

    async def _scrub(self, driver: Driver) -> None:
        """Look for silent damage, once there is another member that can mend it."""
        while self.roster.is_alone:
            await self.roster.wait_changed()
        await scrub(driver, self.config.scrub_bytes_per_s)

    def _stop(self, engine: Engine) -> None:
        """Answer everybody, and close the store."""
        standing = self._standing
        standing.has_stopped = True
        try:
            if standing.driver is not None:
                standing.driver.close()
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

    async def hand_over(self, target: NodeId | None = None) -> None:
        """Hand leadership over if this node leads a group of several; a failure is logged, and it leads on.

        The best follower gets it when `target` is None. The new leader does not give it back for a minute, even if
        this node is preferred.
        """
        if self.is_leader and not self.roster.is_alone:
            with trio.move_on_after(DRAIN_TIMEOUT_S):
                try:
                    await self.transfer(target, timeout_s=DRAIN_TIMEOUT_S)
                except DLedgerError as error:
                    log_event(logging.WARNING, "hand-over-failed", node=self.node_id, reason=error)

    async def drain(self) -> None:
        """Prepare a planned stop: hand leadership over if this node leads, then take nothing more."""
        await self.hand_over()
        self._standing.is_draining = True

    # Who leads.

    @property
    def node_id(self) -> NodeId:
        """This member."""
        return self.config.raft.node_id

    @property
    def role(self) -> Role:
        """The node's role."""
        return self._standing.role

    @property
    def term(self) -> Term:
        """The highest term that it has seen."""
        return self._standing.term

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this term, as far as it is known."""
        return self._standing.leader_id

    @property
    def is_leader(self) -> bool:
        """True while this node leads."""
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """True while it may vote and is counted (docs/adr/0061)."""
        return self._standing.is_voter

    @property
    def is_serving(self) -> bool:
        """True while it leads and has applied the first entry of its term."""
        return self._standing.is_serving

    @property
    def is_accepted(self) -> bool:
        """True of a member, unless it was turned away and nobody leads it: its log may lack that it was removed.

        A leader's messages, or the votes that made this node leader, say more than a refusal, which anybody may send.
        """
        return self.roster.is_member and (not self.roster.refusal or self.leader_id is not None)

    def has_lease(self) -> bool:
        """Return whether it leads and no other node can have been elected up to now."""
        return self._standing.has_lease()

    def watch_role(self, callback: Callable[[RoleView], None]) -> None:
        """Call back on every change of role, term, leader, and when serving begins or ends."""
        self._role_watchers.append(callback)

    async def transfer(self, target: NodeId | None, *, timeout_s: float) -> NodeId:
        """Hand leadership over, to the best follower when `target` is None; return who was asked to lead.

        Raises:
            RefusedError: it was not handed over, and this node goes on leading.
            OutcomeUnknownError: it may have been.
        """
        driver = self._standing.check_leads()
        outcome = await wait_outcome(
            lambda answered: driver.request_transfer(target, answered), timeout_s
        )
        assert isinstance(outcome, TransferDone), f"a transfer ended as {outcome}"
        return outcome.target

    # Who belongs to the group.

    async def change_members(
        self, change: MemberChange, *, timeout_s: float
    ) -> tuple[Configuration, Index]:
        """Change the members by one; return them, and the entry that made them so, once that is committed.

        The addresses that this node knows go into the log with the change, for members that do not know them.

        Raises:
            UsageError, RefusedError: nothing was changed; the error says why.
            OutcomeUnknownError: they may have been changed, or may yet.
        """
        driver = self._standing.check_leads()
        if change.kind is ChangeKind.ADD:
            self._check_address(change)
            change = replace(change, addresses={**self.roster.addresses(), **change.addresses})
        outcome = await wait_outcome(
            lambda answered: driver.request_members(change, answered), timeout_s
        )
        assert isinstance(outcome, Committed), f"a change of members ended as {outcome}"
        node = driver.engine.node
        return node.configuration, node.configuration_index

    def _check_address(self, change: MemberChange) -> None:
        """Refuse to add who could not be reached.

        Raises:
            UsageError: no address is named or known, it is another member's, or the application does not want it.
        """
        name = change.node_id
        reason = self.why_not_added(name)
        if reason is not None:
            raise UsageError(reason)
        address = change.addresses.get(name) or self.status.address_of(name)
        if peer_at(name, address) is None:
            raise UsageError(f"no address is named for {name}, such as {name}-127.0.0.1:20914")
        others = {at: other for other, at in self.roster.addresses().items() if other != name}
        if address in others:
            raise UsageError(f"{address} is the address of {others[address]}, not of {name}")
        known = self.status.address_of(name)
        if name in self.roster.in_force.voters and known and address != known:
            raise UsageError(
                f"{name} is a voter at {known}, not at {address}: to move it, remove {name}, then add it with the new "
                "address, where it runs with --join"
            )
