"""A whole group in one process: engines, simulated disks and network, a virtual clock, one event heap.

Nothing here decides what goes wrong: faults and clients are callers of this module (sim_faults.py,
sim_clients.py, and tests directly). Each event is one call at one moment of virtual time; events of
the same moment run in the order in which they were scheduled, so a run is a function of its seed.

A member's disk outlives it. Its clock runs at its own rate and from its own zero, so code that
compares the clocks of two members is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

from dledger.codec.rpc import decode_message, encode_entries, encode_message
from dledger.config import LogConfig, Peer, RaftConfig
from dledger.engine import Engine, PersistJob
from dledger.errors import CorruptionError, DiskFailedError, DiskFullError, DLedgerError
from dledger.raft.effects import GivesWay, Outcome, Role
from dledger.raft.events import Event, GiveUpVote, Received, StepDown, Tick
from dledger.raft.ids import NodeId
from dledger.raft.messages import (
    AppendRequest,
    Message,
    PeerMessage,
    RepairAnswer,
    RepairMessage,
    RepairRequest,
)
from dledger.repair.store_repair import StoreRepair, is_repairable
from dledger.testing.sim_disk import SimDisk
from dledger.testing.sim_meetings import Meetings
from dledger.testing.sim_network import SimNetwork
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_trace import Trace, describe_message, describe_news, describe_outcome
from dledger.testing.state_checker import StateChecker, Violation

HANDED_OUT_BYTES_MAX = 4096
"""Committed entries are taken in such portions, so that taking a part is exercised too."""

SAVE_WRITES_MAX = 8
"""A crash during a save strikes at one of its first writes; most saves have fewer."""

FULL_RETRY_MS = 50
"""A member whose disk is full leads no longer, and tries its save again so often."""

NEVER_MS = 1 << 60
"""A moment that no run reaches."""

STEPS_MAX = 200_000
"""A run with more steps than this is caught in a loop (usual runs have about a thousand)."""


def through_wire(message: PeerMessage) -> PeerMessage:
    """A message as its receiver decodes it from the bytes of the peer protocol."""
    entries = message.entries if isinstance(message, AppendRequest | RepairAnswer) else ()
    return decode_message(encode_message(message), encode_entries(entries))


class StuckError(Exception):
    """The group makes no progress though nothing is wrong with its world any more."""


class SimCluster:
    """The members, their world, and the loop that runs them.

    Attributes:
        on_resolved: told of every outcome, after the step that brought it.
        on_stopped: told when a member has stopped; its waiting callers hear nothing more.
        on_sent: told of every message as it leaves.
        on_committed: told when a member has learned that more is committed.
        on_refused: told when a member finds its store damaged, and stays down.
        gave_way_count: how often a leader began to hand over because of its slow disk.
        calm: members between which, and at which, nothing fails any more.
    """

    def __init__(
        self,
        settings: SimSettings,
        *,
        engine_type: type[Engine] = Engine,
        trace: Trace | None = None,
    ) -> None:
        self.settings = settings
        self.trace = trace
        self.now_ms = 0
        self.step_count = 0
        self.gave_way_count = 0
        self.rng = Random(f"cluster/{settings.seed}")
        self.network = SimNetwork(settings, Random(f"network/{settings.seed}"))
        self.voters = tuple(NodeId(f"n{number}") for number in range(settings.node_count))
        self.checker = StateChecker(self.voters)
        self.nodes = {node_id: self._make_node(node_id) for node_id in self.voters}
        self.calm: frozenset[NodeId] = frozenset()
        self.on_resolved: Callable[[SimNode, int, Outcome], None] = lambda _node, _token, _end: None
        self.on_stopped: Callable[[SimNode], None] = lambda _node: None
        self.on_sent: Callable[[SimNode, Message], None] = lambda _node, _message: None
        self.on_committed: Callable[[SimNode], None] = lambda _node: None
        self.on_refused: Callable[[SimNode], None] = lambda _node: None
        has_old_copies = bool(settings.fault_weights.get("old-copy"))
        meetings = Random(f"meetings/{settings.seed}")
        self._meetings = Meetings(self, meetings.randint) if has_old_copies else None
        self._engine_type = engine_type
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled_count = 0

    # The loop.

    def at(self, time_ms: int, action: Callable[..., object], *args: Any) -> None:
        """Call `action` at a moment of virtual time (at once, but not nested, when it has passed)."""
        self._scheduled_count += 1
        heappush(self._heap, (max(time_ms, self.now_ms), self._scheduled_count, action, args))

    def run_until(self, end_ms: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Run events until `is_done` or a moment.

        Returns:
            What `is_done` says at the end; False without it.

        Raises:
            StuckError: the group steps on and on without time passing.
        """
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            self.now_ms, _, action, args = heappop(heap)
            action(*args)
            if is_done is not None and is_done():
                return True
            if self.step_count > STEPS_MAX:
                raise StuckError(f"more than {STEPS_MAX} steps by {self.now_ms} ms")
        self.now_ms = max(self.now_ms, end_ms)
        return is_done is not None and is_done()

    # Members.

    def start(self, node: SimNode) -> None:
        """Open a member's store and let it take part; nothing when it is up, refuses or is frozen."""
        is_up = node.engine is not None or node.repair is not None
        if is_up or node.refusal or node.is_frozen:
            return
        config, local_ms = self._config(node.node_id), node.local_ms(self.now_ms)
        try:
            if self._meetings is not None:
                self._meetings.started(node)
            node.engine = self._engine_type(config, node.disk, draw=node.draw, now_ms=local_ms)
            applied_index = self._opened(node, node.engine)
        except (OSError, CorruptionError, DiskFailedError) as error:
            self.say(node, f"does not start: {error}")
            node.engine = None
            problem = is_repairable(config, error)
            if problem is not None:
                self._start_repair(node, StoreRepair(config, node.disk, problem))
                return
            if isinstance(error, CorruptionError):
                self._refuse_start(node, error)
                return
            if node.node_id in self.calm:
                raise
            self.start_later(node)
            return
        node.timer_ms = None
        self.say(
            node, f"starts, log ends at {node.engine.log.last_id}, vote {node.engine.node.vote}"
        )
        if node.engine.lost_vote is not None:
            self.checker.wiped(node.node_id)
        with self._disk_of(node):
            self.checker.started(node.node_id, node.engine)
            self.checker.restored(node.node_id, applied_index)
            self._drain(node, node.engine)
        if node.missed is not None:
            self.step(node, GiveUpVote())

    def _opened(self, node: SimNode, engine: Engine) -> int:
        """A store was opened. A group with a state machine restores it here.

        Returns:
            What the state machine contains already.

        Raises:
            CorruptionError, OSError: the member cannot start.
        """
        return 0

    def _refuse_start(self, node: SimNode, error: CorruptionError) -> None:
        """Nobody can mend a damaged store: the member stays down until its disk is replaced."""
        node.engine = None
        node.incarnation += 1
        node.refusal = str(error)
        self.say(node, f"refuses to start: {error}")
        self.on_refused(node)
        if node.node_id in self.calm:
            self.wipe(node)
            self.start_later(node)

    def _start_repair(self, node: SimNode, repair: StoreRepair) -> None:
        """A member's log is damaged: it only asks for entries until it is whole."""
        node.repair = repair
        self._carry_on_repair(node, node.incarnation)

    def _carry_on_repair(self, node: SimNode, incarnation: int) -> None:
        """Let a repair act, and come back when it wants to act again."""
        repair = node.repair
        if repair is None or node.incarnation != incarnation:
            return
        if node.paused_until_ms > self.now_ms:
            self.at(node.paused_until_ms, self._carry_on_repair, node, incarnation)
            return
        self.step_count += 1
        with self._disk_of(node):
            repair.tick(node.local_ms(self.now_ms))
            if not self._drain_repair(node, repair):
                due_ms = max(node.true_ms(repair.next_deadline_ms()), self.now_ms + 1)
                self.at(due_ms, self._carry_on_repair, node, incarnation)

    def _drain_repair(self, node: SimNode, repair: StoreRepair) -> bool:
        """Carry a repair's messages away; start the member when it is done, and say so."""
        for note in repair.notes:
            self.say(node, note)
        repair.notes.clear()
        for to, message in repair.take_outbox():
            self._post(node, to, message)
        if not repair.is_done:
            return False
        self.say(node, f"is repaired: {repair.repaired_count} entries")
        node.repair = None
        if repair.has_cut:
            self.checker.wiped(node.node_id)
        elif not repair.repaired_count:
            self._refuse_start(
                node, CorruptionError("data", 0, "a repair found nothing to ask for")
            )
            return True
        self.start(node)
        return True

    def stop(self, node: SimNode, *, power_loss: bool) -> None:
        """A member dies. Without power loss everything that it wrote is still there, synced or not."""
        if node.engine is None and node.repair is None:
            return
        power_loss = power_loss and self.settings.fsync and not node.is_damaged
        self.say(node, "loses power" if power_loss else "is killed")
        node.engine = node.repair = None
        node.incarnation += 1
        node.paused_until_ms = 0
        node.crashes_in_save = False
        if power_loss:
            is_harmless = self.rng.random() * 1000 >= self.settings.crash_fault_permille
            node.disk.crash(keep=1.0 if is_harmless else None)
        else:
            node.disk.restart()
        self.on_stopped(node)

    def pause(self, node: SimNode, until_ms: int) -> None:
        """A member does nothing for a while; what comes for it waits."""
        node.paused_until_ms = until_ms
        self.say(node, f"pauses until {until_ms}")

    def step(self, node: SimNode, event: Event) -> bool:
        """Give a member an event; False when it is down or pauses."""
        if node.engine is None or node.paused_until_ms > self.now_ms:
            return False
        self._step(node, node.engine, event)
        return True

    def leaders(self) -> list[SimNode]:
        """Members that are up, do not pause and lead; those of the past may not know it yet."""
        return [
            node
            for node in self.nodes.values()
            if node.engine is not None
            and node.engine.node.role is Role.LEADER
            and node.paused_until_ms <= self.now_ms
        ]

    def leader(self) -> SimNode | None:
        """The leader of the highest term among them."""
        best: SimNode | None = None
        best_term = -1
        for node in self.leaders():
            if node.engine is not None and node.engine.node.term > best_term:
                best, best_term = node, int(node.engine.node.term)
        return best

    def running(self) -> list[SimNode]:
        """Members that are up, in order of their names."""
        return [node for node in self.nodes.values() if node.engine is not None]

    def say(self, node: SimNode | None, text: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            name = node.node_id if node is not None else "*"
            self.trace.line(self.now_ms, name, node.engine if node is not None else None, text)

    # How a step goes.

    def _step(self, node: SimNode, engine: Engine, event: Event) -> None:
        """One event, and everything that follows from it at once."""
        self.step_count += 1
        with self._disk_of(node):
            engine.step(event, node.local_ms(self.now_ms))
            self._drain(node, engine)

    @contextmanager
    def _disk_of(self, node: SimNode) -> Iterator[None]:
        """A member whose disk fails stops, and starts again later."""
        try:
            yield
        except (OSError, DiskFailedError) as error:
            self.say(node, f"disk failed: {error}")
            self.stop(node, power_loss=False)
            self.start_later(node)
        except CorruptionError as error:
            self.stop(node, power_loss=False)
            self._refuse_start(node, error)

    def _drain(self, node: SimNode, engine: Engine) -> None:
        """Check what a step did, and carry its outputs away."""
        if self._meetings is not None:
            self._meetings.look_after(node)
        checker = self.checker
        checker.observe(node.node_id, engine)
        if self.trace is not None:
            self._trace_log(node, engine)
        for news in engine.take_news():
            self.say(node, describe_news(news))
            self.gave_way_count += isinstance(news, GivesWay)
        if engine.has_committed:
            self._check_leases(engine)
            self.on_committed(node)
        self._settle(node, engine)
        for to, message in engine.take_outbox():
            if isinstance(message, RepairRequest | RepairAnswer):
                self._post(node, to, message)
                continue
            checker.sent(node.node_id, to, message, engine)
            self._post(node, to, message)
            self.on_sent(node, message)
        if not engine.is_persisting and engine.has_unsaved:
            self._begin_job(node, engine)
        self._arm(node, engine)

    def _settle(self, node: SimNode, engine: Engine) -> None:
        """Hand out what is committed, and tell callers. Groups with a state machine do it their way."""
        while engine.has_committed:
            self.checker.handed_out(node.node_id, engine.take_committed(HANDED_OUT_BYTES_MAX))
        for token, outcome in engine.take_resolved():
            if self.trace is not None:
                self.say(node, f"answers call {token}: {describe_outcome(outcome)}")
            self.on_resolved(node, token, outcome)

    def _trace_log(self, node: SimNode, engine: Engine) -> None:
        """Trace where the log ends and how far it is committed, when a step has moved either."""
        log_state = f"log ends at {engine.log.last_id}, committed to {engine.node.commit_index}"
        if log_state != node.traced_log:
            node.traced_log = log_state
            self.say(node, log_state)

    def _check_leases(self, engine: Engine) -> None:
        """Once a leader commits, no leader of an earlier term may answer reads by its lease."""
        if engine.node.role is not Role.LEADER:
            return
        for other in self.leaders():
            past = other.engine
            if past is None or past.node.term >= engine.node.term:
                continue
            if past.node.has_lease(other.local_ms(self.now_ms)):
                raise Violation(
                    f"{other.node_id} has a lease of term {past.node.term} though the leader of "
                    f"term {engine.node.term} commits"
                )

    def _post(self, node: SimNode, to: NodeId, message: PeerMessage) -> None:
        """Let the network decide when a message arrives."""
        if self._meetings is not None and not self._meetings.may_speak(node, self.nodes[to]):
            if self.trace is not None:
                self.say(node, f"-> {to} {describe_message(message)} (no connection)")
            return
        if self.settings.wire:
            message = through_wire(message)
        arrivals = self.network.arrivals(node.node_id, to, self.now_ms)
        if self.trace is not None:
            when = ", ".join(str(arrival) for arrival in arrivals) or "never"
            self.say(node, f"-> {to} {describe_message(message)} (arrives {when})")
        for arrival in arrivals:
            self.at(arrival, self._deliver, self.nodes[to], message)

    def _deliver(self, node: SimNode, message: PeerMessage) -> None:
        """A message arrives, unless its link was cut meanwhile or its target is away."""
        engine = node.engine
        if not self.network.is_open(message.source, node.node_id):
            return
        if isinstance(message, RepairRequest | RepairAnswer):
            self._deliver_repair(node, message)
            return
        if engine is None:
            return
        if node.paused_until_ms > self.now_ms:
            self.at(node.paused_until_ms, self._deliver, node, message)
            return
        if self.trace is not None:
            self.say(node, f"<- {message.source} {describe_message(message)}")
        self._step(node, engine, Received(message))

    def _deliver_repair(self, node: SimNode, message: RepairMessage) -> None:
        """A request for lost entries, or an answer to one."""
        if node.engine is None and node.repair is None:
            return
        if node.paused_until_ms > self.now_ms:
            self.at(node.paused_until_ms, self._deliver_repair, node, message)
            return
        if self.trace is not None:
            self.say(node, f"<- {message.source} {describe_message(message)}")
        self.step_count += 1
        with self._disk_of(node):
            if node.repair is not None:
                node.repair.receive(message, node.local_ms(self.now_ms))
                self._drain_repair(node, node.repair)
            elif node.engine is not None:
                node.engine.repair(message, node.local_ms(self.now_ms))
                self._drain(node, node.engine)

    def _arm(self, node: SimNode, engine: Engine) -> None:
        """Schedule the next tick, unless an earlier one is scheduled that will look again."""
        due_ms = max(node.true_ms(engine.next_deadline_ms()), self.now_ms)
        if node.timer_ms is None or due_ms < node.timer_ms:
            node.timer_ms = due_ms
            self.at(due_ms, self._tick, node, node.incarnation, due_ms)

    def _tick(self, node: SimNode, incarnation: int, due_ms: int) -> None:
        """A scheduled moment has come: tick if the member's deadline has."""
        engine = node.engine
        if engine is None or node.incarnation != incarnation or node.timer_ms != due_ms:
            return
        if node.paused_until_ms > self.now_ms:
            node.timer_ms = node.paused_until_ms
            self.at(node.timer_ms, self._tick, node, incarnation, node.timer_ms)
            return
        node.timer_ms = None
        if engine.next_deadline_ms() > node.local_ms(self.now_ms):
            self._arm(node, engine)
            return
        if self.trace is not None:
            self.say(node, "tick")
        self._step(node, engine, Tick())

    # Saves.

    def _begin_job(self, node: SimNode, engine: Engine) -> None:
        """Start a persist job; it writes when it ends, so a crash before that loses all of it."""
        job = engine.begin_persist()
        if job is None:
            return
        self.at(self.now_ms + self._sync_ms(node), self._end_job, node, node.incarnation, job)

    def _sync_ms(self, node: SimNode) -> int:
        """How long a persist job takes."""
        if node.node_id in self.calm:
            return 0
        is_slow = node.slow_until_ms > self.now_ms
        most = self.settings.slow_sync_ms_max if is_slow else self.settings.sync_ms_max
        return int(self.rng.random() * (most + 1))

    def _end_job(self, node: SimNode, incarnation: int, job: PersistJob) -> None:
        """A persist job writes, syncs and ends; or its disk fails; or the power does, half way."""
        engine = node.engine
        if engine is None or node.incarnation != incarnation:
            return
        if node.paused_until_ms > self.now_ms:
            self.at(node.paused_until_ms, self._end_job, node, incarnation, job)
            return
        self.step_count += 1
        now_local_ms = node.local_ms(self.now_ms)
        if node.crashes_in_save:
            self._crash_in_save(node, job)
            return
        try:
            job.run()
        except DiskFullError as error:
            self.say(node, f"no room: {error}")
            self.at(self.now_ms + FULL_RETRY_MS, self._end_job, node, incarnation, job)
            self._step(node, engine, StepDown("the disk is full"))
            return
        except (OSError, DLedgerError) as error:
            self.say(node, f"save failed: {error}")
            engine.fail_persist(job, error, now_local_ms)
            with self._disk_of(node):
                self._drain(node, engine)
            self.stop(node, power_loss=False)
            self.start_later(node)
            return
        with self._disk_of(node):
            engine.end_persist(job, now_local_ms)
            if self.trace is not None:
                self.say(node, f"saved, durable to {engine.log.durable_index}")
            self._drain(node, engine)

    def _crash_in_save(self, node: SimNode, job: PersistJob) -> None:
        """The power fails at one of a job's writes, or when all are done and nobody knows yet."""
        nth = self.rng.randint(1, SAVE_WRITES_MAX)
        node.disk.fail_write(nth)
        try:
            job.run()
        except (OSError, DLedgerError):
            self.say(node, f"crashes at write {nth} of a save")
        else:
            self.say(node, "crashes at the end of a save")
        self.stop(node, power_loss=True)
        self.start_later(node)

    # The world.

    def wipe(self, node: SimNode) -> None:
        """A stopped member's disk is replaced by an empty one."""
        assert node.engine is None, f"{node.node_id} is up"
        fired = node.disk.fired
        node.disk = SimDisk(Random(f"disk/{self.settings.seed}/{node.node_id}/{node.incarnation}"))
        node.disk.fired = fired
        node.member = node.old_disk = None
        node.refusal = ""
        node.is_damaged = node.is_outdated = False
        node.flipped_snapshots.clear()
        self.say(node, "gets an empty disk")
        self.checker.wiped(node.node_id)

    def put_back(self, node: SimNode) -> None:
        """A stopped member's disk is replaced by the copy that was made of it."""
        assert node.engine is None, f"{node.node_id} is up"
        assert node.old_disk is not None, f"{node.node_id} has no copy"
        fired = node.disk.fired
        node.disk = node.old_disk
        node.disk.fired = fired
        node.member = node.old_disk = None
        node.is_outdated = True
        self.say(node, "gets an old copy of its disk")
        self.checker.wiped(node.node_id)

    def start_later(self, node: SimNode) -> None:
        """Start a stopped member after a while."""
        pause_ms = 1 + int(self.rng.random() * self.settings.restart_ms_max)
        self.at(self.now_ms + pause_ms, self.start, node)

    def calm_down(self, members: Iterable[NodeId], *, is_cut_off: bool = False) -> None:
        """Heal these members and the links between them, and start them; the others are frozen as they are.

        What is down there stays down, what pauses goes on pausing, what is cut stays cut; with
        `is_cut_off` nothing at all goes between the two.
        """
        self.calm = frozenset(members)
        if is_cut_off:
            self.network.cut_both(self.calm, self.nodes.keys() - self.calm)
        self.network.calm_down(self.calm)
        for node in self.nodes.values():
            node.is_frozen = node.node_id not in self.calm
            if node.is_frozen:
                node.paused_until_ms = NEVER_MS if node.paused_until_ms > self.now_ms else 0
                continue
            if node.refusal:
                self.wipe(node)
            node.disk.forget_faults()
            node.disk.capacity_bytes = None
            node.crashes_in_save = False
            if node.paused_until_ms == NEVER_MS:
                self._wake(node)
            node.paused_until_ms = 0
            self.start(node)

    def _wake(self, node: SimNode) -> None:
        """A pause without an end has ended: what waits for that is due now."""
        for place, (_, number, action, args) in enumerate(self._heap):
            if (
                args
                and args[0] is node
                and action
                in {
                    self._deliver,
                    self._deliver_repair,
                    self._carry_on_repair,
                    self._tick,
                    self._end_job,
                }
            ):
                self._heap[place] = (self.now_ms, number, action, args)
        heapify(self._heap)

    def _make_node(self, node_id: NodeId) -> SimNode:
        """A member with an empty disk and a clock of its own."""
        settings = self.settings
        drift_max = settings.drift_permille_max
        draws = Random(f"draws/{settings.seed}/{node_id}")
        return SimNode(
            node_id,
            SimDisk(Random(f"disk/{settings.seed}/{node_id}")),
            draws.randint,
            clock_zero_ms=self.rng.randint(0, 100_000),
            clock_drift_permille=self.rng.randint(-drift_max, drift_max),
        )

    def _config(self, node_id: NodeId) -> LogConfig:
        """A member's settings, small bounds everywhere."""
        settings = self.settings
        raft = RaftConfig(
            node_id=node_id,
            voters=self.voters,
            heartbeat_interval_ms=settings.heartbeat_ms,
            lease_ms=settings.lease_ms,
            election_timeout_min_ms=settings.election_min_ms,
            election_timeout_max_ms=settings.election_max_ms,
            entries_bytes_max=settings.entries_bytes_max,
            entries_count_max=settings.entries_count_max,
            inflight_requests_max=settings.inflight_max,
            transfer_timeout_ms=settings.transfer_ms,
            pending_proposals_max=settings.pending_max,
            reads_pending_max=settings.reads_max,
            preferred_leaders=self.voters[:1] if settings.prefers_first else (),
            slow_disk_ms=settings.slow_disk_ms,
        )
        raft.validate()
        peers = tuple(
            Peer(voter, "127.0.0.1", 1 + place) for place, voter in enumerate(self.voters)
        )
        return LogConfig(
            group="sim",
            peers=peers,
            store_path="",
            raft=raft,
            segment_size_bytes=settings.segment_size_bytes,
            cache_bytes_max=settings.cache_bytes_max,
            fsync=settings.fsync,
        )
