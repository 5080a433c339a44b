"""One node without tasks, clock and chance: the core, its log and its hard state, joined.

The runtime and the simulator drive the same engine: they feed events and the time, carry messages
away, and run one persist job at a time, on whatever thread they like. Everything that decides when
a message may leave stands here, so that it is tested under simulated disks and used as it is.

The order rule (Raft paper 5.2 and figure 2, thesis 10.2.1): a `Send` leaves once every save queued
before it is durable, unless it says that it need not. Saves are numbered as they are queued; a message
remembers the number of the last save before it, and a finished job says up to which number everything
is durable. Because jobs take everything that is queued, several saves share one sync, and only the last
hard state of several is written: a later term includes every promise made for an earlier one. What a
follower says of entries that are durable already does not wait for those that are not: however long a
sync takes, the leader hears that its followers are there.

After a failed write or sync nothing is known about the disk (house rule 5): the engine latches. It
steps down, drops what it held, listens to no member, and never again sends or saves anything; only
waiting callers still get their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, assert_never

import msgspec

from dledger.catch_up import EntriesLoad
from dledger.config import LogConfig
from dledger.errors import (
    CorruptionError,
    DiskFailedError,
    DLedgerError,
    EntryDamagedError,
)
from dledger.held_sends import HeldSends
from dledger.log_history import check_history, other_writers
from dledger.raft.configuration import Configuration
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Effect,
    EntriesCut,
    Failed,
    HandsOver,
    LoadEntries,
    MembersChanged,
    MembersCommitted,
    News,
    Outcome,
    Resolve,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    SendEntries,
    TruncateLog,
)
from dledger.raft.entry import Entry
from dledger.raft.events import (
    EntriesLoaded,
    Event,
    MembersRequested,
    Persisted,
    Propose,
    ReadRequested,
    Received,
    StepDown,
    TransferRequested,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.log_layout import LogBase
from dledger.raft.messages import (
    AppendRequest,
    PeerMessage,
    RepairMessage,
    RepairRequest,
)
from dledger.raft.node import RaftNode
from dledger.repair.damage_policy import HAND_OVER_TOKEN, DamagePolicy
from dledger.storage.api import Disk
from dledger.storage.examination import Finding
from dledger.storage.hard_state import HardStateStore
from dledger.storage.log_start import FrontDrop
from dledger.storage.scan import ChainEnd
from dledger.storage.sealed_index import SealedIndex
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.write_batch import WriteBatch

NEVER_MS = 1 << 62
"""A deadline that no clock reaches: a latched engine waits for nothing."""


class PersistJob(msgspec.Struct, frozen=True, gc=False):
    """Saves that are made durable together: the hard state first, then the log's writes.

    A crash between the two leaves a term without its entries, which no message has confirmed yet;
    the other order could leave entries of a term that the node does not know it has seen.

    Attributes:
        save_count: number of the last save that the job includes.
    """

    save_count: int
    hard_state: HardState | None
    batch: WriteBatch | None
    store: HardStateStore

    def run(self) -> None:
        """Write and sync. Only I/O; may run in another thread while the engine steps on.

        Raises:
            DiskFullError: there was no room, and no entry was written: the job may run again.
            OSError, DiskFailedError: the disk's content is unknown; pass it to `fail_persist`.
        """
        if self.hard_state is not None:
            self.store.save(self.hard_state)
        if self.batch is not None:
            self.batch.run()


@dataclass(slots=True)
class RefusedReads:
    """The reads that failed for want of descriptors or memory, and are made again with the next pulse.

    Attributes:
        loads: those that could not be planned.
        is_handing_out: the committed entries that come next are among it.
    """

    loads: list[LoadEntries] = field(default_factory=list)
    is_handing_out: bool = False


class Engine:
    """A node of a group over a disk. Not thread-safe; only `PersistJob.run` may run elsewhere.

    Invariants: at most one persist job at a time; entries are handed out in order, each once, and
    never beyond the commit index; once `failure` is set nothing is sent or saved any more.
    """

    node_type: ClassVar[Callable[..., RaftNode]] = RaftNode
    """The class of the node; tests of the simulator put broken ones here."""
    store_type: ClassVar[type[HardStateStore]] = HardStateStore
    """The same for the hard state."""

    def __init__(
        self,
        config: LogConfig,
        disk: Disk,
        *,
        draw: Callable[[int, int], int],
        now_ms: int,
        folder: str = "",
        applied_index: Index = NO_INDEX,
    ) -> None:
        """Open the store in `folder` and recover.

        Args:
            config: the node's settings.
            disk: where the store lives.
            draw: a random integer between two bounds, both included.
            now_ms: the present; the node supports no candidate for a lease from here.
            folder: of the store, on the disk.
            applied_index: what the state machine already contains; entries are handed out after it.

        Raises:
            CorruptionError: durable bytes are damaged: see `StoreRepair`; a group of one must not start.
            OSError: the disk cannot be read.
        """
        self.log = SegmentedLog.open(
            disk,
            folder,
            segment_size_bytes=config.segment_size_bytes,
            cache_bytes_max=config.cache_bytes_max,
            syncs=config.fsync,
        )
        is_alone = len(config.peers) == 1
        self._store = self.store_type.open(
            disk, folder, last_id=self.log.last_id, may_forget=not is_alone
        )
        state = self._store.state
        self._is_new_store = self._store.is_new and not is_alone
        if self._is_new_store:
            # Whether this member ever had a store, and promised anything, nobody knows here.
            state = replace(state, is_voter=False)
        self._node_id = config.raft.node_id
        self.node = self.node_type(
            config.raft,
            state,
            self.log.layout,
            draw=draw,
            now_ms=now_ms,
            first_in_memory=self.log.first_in_memory,
        )
        self.failure: DLedgerError | None = None
        self._damage = DamagePolicy(self._node_id, self._others(self.node.configuration), self.log)
        self.live_repair = self._damage.live_repair
        self._held = HeldSends()
        self._job: PersistJob | None = None
        self._hard_state: HardState | None = None
        self._committed_index = NO_INDEX
        self._anchor: tuple[Index, int] | None = None
        self._lacks_state = False
        self._behind: AppendRequest | None = None
        self._is_dropping = False
        self._handed_out_index = applied_index
        self._outbox: list[tuple[NodeId, PeerMessage]] = []
        self._asked: dict[NodeId, RepairRequest] = {}
        self.loads: list[EntriesLoad] = []
        self._loaded: tuple[Entry, ...] = ()
        self._refused = RefusedReads()
        self._resolved: list[tuple[int, Outcome]] = []
        self._news: list[News] = []
        self._uncommitted: MembersChanged | None = None
        self._follow_members(MembersChanged(self.node.configuration, self.node.configuration_index))

    def _others(self, configuration: Configuration) -> tuple[NodeId, ...]:
        return tuple(name for name in configuration.members if name != self._node_id)

    def start_after(self, applied_index: Index) -> None:
        """Hand out committed entries after this one, which the state machine has. Before the first step only."""
        assert self._committed_index == NO_INDEX, "entries may have been handed out"
        self._handed_out_index = applied_index
        self._look_at_state()

    @property
    def lacks_state(self) -> bool:
        """True while the state machine has not even what stood before this log: it needs another member's state."""
        return self._lacks_state

    def _look_at_state(self) -> None:
        """Note whether the log goes on where the state ends; without that this node does not come to lead."""
        self._lacks_state = self._handed_out_index + 1 < self.log.layout.first_index
        self.node.let_lead(may_lead=not self._lacks_state)

    def start_committed(self, index: Index) -> None:
        """Regard this entry of the own log as committed, since a snapshot contains it. Before the first step only.

        So it can be read before any leader was heard, and a leader that would remove it is refused: its
        group has lost what was committed, and this state is of that.
        """
        assert self._committed_index == NO_INDEX, "entries may have been handed out"
        self.node.start_committed(index)
        self._committed_index = index

    def state_replaced(self, applied_index: Index, chain_crc: int | None) -> None:
        """Hand out entries after this one: the state machine has taken over another member's state up to it.

        Args:
            applied_index: may lie beyond the end of this log.
            chain_crc: of that entry; compared when this log has it, before anything after it is
                handed out. None: nothing is to be compared.
        """
        self._handed_out_index = applied_index
        self._anchor = None if chain_crc is None else (applied_index, chain_crc)
        self._look_at_state()

    # The beginning of the log (docs/adr/0180).

    @property
    def needs_snapshot_of(self) -> NodeId | None:
        """The leader whose snapshot this member needs, since its log, or the own one, begins after what comes next."""
        if self._lacks_state or self.live_repair.is_forgotten(Index(self._handed_out_index + 1)):
            return self.node.leader_id
        return self._behind.source if self._behind is not None else None

    @property
    def start_of_leader(self) -> ChainEnd | None:
        """The entry that the leader's log follows, where this log ends before it; None: this log goes on."""
        behind = self._behind
        if behind is None:
            return None
        return ChainEnd(
            behind.prev_index, behind.prev_term, behind.first_position, behind.before_chain_crc
        )

    @property
    def handed_out_index(self) -> Index:
        """The last entry that the state machine was given, or took over with a state."""
        return self._handed_out_index

    @property
    def may_begin_anew(self) -> bool:
        """True while `begin_log_after` may be called: a follower that has nothing to save."""
        is_idle = self.failure is None and not self.is_persisting and not self.has_unsaved
        return is_idle and not self._is_dropping and self.node.role is Role.FOLLOWER

    def begin_log_after(self, before: ChainEnd) -> None:
        """Go on with an empty log after an entry that the state machine and a durable snapshot contain.

        It is the one that the leader's log follows: what the state shows stands after it. Messages that confirm it
        wait until it is durable; a crash before that leaves the log as it was.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        assert self.may_begin_anew, f"{self._node_id} cannot begin its log anew now"
        assert self._handed_out_index >= before.index, (
            f"the log would begin after entry {before.index}, the state is at {self._handed_out_index}"
        )
        self.log.begin_after(before)
        base = LogBase(before.index, before.term, before.position)
        for effect in self.node.begin_log_after(base):
            self._carry_out(effect)
        self.live_repair.forget_from(Index(1))
        self._held.saves_log(before.index)
        self._committed_index = before.index
        self._behind = None

    def forget_before(self, index: Index) -> FrontDrop | None:
        """Forget what stands before an entry, as far as whole segments allow; None: nothing.

        They are committed, applied, durable, and in a durable snapshot. The drop is to be run, in any thread, and
        `dropped` to be called; until then no other one begins.
        """
        if self._is_dropping or self.failure is not None:
            return None
        assert index - 1 <= min(self.node.commit_index, self._handed_out_index), (
            f"entries before {index} are forgotten; committed are {self.node.commit_index}, "
            f"handed out {self._handed_out_index}"
        )
        drop = self.log.drop_before(index)
        if drop is not None:
            first_index = self.log.layout.first_index
            self.node.forget_before(first_index)
            self.live_repair.forget_before(first_index)
            self._is_dropping = True
        return drop

    def dropped(self) -> None:
        """Note that the drop has run."""
        self._is_dropping = False

    # What happens.

    def step(self, event: Event, now_ms: int) -> None:
        """Let the node see an event, and carry out what it wants.

        A latched engine answers callers (they are refused) and ignores everything else.

        Raises:
            PeerProtocolError: no correct member sends this message; nothing has changed (unless
                `failure` is set: then its entries do not fit this log).
            OSError, DLedgerError: entries could not be read back; the engine is latched.
        """
        if self.failure is not None and not isinstance(
            event, Propose | ReadRequested | TransferRequested | MembersRequested
        ):
            return
        try:
            if isinstance(event, Received) and isinstance(event.message, AppendRequest):
                if not self._may_check_history(event.message):
                    return
                if event.message.term >= self.node.term:
                    self._behind = event.message if event.message.first_kept else None
            effects = self.node.step(event, now_ms)
        except (DiskFailedError, OSError) as error:
            self._latch(error)  # where an old entry stands could not be looked up
            raise
        try:
            for effect in effects:
                self._carry_out(effect)
            if self._damage.must_resign:
                for effect in self.node.step(self._damage.take_resignation(), now_ms):
                    self._carry_out(effect)
        except (OSError, DLedgerError) as error:
            self._latch(error)
            raise
        if self._damage.has_work:
            self._mend(now_ms)

    def _may_check_history(self, request: AppendRequest) -> bool:
        """Check a request; return False if that cannot be done now: then it is lost, as the network may lose it."""
        try:
            check_history(self.log, request, self._node_id, term=self.node.term)
        except OSError as error:
            self._damage.shortage.judge(f"entry {request.prev_index}", error)
            return False
        return True

    def _mend(self, now_ms: int) -> None:
        """Request damaged entries when that is due; a leader that lacks one for too long hands over."""
        policy = self._damage
        if self.failure is not None:
            return
        if policy.shortage.pass_time(now_ms):
            self._read_again(now_ms)
        if not (policy.live_repair.missing_count or policy.shortage.is_met):
            return
        request = policy.next_request(now_ms)
        if request is not None:
            self._outbox.append(request)
        if self.node.role is Role.LEADER:
            is_handing_out_behind = self._handed_out_index < self._committed_index
            waits_for = Index(self._handed_out_index + 1) if is_handing_out_behind else None
            hand_over = policy.hand_over(waits_for, now_ms)
            if hand_over is not None:
                self.step(hand_over, now_ms)

    def _read_again(self, now_ms: int) -> None:
        """Let be read again what was refused; the core asks for its loads anew."""
        refused, self._refused = self._refused, RefusedReads()
        for want in refused.loads:
            self.step(EntriesLoaded(want.to, want.term, want.first, want.first), now_ms)

    def _resolve(self, token: int, outcome: Outcome) -> None:
        """Queue the outcome of a caller's token; consume that of a hand-over which the engine itself requested."""
        if token != HAND_OVER_TOKEN:
            self._resolved.append((token, outcome))
        elif isinstance(outcome, Failed) and self.node.role is Role.LEADER:
            self._damage.hand_over_failed(outcome.error)

    def repair(self, message: RepairMessage, now_ms: int) -> None:
        """Answer a member's repair request, or store the entries that a repair answer brings.

        A member has one request under way: where more have come by the time that the outbox is taken, it waits for the
        newest, and each of the others would read the disk for nothing.

        Raises:
            DLedgerError: the disk failed; the engine is latched.
        """
        if self.failure is not None:
            return
        if isinstance(message, RepairRequest):
            self._asked[message.source] = message
            return
        try:
            self.live_repair.answered(message, now_ms)
        except DLedgerError as error:
            self._latch(error)
            raise
        hopeless = self._damage.why_hopeless(self._committed_index)
        if hopeless is not None and self.node.role is Role.LEADER:
            self.step(hopeless, now_ms)
        self._mend(now_ms)

    def look_for_damage(self, first: Index, end: Index, now_ms: int) -> None:
        """Verify these entries on disk; damaged ones are requested from the other members.

        Raises:
            DLedgerError: the disk failed; the engine is latched.
        """
        if self.failure is not None:
            return
        try:
            self._damage.look(first, end)
        except DLedgerError as error:
            self._latch(error)
            raise
        self._mend(now_ms)

    def examined(self, part: SealedIndex, found: Finding) -> None:
        """Take what was found of a finished segment's index.

        Raises:
            DiskFailedError: it and its entries are both damaged; the engine is latched.
        """
        if self.failure is not None:
            return
        try:
            self.log.examined(part, found)
        except DiskFailedError as error:
            self._latch(error)
            raise

    def read(self, first: Index, end: Index, bytes_max: int, now_ms: int) -> list[Entry]:
        """Return entries for a caller that does not wait: at least one, up to the first damaged one.

        Nothing is waited for. A damaged one is asked for, and comes back sooner or later.

        Raises:
            EntryDamagedError: the first one is damaged, or cannot be read now.
            OSError, DLedgerError: it could not be read, and nobody can help.
        """
        try:
            return self._damage.read_now(first, end, bytes_max=bytes_max, now_ms=now_ms)
        except DiskFailedError as error:
            self._latch(error)
            raise

    def take_loads(self) -> list[EntriesLoad]:
        """Return the reads for members that lack old entries: to be run in any thread, and given to `loaded`."""
        taken, self.loads = self.loads, []
        return taken

    def loaded(self, load: EntriesLoad, now_ms: int) -> None:
        """Let the node send what a load has read. What it found damaged is read here, as damaged entries are.

        What it could not read for now the node asks for again.

        Raises:
            OSError, DLedgerError: as `step`.
        """
        want = load.want
        if load.refusal is not None:
            self._damage.shortage.seen(f"entry {want.first}", load.refusal)
            self.step(EntriesLoaded(want.to, want.term, want.first, want.first), now_ms)
            return
        # Entries of an earlier leadership may not be those that stand there now.
        self._loaded = load.entries if want.term == self.node.term else ()
        try:
            self.step(EntriesLoaded(want.to, want.term, want.first, load.plan.end_index), now_ms)
        finally:
            self._loaded = ()

    def next_deadline_ms(self) -> int:
        """Return when the next `Tick` is due at the latest."""
        if self.failure is not None:
            return NEVER_MS
        deadline_ms = self.node.next_deadline_ms()
        if not self._damage.has_work:
            return deadline_ms
        return min(
            deadline_ms,
            self.live_repair.next_deadline_ms(),
            self._damage.shortage.next_deadline_ms(),
        )

    def begin_persist(self) -> PersistJob | None:
        """Return a job with everything that was queued since the last one; None when nothing was."""
        assert self._job is None, "one persist job at a time"
        held = self._held
        if held.save_count == held.durable_count or self.failure is not None:
            return None
        hard_state, self._hard_state = self._hard_state, None
        batch = self.log.take_writes()
        is_part = batch is not None and self.log.has_writes
        save_count = held.taken(batch.last_index if batch is not None and is_part else None)
        assert held.durable_count <= save_count <= held.save_count, (
            f"a job up to save {save_count}, durable is {held.durable_count}, the last is {held.save_count}"
        )
        self._job = PersistJob(save_count, hard_state, batch, self._store)
        return self._job

    def found_no_room(self, job: PersistJob) -> None:
        """Note that the job found the disk full; until it succeeds nothing is sent and this node cannot lead."""
        assert job is self._job, "this job is not the one that runs"
        self._held.is_full = True

    def release(self, job: PersistJob) -> bool:
        """Release the messages that waited for a job that has run, and return whether there are any.

        Whom they answer waits for them, and for nothing else that `end_persist` does, which has to follow.
        """
        assert job is self._job, "this job is not the one that runs"
        if self.failure is not None:
            return False
        released = self._held.release(job.save_count)
        self._outbox += released
        return bool(released)

    def end_persist(self, job: PersistJob, now_ms: int) -> None:
        """Release the messages that waited for this job, if that is yet to be done, and report what is durable.

        Raises:
            OSError, DLedgerError: as `step`.
        """
        self.release(job)
        self._job = None
        if self.failure is not None or job.batch is None:
            return
        durable_id = self.log.written(job.batch)
        finished = self.log.take_finished()
        if finished is not None:
            self.node.finish(finished)
        if durable_id.index != NO_INDEX:
            self.step(Persisted(durable_id), now_ms)

    def fail_persist(self, job: PersistJob, error: OSError | DLedgerError, now_ms: int) -> None:
        """Latch the failure of a job and step down; nothing is written any more."""
        assert job is self._job, "this job is not the one that runs"
        self._job = None
        if self.failure is not None:
            return
        self._latch(error)
        for effect in self.node.step(StepDown(f"the disk failed: {error}"), now_ms):
            self._carry_out(effect)

    def close(self) -> None:
        """Complete the index on disk and close the files, in good order.

        Raises:
            OSError: the index could not be written; the log is whole without it.
        """
        assert self._job is None, "a persist job is running"
        if self.failure is None:
            self.log.flush_index()
        self.log.close()

    # What comes out.

    def take_outbox(self) -> list[tuple[NodeId, PeerMessage]]:
        """Return the messages that may leave now, in order; answers to repair requests are made here.

        Raises:
            DLedgerError: the disk failed; the engine is latched.
        """
        if self._asked:
            self._answer_repairs()
        taken, self._outbox = self._outbox, []
        assert self.failure is None or not taken, f"{len(taken)} messages after {self.failure}"
        return taken

    def _answer_repairs(self) -> None:
        asked, self._asked = self._asked, {}
        try:
            for source, request in asked.items():
                answer = self._damage.give(request, is_voter=self.node.is_voter)
                self._outbox.append((source, answer))
        except DLedgerError as error:
            self._latch(error)
            raise

    @property
    def has_outcomes(self) -> bool:
        """True while `take_resolved` or `take_news` may have something to give."""
        return bool(self._resolved or self._news) or self._uncommitted is not None

    def take_resolved(self) -> list[tuple[int, Outcome]]:
        """Return tokens and their outcomes; each token comes once."""
        taken, self._resolved = self._resolved, []
        return taken

    def take_news(self) -> list[News]:
        """Return changes of role, term, known leader or members, hand-overs for a slow disk and cuts, in order."""
        if self._uncommitted is not None:
            self._note_committed_members()
        taken, self._news = self._news, []
        return taken

    def take_committed(self, bytes_max: int) -> list[Entry]:
        """Return the next committed entries, each handed out once.

        At least one if there is any, unless it is damaged and has yet to come back, or cannot be read now.

        Raises:
            OSError, CorruptionError: they could not be read back.
        """
        first = Index(self._handed_out_index + 1)
        end = Index(self._committed_index + 1)
        if first >= end or self._lacks_state:
            return []
        try:
            if self._anchor is not None:
                self._check_anchor(*self._anchor)
            entries = self._damage.read(first, end, bytes_max)
        except EntryDamagedError:
            self._refused.is_handing_out = True
            return []
        if entries:
            assert entries[0].index == first, f"entry {entries[0].index} instead of {first}"
            assert entries[-1].index <= self._committed_index, "handed out before it is committed"
            self._handed_out_index = entries[-1].index
        return entries

    def _check_anchor(self, index: Index, chain_crc: int) -> None:
        """Check that the state, which came from elsewhere, is of this log: the log has reached its entry."""
        try:
            found = self.log.chain_crc_of(index)
        except OSError as error:
            raise self._damage.shortage.judge(f"entry {index}", error) from error
        if found != chain_crc:
            raise CorruptionError(
                "snapshots", 0, f"the state at entry {index} is of another log: wipe this store"
            )
        self._anchor = None

    @property
    def is_new_store(self) -> bool:
        """True if the store was empty when it was opened, in a group of several."""
        return self._is_new_store

    @property
    def lost_vote(self) -> CorruptionError | None:
        """The damage of the hard state; with it this member has lost its vote, until it is admitted."""
        return self._store.lost

    @property
    def is_hard_state_saved(self) -> bool:
        """True if a crash now would bring back term, vote and whether it may vote as they are."""
        is_waiting = self._hard_state is not None or (
            self._job is not None and self._job.hard_state is not None
        )
        return self.failure is None and not is_waiting

    @property
    def has_committed(self) -> bool:
        """True while `take_committed` has something to give."""
        return (
            self._handed_out_index < self._committed_index
            and not self._lacks_state
            and not self._refused.is_handing_out
            and not self.live_repair.has_hole(Index(self._handed_out_index + 1))
        )

    @property
    def foldable_bytes(self) -> int:
        """The size of what is committed and was not handed out."""
        layout = self.log.layout
        first = max(Index(self._handed_out_index + 1), layout.first_index)
        end = Index(self._committed_index + 1)
        return layout.position_of(end) - layout.position_of(first) if first < end else 0

    @property
    def pulse_count(self) -> int:
        """The number of times that what could not be read was read again."""
        return self._damage.shortage.pulse_count

    @property
    def is_persisting(self) -> bool:
        """True from the beginning of a job to its end."""
        return self._job is not None

    @property
    def has_unsaved(self) -> bool:
        """True while something waits for a persist job, the running one included."""
        return self._held.save_count != self._held.durable_count

    # How it is done.

    def _carry_out(self, effect: Effect) -> None:
        """Carry out one effect. The frequent ones stand first: this is the hot path."""
        match effect:
            case SendEntries():
                self._send_entries(effect)
            case Send():
                self._send(effect)
            case AppendEntries(entries=entries):
                if self.failure is None:
                    self.log.append(entries)
                    self._held.saves_log(entries[-1].index)
            case Commit(index=index):
                assert index > self._committed_index, (
                    f"entry {index} is committed after entry {self._committed_index}"
                )
                self._committed_index = index
            case LoadEntries():
                self._plan_load(effect)
            case Resolve(token=token, outcome=outcome):
                self._resolve(token, outcome)
            case RoleChanged() | MembersChanged() | HandsOver():
                self._note_news(effect)
            case SaveHardState(term=term, vote=vote, is_voter=is_voter, notes=notes):
                if self.failure is None:
                    self._held.saves_hard_state()
                    self._hard_state = HardState(term, vote, is_voter, notes)
            case TruncateLog(first=first):
                self._truncate(first)
            case _:
                assert_never(effect)

    def _truncate(self, first: Index) -> None:
        """Cut the entries from `first` on, which are not committed: they are reported, and asked for no more.

        The next save takes them from the disk. A latched engine saves nothing more, and cuts nothing.
        """
        assert first > self._committed_index, (
            f"entry {first} would be cut, {self._committed_index} is committed"
        )
        if self.failure is None:
            before = self.node.configuration_at(Index(first - 1))
            writers = other_writers(self.log, first, before)
            self._news.append(EntriesCut(first, self.log.last_id, writers))
            self.live_repair.forget_from(first)
            self.log.truncate_from(first)
            self._held.saves_log(Index(first - 1))

    def _note_news(self, news: RoleChanged | MembersChanged | HandsOver) -> None:
        if isinstance(news, MembersChanged):
            self.live_repair.peers_changed(self._others(news.configuration))
            self._follow_members(news)
        if isinstance(news, RoleChanged) and news.role is Role.LEADER:
            self._damage.became_leader()
        self._news.append(news)

    def _follow_members(self, news: MembersChanged) -> None:
        """Remember a configuration that may still be undone."""
        self._uncommitted = news if news.index > self._committed_index else None

    def _note_committed_members(self) -> None:
        """Report that the configuration in force is committed, once it is."""
        news = self._uncommitted
        if news is not None and news.index <= self._committed_index:
            self._uncommitted = None
            self._news.append(MembersCommitted(news.configuration, news.index))

    def _send(self, effect: Send) -> None:
        """Send a message at once if everything that it waits for is saved, else hold it back."""
        if self.failure is not None:
            return
        held = self._held
        if held.may_leave(effect.waits):
            self._outbox.append((effect.to, effect.message))
        else:
            held.hold(effect.to, effect.message)

    def _send_entries(self, effect: SendEntries) -> None:
        """Make the append request; the leader's own disk need not have the entries (thesis 10.2.1)."""
        if self.failure is not None:
            return
        is_heartbeat = effect.first == effect.end
        try:
            entries = () if is_heartbeat else self._entries_to_send(effect.first, effect.end)
        except EntryDamagedError:
            return  # it cannot be read now; the request is lost, as the network may lose it
        if len(entries) < effect.end - effect.first:
            self._damage.cannot_send()
            return
        first_kept = effect.first_kept
        request = AppendRequest(
            effect.term,
            self._node_id,
            effect.prev_index,
            effect.prev_term,
            entries,
            effect.commit_index,
            effect.round,
            effect.admits,
        )
        if first_kept:
            request = msgspec.structs.replace(
                request,
                first_kept=first_kept,
                first_position=self.log.layout.first_position,
                before_chain_crc=self.log.chain_crc_before_first,
                members=effect.members,
            )
        self._outbox.append((effect.to, request))

    def _plan_load(self, want: LoadEntries) -> None:
        """Plan a read; one that cannot be planned now is refused with the next pulse."""
        try:
            self.loads.append(EntriesLoad.planned(self.log, want))
        except OSError as error:
            self._damage.shortage.judge(f"entry {want.first}", error)
            self._refused.loads.append(want)

    def _entries_to_send(self, first: Index, end: Index) -> tuple[Entry, ...]:
        loaded = self._loaded
        if loaded and loaded[0].index == first and loaded[-1].index == end - 1:
            return loaded
        return tuple(self._damage.read(first, end))

    def _latch(self, error: OSError | DLedgerError) -> None:
        """Never send or save again."""
        self.failure = (
            error
            if isinstance(error, DLedgerError)
            else DiskFailedError(f"the disk failed: {error}")
        )
        self._damage.stop()
        self._held.drop()
        self._outbox.clear()
        self._asked.clear()
