"""From a folder to an engine and a restored state: what is damaged comes back from the other members first.

All of it happens before the member takes part in anything. Knows the stores and the state machine; tasks,
ports and roles are the server's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import trio

from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import ConfigError, CorruptionError, DiskFailedError
from dledger.log_history import last_membership
from dledger.repair.store_repair import REPAIRS_MAX, StoreRepair, is_repairable
from dledger.runtime.clock import draw, now_ms
from dledger.runtime.driver import Driver
from dledger.runtime.events_log import log_event
from dledger.runtime.forgetting import Forgetting
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.repairing import repair_on
from dledger.runtime.roster import Roster
from dledger.runtime.snapshot_fetch import SnapshotFetch
from dledger.runtime.snapshotting import Snapshotter
from dledger.runtime.standing import Standing
from dledger.runtime.store_identity import StoreIdentity
from dledger.starting_state import StartingState, check_reaches, restore_newest
from dledger.state_machine import ForgettingMachine, SnapshotMachine, StateMachine
from dledger.storage.api import Disk
from dledger.storage.lock import StoreLock
from dledger.storage.member_file import check_log_members
from dledger.storage.parts_in_use import PartsInUse
from dledger.storage.posix import SPARE_COUNT, PosixDisk
from dledger.storage.snapshots import SnapshotStore


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A member's log, and the state machine that is fed from it.

    Attributes:
        engine: with the log, recovered and whole.
        snapshotter: of a machine that has snapshots.
        parts: of its snapshots, from which the state is served.
        forgetting: of such a machine that says what nobody needs any more.
        make_fetch: of such a machine, which takes a state from another member.
    """

    engine: Engine
    snapshotter: Snapshotter | None = None
    parts: PartsInUse | None = None
    forgetting: Forgetting | None = None
    make_fetch: Callable[[Driver], SnapshotFetch] | None = None


def take_store(store_path: str, stack: ExitStack) -> Disk:
    """Lock the folder for this process until `stack` is left.

    Raises:
        StoreLockedError: another process has it.
        ConfigError: there can be no store.
    """
    try:
        stack.enter_context(StoreLock(store_path))
        return PosixDisk(store_path, spare_count=SPARE_COUNT)
    except OSError as error:
        raise ConfigError(
            f"no store can be kept in {store_path}: {error.strerror or error}"
        ) from error


