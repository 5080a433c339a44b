"""The driver, which alone owns a node's engine: it steps it with events, writes, sends, and feeds the fold.

A pass is synchronous, from the sockets to the callbacks: read what all members sent, step, send
what may leave, write and sync once for everything that gathered (group commit), send what that
released, fold what is committed. Two tasks start passes, one when a socket is ready or a sync that no pass
waited for has ended, one when something is to be proposed or a deadline is due (alarm.py), and whoever has gathered
all that there is to propose now; since a pass never waits, there is nothing to lock. A node that nobody speaks to has
no pass but those of its deadlines and its watch.

Syncs run in a thread of their own (disk_writer.py), and what becomes of the node is announced by announcer.py.
Committed entries are folded in bounded chunks with a turn for everybody else in between, so a long replay costs no
leadership. A follower that is sent one entry after the other folds some of them together.

When the loop itself stood still, the core learns that before anything else, then what waits in the sockets is
read, and only then a deadline counts (docs/adr/0161).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

import trio
from outcome import Error, capture

from dledger.catch_up import EntriesLoad
from dledger.config import RaftConfig
from dledger.engine import Engine
from dledger.errors import (
    DiskFailedError,
    DLedgerError,
    ShutdownError,
    TooLargeError,
    TooManyPendingError,
)
from dledger.raft.configuration import MemberChange
from dledger.raft.effects import Failed, Role
from dledger.raft.entry import Entry
from dledger.raft.events import (
    Event,
    GiveUpVote,
    MembersRequested,
    PeerUnreachable,
    Propose,
    ReadRequested,
    Received,
    StepDown,
    StoodStill,
    Tick,
    TransferRequested,
)
from dledger.raft.ids import NO_INDEX, EntryId, Index, NodeId
from dledger.raft.messages import PeerMessage, RepairAnswer, RepairRequest
from dledger.runtime.alarm import Alarm
from dledger.runtime.announcer import Announcer
from dledger.runtime.callers import Answered, Callers, Done
from dledger.runtime.catch_up import CatchUpReads
from dledger.runtime.clock import now_ms
from dledger.runtime.disk_writer import DiskWriter, raise_latched
from dledger.runtime.events_log import LimitedLog
from dledger.runtime.loop_watch import LOGGED_MS, LoopStall, LoopWatch
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.sync_pace import SyncPace
from dledger.runtime.task_group import open_task_group
from dledger.state_machine import StateMachine
from dledger.storage.scan import ChainEnd

APPLY_BYTES_MAX: Final = 1024 * 1024
"""Entries folded in one pass: some 5 ms of 1 KiB messages, a fraction of a heartbeat interval."""

FOLD_PAUSE_MS: Final = 10
"""A follower that has just folded puts the next fold off for so long while entries come that it has to write."""

FOLD_LATER_BYTES_MAX: Final = 64 * 1024
"""No more than this is put off: what comes in bulk is folded in bulk anyway."""

PASS_DUE_PULSES: Final = 1.25
"""A pass is due so many heartbeat intervals after the one before: where heartbeats come, none but those for them."""

_REPAIRS: Final = (RepairRequest, RepairAnswer)

STALL_LINES_PER_S: Final = 1.0
"""Stalls may come in every pass of a machine that is too small; one line a second says enough."""


class Driver:
    """Owns the engine and the state machine.

    Invariants: the state machine sees each entry once, in order; after a failure of the engine a
    pass raises it.

    Attributes:
        callers: who waits for what was asked of the engine.
        catch_up: reads old entries for members that lack them.
        pace: of the own syncs.
        announcer: says to people and watchers what becomes of the node.
        applied_index: the last entry that the state machine contains.
        gatherers: called before a pass that `wake` asked for: they propose what has gathered.
        applied_watchers: called after entries were applied and their proposers were answered.
        pass_end_watchers: called at the end of every pass.
        stall_count, stall_longest_ms: how often, and how long at most, the loop stood still.
        store_is_old: another member remembers what this store does not know of, and it gave up its vote.
    """

    def __init__(
        self,
        config: RaftConfig,
        engine: Engine,
        machine: StateMachine,
        *,
        links: PeerLinks,
        obstacles: Obstacles,
    ) -> None:
        self.engine = engine
        self.catch_up = CatchUpReads(
            engine.log.layout, self._entries_loaded, engine.node.is_waited_for
        )
        self.callers = Callers()
        self.pace = SyncPace(config.slow_disk_ms)
        self.announcer = Announcer(config.node_id, engine, obstacles)
        self.stall_count = self.stall_longest_ms = 0
        self.applied_index = machine.applied_index
        self.pass_count = self.applied_count = 0
        self.gatherers: list[Callable[[], None]] = []
        self.applied_watchers: list[Callable[[], None]] = []
        self.pass_end_watchers: list[Callable[[], None]] = []
        self._config = config
        self._machine = machine
        self._links = links
        self._obstacles = obstacles
        self._vote_given_up: Callable[[], bool] | None = None
        self.store_is_old = False
        self._fold_holds = 0
        self._alarm = Alarm()
        self._is_gathering = self._is_running = False
        self._announced: object = None
        self._failed: BaseException | None = None
        self._mended = trio.Event()
        self._announced_mended_count = self._announced_pulse_count = 0
        self._armed_ms = self._due_ms = self._folded_ms = 0
        self._expected_index = NO_INDEX
        self._pulse_ms = config.heartbeat_interval_ms
        self._pass_due_ms = int(PASS_DUE_PULSES * self._pulse_ms)
        self._watch = LoopWatch(self._pulse_ms, now_ms())
        self._stall_lines = LimitedLog(STALL_LINES_PER_S)
        self._writer = DiskWriter(
            engine,
            self.announcer,
            obstacles.full_disks,
            pace=self.pace,
            on_released=self._send,
            on_full=lambda: self._step(StepDown(f"the disk of {config.node_id} is full")),
        )

    # What callers ask; nothing here waits.

    def propose(self, body: bytes, done: Done) -> EntryId:
        """Append one entry; `done` is called after it was applied here, or with the failure.

        When nothing else is under way its request leaves at once; else it shares the next pass.

        Raises:
            RefusedError, UsageError: it was not taken; `done` is not called.
        """
        is_idle = self.callers.are_idle and not self.engine.has_unsaved
        token = self.callers.add_proposal(done)
        try:
            self._ask(Propose((body,), token))
        except DLedgerError:
            self.callers.remove_proposal(token)
            raise
        entry_id = self.engine.node.log.last_id
        if is_idle:
            self._send()
        if not self._is_gathering:
            self.wake()
        return entry_id

    def append_soon(self, body: bytes, done: Done) -> None:
        """Append one entry in one proposal with all others that come before the next pass.

        Raises:
            RefusedError: it was not taken; `done` is not called.
        """
        limit = self._config.entry_body_bytes_max
        if len(body) > limit:
            raise TooLargeError(f"a body of {len(body)} bytes exceeds entry_body_bytes_max={limit}")
        pending_count = self.callers.pending_count
        if pending_count >= self._config.pending_proposals_max:
            raise TooManyPendingError(f"{pending_count} proposals wait already")
        self.callers.stage(body, done)
        self.wake()

    def request_read(self, answered: Answered) -> None:
        """Ask for a read point.

        Raises:
            RefusedError: refused at once; `answered` is not called.
        """
        token = self.callers.add(answered)
        try:
            self._ask(ReadRequested(token))
        except DLedgerError:
            self.callers.remove(token)
            raise
        self.wake()

    def request_transfer(self, target: NodeId | None, answered: Answered) -> None:
        """Ask for a hand-over.

        Raises:
            RefusedError: refused at once; `answered` is not called.
        """
        token = self.callers.add(answered)
        try:
            self._ask(TransferRequested(target, token))
        except DLedgerError:
            self.callers.remove(token)
            raise
        self.wake()

    def request_members(self, change: MemberChange, answered: Answered) -> None:
        """Ask for a change of the members.

        Raises:
            UsageError, RefusedError: refused at once; `answered` is not called.
        """
        token = self.callers.add(answered)
        try:
            self._ask(MembersRequested(change, token))
        except DLedgerError:
            self.callers.remove(token)
            raise
        self.wake()

    @property
    def is_serving(self) -> bool:
        """True while this node leads and the first entry of its term is applied."""
        noop_index = self.engine.node.noop_index
        return noop_index is not None and self.applied_index >= noop_index

    async def wait_applied(self, index: Index) -> None:
        """Wait until the state machine contains `index`, or the node has stopped."""
        if self.applied_index < index:
            self.expect_applied(index)
            await self.callers.wait_applied(index)

    def expect_applied(self, index: Index) -> None:
        """Put no fold off until the state machine contains `index`: somebody waits for it."""
        if index > self._expected_index:
            self._expected_index = index
            if self._can_fold:
                self.wake()

    def read(self, first: Index, end: Index, bytes_max: int) -> list[Entry]:
        """Return entries from memory or disk; see `Engine.read`. A damaged one is asked for with the next pass."""
        try:
            return self.engine.read(first, end, bytes_max, now_ms())
        finally:
            if self.engine.live_repair.missing_count:
                self.wake()

    async def wait_mended(self) -> None:
        """Wait for the next repair of a damaged entry, or until one that could not be read now may be read again."""
        await self._mended.wait()

    def state_replaced(self, index: Index, chain_crc: int | None) -> None:
        """Go on from this entry, to which the state machine was restored; see `Engine.state_replaced`."""
        self.engine.state_replaced(index, chain_crc)
        if self.engine.lacks_state and self.engine.node.role is not Role.FOLLOWER:
            self._step(StepDown(f"the state of {self._config.node_id} is lost"))
        self.applied_index = index
        self.callers.wake_applied(index)
        self.wake()

    def log_begun_after(self, before: ChainEnd) -> None:
        """Go on with an empty log after this entry, which the state contains; see `Engine.begin_log_after`."""
        self.engine.begin_log_after(before)
        self.wake()

    def wake(self) -> None:
        """Schedule a pass of the driver."""
        self._alarm.ring()

    def gather_now(self) -> None:
        """Run a pass at once, and let the gatherers propose before it; not from within one.

        What it fails with is raised by `run`, as with any other pass.
        """
        if not self._is_running:
            self.wake()
            return
        ended = capture(self._gather_and_pass)
        if isinstance(ended, Error):
            self._failed = ended.error
            self.wake()

    def give_up_vote(self, reason: str, saved: Callable[[], bool]) -> None:
        """Give up the vote: this member's store is an older copy of itself.

        Args:
            reason: how that is known.
            saved: called once it is durable that there is no vote, and again until it says True.
        """
        self._vote_given_up = saved
        if self.engine.node.is_voter:
            self.store_is_old = True
            self.announcer.log(logging.ERROR, "store-is-old", reason=reason)
            # What the engine may fail with is raised by the next pass.
            with contextlib.suppress(DLedgerError):
                self._step(GiveUpVote())
        self.wake()

    def _confirm_vote_given_up(self) -> None:
        if (
            self._vote_given_up is not None
            and self.engine.is_hard_state_saved
            and self._vote_given_up()
        ):
            self._vote_given_up = None

    def _ask(self, event: Propose | ReadRequested | TransferRequested | MembersRequested) -> None:
        """Step the engine with a caller's event; raises the refusal if it is resolved at once.

        When the engine fails in this very step the outcome is unknown: the next pass raises the
        failure, and the caller is answered with all others.
        """
        try:
            self._step(event)
        except DLedgerError:
            self.wake()
            return
        refusal: DLedgerError | None = None
        for token, outcome in self.engine.take_resolved():
            if token == event.token and isinstance(outcome, Failed):
                refusal = outcome.error
            else:
                self.callers.keep_early(token, outcome)
        if refusal is not None:
            raise refusal

    def _propose_staged(self) -> None:
        token, bodies = self.callers.take_staged()
        self._step(Propose(bodies, token))

    # Passes.

    async def run(self) -> None:
        """Run passes until cancelled or failed.

        Raises:
            DLedgerError: the disk has failed.
            Exception: what the state machine or a callback raised.
        """
        self._watch = LoopWatch(self._pulse_ms, now_ms())
        with self._links.watching(self._writer.open(), self._writer.take_written):
            try:
                async with open_task_group() as tasks:
                    self._is_running = True
                    self.catch_up.tasks = tasks
                    tasks.start(self._run_on_sockets, name="driver sockets")
                    self.wake()
                    tasks.start(self._alarm.run, self._gather_and_pass, name="driver")
            finally:
                self._is_running = False
                # A task that was ready when it was cancelled may have begun a write in a last pass.
                await self._writer.finish()

    def _gather_and_pass(self) -> None:
        """Let the gatherers propose, and run a pass: for proposals and deadlines, and for the watch of the loop."""
        self._is_gathering = True
        for gather in self.gatherers:
            gather()
        self._is_gathering = False
        self.run_pass()

    async def _run_on_sockets(self) -> None:
        """Run passes for what members send, and for syncs that have ended."""
        while True:
            await self._links.wait_ready()
            self.run_pass()

    def run_pass(self) -> None:
        """Run one pass; after one that has failed there is no other.

        Raises:
            DLedgerError: the engine has failed; the node stops.
            Exception: the state machine or a callback has failed; the node stops.
        """
        if self._failed is None:
            try:
                self._pass()
            except BaseException as error:
                self._failed = error
                raise
        else:
            raise self._failed  # once more for each task that still runs a pass

    def _pass(self) -> None:
        """Run one pass; see `run_pass`."""
        engine, node = self.engine, self.engine.node
        self.pass_count += 1
        applied_count = self.applied_count
        begun_ms = now_ms()
        stall = self._watch.begin(begun_ms)
        if stall is not None:
            self._stood_still(stall)
        if self.callers.has_staged:
            self._propose_staged()
        self._read_members()
        # What was due when the last pass ended is due now, or was put off; what became due sooner since has an alarm.
        received_ms = now_ms()
        if received_ms >= self._due_ms and received_ms >= engine.next_deadline_ms():
            self._tick()
        self._send()
        if node.role is Role.LEADER:
            # Callers wait for what is committed; their answers should not wait for the next sync.
            self._settle()
            received_ms = now_ms()
        is_saving = engine.has_unsaved
        self._writer.write()
        written_ms = now_ms()
        if is_saving and node.role is Role.LEADER:
            # The others have written meanwhile, too. To read what they answer costs less than a pass for it.
            self._read_members()
        self._send()
        self._hand_over()
        is_put_off = is_saving and self._puts_off_fold(written_ms)
        if not is_put_off and self._can_fold:
            self._fold()
            self._folded_ms = written_ms
        if self.applied_count > applied_count and node.role is Role.LEADER:
            # So have those that were not needed for the majority.
            self._read_members()
            self._send()
            self._hand_over()
        ended_ms = now_ms()
        self._watch.passed(received_ms, written_ms, ended_ms)
        self._announce_repairs()
        self._confirm_vote_given_up()
        for ended in self.pass_end_watchers:
            ended()
        if engine.failure is not None:
            raise engine.failure
        is_folding = not is_put_off and self._can_fold
        if is_folding or (engine.has_unsaved and not engine.is_persisting):
            self.wake()
        self._arm(begun_ms, ended_ms)

    def _tick(self) -> None:
        """Let the core see the time; a leader that hears no majority looks for the reason before its term is lost."""
        obstacles = self._obstacles
        obstacles.majority_judged(is_silent=self.engine.node.lacks_majority())
        self._step(Tick(obstacles.full_disks.describe()))

    def _read_members(self) -> None:
        """Take what all members have sent."""
        self._links.receive(self._deliver)
        for peer in self._links.take_lost():
            self._step(PeerUnreachable(peer))

    def _arm(self, begun_ms: int, ended_ms: int) -> None:
        """Set the alarm to when the next pass is due, unless it is set to a time shortly before that already."""
        self._due_ms = self._writer.next_deadline_ms()
        due_ms = min(self._due_ms, begun_ms + self._pass_due_ms)
        early_ms = due_ms - self._armed_ms
        if not 0 <= early_ms < self._pulse_ms // 2 or self._armed_ms <= ended_ms:
            self._armed_ms = due_ms
            self._alarm.set_to((due_ms - now_ms()) / 1000)

    def _stood_still(self, stall: LoopStall) -> None:
        """Report a stall of the loop to the core, which must not take that silence for a lost leader."""
        self.stall_count += 1
        self.stall_longest_ms = max(self.stall_longest_ms, stall.length_ms)
        self._step(StoodStill(stall.length_ms))
        if stall.length_ms < LOGGED_MS:
            return
        node = self.engine.node
        self._stall_lines.log_event(
            logging.WARNING,
            "loop-stalled",
            node=self._config.node_id,
            term=node.term,
            role=node.role.value,
            ms=stall.length_ms,
            cpu_ms=stall.cpu_ms,
            doing=stall.doing,
        )

    def _announce_repairs(self) -> None:
        engine = self.engine
        notes, repaired_count = engine.live_repair.notes, engine.live_repair.repaired_count
        for event, fields in notes:
            self.announcer.log(logging.ERROR, event, **fields)
        notes.clear()
        is_mended = repaired_count > self._announced_mended_count
        if is_mended or engine.pulse_count > self._announced_pulse_count:
            self._announced_mended_count = repaired_count
            self._announced_pulse_count = engine.pulse_count
            self._mended.set()
            self._mended = trio.Event()

    def _deliver(self, message: PeerMessage) -> None:
        if isinstance(message, _REPAIRS):
            self.engine.repair(message, now_ms())
            return
        try:
            # The time of each message, not of the pass: a promise made to the leader counts from here.
            self.engine.step(Received(message), now_ms())
        except OSError as error:
            raise_latched(self.engine, error)

    def _step(self, event: Event) -> None:
        try:
            self.engine.step(event, now_ms())
        except OSError as error:
            raise_latched(self.engine, error)

    def _send(self) -> None:
        outbox = self.engine.take_outbox()
        if outbox:
            post = self._links.post
            for to, message in outbox:
                post(to, message)
            self._links.flush()
        if self.engine.loads:
            self.catch_up.begin(self.engine.take_loads())

    def _entries_loaded(self, load: EntriesLoad) -> None:
        """Send a member what was read for it, with the next pass."""
        try:
            self.engine.loaded(load, now_ms())
        except OSError as error:
            raise_latched(self.engine, error)
        self.wake()

    def close(self) -> None:
        """Fail all waiting callers and close the store; called after the last pass.

        Raises:
            OSError, DLedgerError: the index could not be completed; the log is whole without it.
        """
        self._writer.close()
        self.callers.fail_all(ShutdownError("the node has stopped"))
        self.engine.close()

    # Outcomes and the fold.

    def _settle(self) -> None:
        """Answer callers and fold. Failures and lost roles first: what is folded next may be another leader's."""
        self._hand_over()
        if self._can_fold:
            self._fold()

    def _hand_over(self) -> None:
        """Hand over what the engine has decided, to callers and watchers."""
        engine, callers = self.engine, self.callers
        announced = engine.node.announced
        if engine.has_outcomes or callers.has_outcomes or announced is not self._announced:
            self._announced = announced
            callers.answer(engine.take_resolved(), self.applied_index)
            self.announcer.announce(is_serving=self.is_serving)

    def _puts_off_fold(self, now_ms: int) -> bool:
        """Return whether a follower folds what it can fold together with what comes next.

        Each fold has a price of its own, whatever it contains. What comes next is the entry after the one that was
        just written, or a heartbeat; readers of a follower wait for the same to learn what is committed.
        """
        engine = self.engine
        return (
            now_ms < self._folded_ms + FOLD_PAUSE_MS
            and engine.node.role is Role.FOLLOWER
            and self.applied_index >= self._expected_index
            and engine.foldable_bytes <= FOLD_LATER_BYTES_MAX
        )

    def _fold(self) -> None:
        """Fold a chunk, and tell who waits for it."""
        self._apply()
        self.callers.answer((), self.applied_index)
        for applied in self.applied_watchers:
            applied()
        if self.is_serving is not self.announcer.is_serving:
            self.announcer.announce(is_serving=self.is_serving)

    @property
    def _can_fold(self) -> bool:
        return not self._fold_holds and self.engine.has_committed

    def hold_fold(self) -> None:
        """Fold nothing until `release_fold`; who waits for an entry to be applied waits so much longer."""
        self._fold_holds += 1

    def release_fold(self) -> None:
        """Fold again what is committed, unless somebody else still holds it up."""
        assert self._fold_holds > 0, "nobody holds the fold up"
        self._fold_holds -= 1
        self.wake()

    @property
    def is_fold_held(self) -> bool:
        """True while nothing is folded, since the state is being written down or replaced; for a short time."""
        return self._fold_holds > 0

    def _apply(self) -> None:
        """Apply one chunk of committed entries to the state machine."""
        try:
            entries = self.engine.take_committed(APPLY_BYTES_MAX)
        except OSError as error:
            raise DiskFailedError(f"committed entries cannot be read back: {error}") from error
        if not entries:
            return  # the next one is damaged, and asked for, or cannot be read now
        assert entries[0].index == self.applied_index + 1, (
            f"entry {entries[0].index} would be folded after entry {self.applied_index}"
        )
        self._machine.apply(entries)
        self.applied_index = entries[-1].index
        self.applied_count += len(entries)
        self.callers.wake_applied(self.applied_index)