class StoreOpening:
    """One opening of a member's store."""

    def __init__(
        self,
        config: LogConfig,
        machine: StateMachine,
        disk: Disk,
        *,
        store_identity: StoreIdentity,
        standing: Standing,
        roster: Roster,
    ) -> None:
        """Set up the opening; nothing is read from the disk yet.

        Args:
            config: of the member.
            machine: brought to the newest good snapshot, if it has any.
            disk: where the store is.
            store_identity: what the member remembers.
            standing: shows what is being repaired.
            roster: the members, as the store's record knows them.
        """
        self._config = config
        self._machine = machine
        self._disk = disk
        self._store_identity = store_identity
        self._standing = standing
        self._roster = roster

    def follow_roster(self) -> None:
        """Go by the members that the store remembers; what the member was started with is a beginning only.

        A store that remembers others than the first ones belongs to a group that exists: it founds none.
        """
        roster, config = self._roster, self._config
        if not (roster.is_changed or roster.joins or config.raft.joins):
            return
        raft = replace(
            config.raft, voters=roster.in_force.voters, voters_index=roster.index, joins=True
        )
        self._config = replace(config, peers=roster.peers(), raft=raft)

    def count_start(self) -> None:
        """Count this start, before anybody hears of it. Blocks.

        Raises:
            ConfigError: the store is another member's.
            DiskFailedError: the disk failed.
        """
        try:
            self._store_identity.open(self._disk, self._config.store_path)
        except OSError as error:
            raise DiskFailedError(f"the store cannot be opened: {error}") from error

    async def open_whole(self, links: PeerLinks, start_transport: Callable[[], None]) -> OpenStore:
        """Open the store; what is damaged in its log comes back from the other members first.

        Args:
            links: to the other members.
            start_transport: called before they are first asked; not at all when nothing is damaged.

        Raises:
            CorruptionError: the store is damaged, and nobody can help.
            DiskFailedError: the disk failed.
        """
        for repair_count in range(REPAIRS_MAX + 1):
            # Recovery reads and verifies; other tasks of this process go on meanwhile.
            opened = await trio.to_thread.run_sync(self._open)
            if isinstance(opened, OpenStore):
                return opened
            if repair_count == REPAIRS_MAX:
                raise opened
            try:
                repair = await trio.to_thread.run_sync(
                    StoreRepair, self._config, self._disk, opened
                )
            except OSError as error:
                raise DiskFailedError(f"the store cannot be read: {error}") from error
            if self._standing.repair is None:
                start_transport()
            self._standing.repair = repair
            await repair_on(links, repair, self._standing.node_id)
        raise AssertionError("the last turn returns or raises")

    def _open(self) -> OpenStore | CorruptionError:
        """Return the store, or the damage that other members can mend. Blocks."""
        node_id = self._standing.node_id
        try:
            engine = Engine(
                self._config,
                self._disk,
                draw=draw,
                now_ms=now_ms(),
                applied_index=self._machine.applied_index,
            )
        except (OSError, CorruptionError) as error:
            problem = is_repairable(self._config, error)
            if problem is not None:
                return problem
            if isinstance(error, OSError):
                raise DiskFailedError(f"the store cannot be opened: {error}") from error
            raise
        if engine.lost_vote is not None:
            log_event(logging.ERROR, "vote-lost", node=node_id, reason=engine.lost_vote)
        for note in engine.log.recovery_notes:
            log_event(logging.WARNING, "recovered", node=node_id, note=note)
        try:
            self._check_log(engine)
            if isinstance(self._machine, SnapshotMachine):
                return self._restore(self._machine, engine)
            check_reaches(engine.log, self._machine.applied_index)
        except OSError as error:
            raise DiskFailedError(f"the store cannot be opened: {error}") from error
        return OpenStore(engine)

    def _check_log(self, engine: Engine) -> None:
        """Refuse a log whose last term was led by other members than those of the configuration.

        Raises:
            ConfigError: others did.
            DiskFailedError: the disk failed.
        """
        found = last_membership(engine.log)
        if found is None:
            return  # a log of an older version, or an empty one
        entry_id, writers = found
        known = engine.node.configuration_at(entry_id.index)
        if known is None and self._config.raft.joins:
            return  # members from before those that this store knows led it
        members = self._config.raft.voters if known is None else known.voters
        check_log_members(writers, entry_id, frozenset(members), self._config.store_path)
        if not self._config.raft.joins and not engine.node.configuration_index:
            self._store_identity.adopt_members()

    def _restore(self, machine: SnapshotMachine, engine: Engine) -> OpenStore:
        """Bring the state machine to the newest good snapshot, and let the engine go on after it."""
        config = self._config
        store = SnapshotStore(self._disk, spare_bytes=config.segment_size_bytes)
        found = self._restore_newest(store, machine, engine)
        found.let_go_on(engine, machine.applied_index)
        snapshotter = Snapshotter(config, machine, engine, store=store, begins_with=found)
        forgetting = (
            Forgetting(config, machine, engine, snapshotter)
            if isinstance(machine, ForgettingMachine)
            else None
        )
        return OpenStore(
            engine,
            snapshotter,
            store.in_use,
            forgetting,
            lambda driver: SnapshotFetch(
                config,
                driver,
                machine,
                store=store,
                snapshotter=snapshotter,
                peer_of=self._roster.peer,
            ),
        )

    def _restore_newest(
        self, store: SnapshotStore, machine: SnapshotMachine, engine: Engine
    ) -> StartingState:
        """Bring the machine to a snapshot, and log which; the only voter has nobody to fetch a state from."""
        node_id = self._standing.node_id
        may_fetch = any(voter != node_id for voter in engine.node.configuration.voters)
        found = restore_newest(store, machine, engine.log, may_fetch=may_fetch)
        for reason in found.refused:
            log_event(logging.ERROR, "snapshot-refused", node=node_id, reason=reason)
        if found.lacks:
            log_event(logging.ERROR, "state-lost", node=node_id, reason=found.lacks)
        if found.newest is not None:
            index = found.newest.meta.index
            log_event(logging.INFO, "snapshot-restored", node=node_id, index=index)
        return found
