"""A whole group in one process: engines over simulated disks and a simulated network, in virtual time.

Nothing here decides what goes wrong: faults and clients are callers of this module (sim_faults.py,
sim_clients.py, and tests directly). Time and the heap of events are `sim_loop.py`'s, persist jobs
`sim_saves.py`'s, repairs before a start `sim_repairs.py`'s.

A member's disk outlives it. Its clock runs at its own rate and from its own zero, so code that
compares the clocks of two members is found out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random

from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import CorruptionError, DiskFailedError
from dledger.raft.configuration import Configuration, MemberChange
from dledger.raft.effects import HandsOver, Outcome, Role
from dledger.raft.events import (
    Event,
    GiveUpVote,
    MembersRequested,
    Received,
    Tick,
    TransferRequested,
)
from dledger.raft.ids import NO_INDEX, Index, NodeId, Term
from dledger.raft.messages import Message, PeerMessage, RepairAnswer, RepairRequest
from dledger.repair.store_repair import REPAIRS_MAX, StoreRepair, is_repairable
from dledger.storage.member_file import MemberFile
from dledger.testing.core_trace import effect_line, message_line, outcome_line, span_line
from dledger.testing.sim_config import log_config
from dledger.testing.sim_disk import SimDisk
from dledger.testing.sim_loads import Loads
from dledger.testing.sim_loop import SimLoop
from dledger.testing.sim_meetings import Meetings
from dledger.testing.sim_network import SimNetwork, through_wire
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_repairs import Repairs
from dledger.testing.sim_saves import Saves
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_standstill import Standstills
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import StateChecker, Violation

HANDED_OUT_BYTES_MAX = 4096
"""Committed entries are taken in such portions, so that taking a part is exercised too."""

STATES = (
    "died-in-save",
    "entries-loaded",
    "lost-unsynced",
    "learner-added",
    "leader-removed",
    "lost-vote",
    "member-removed",
    "no-room",
    "old-copy-noticed",
    "older-term-committed",
    "re-elected",
    "readmitted",
    "repaired-before-start",
    "repaired-live",
    "save-failed",
    "slow-disk-handover",
    "start-failed",
    "stopped-in-order",
    "torn",
    "truncated",
    "voter-added",
)
"""The states that runs are to lead to (docs/testing.md explains each); `SimCluster.reached` counts them."""

DISK_FAILURES = (OSError, DiskFailedError, CorruptionError)
"""Errors of a disk, which end the member that has it."""

FIRST_ORDER = -1_000
"""The tokens of orders go down from here; those of clients go up from 1."""

NEVER_MS = 1 << 60
"""A moment that no run reaches."""


class SimCluster(SimLoop):
    """The members, their world, and the loop that runs them.

    Attributes:
        voters: that the group begins with.
        node_ids: all nodes, those that are no members included.
        on_resolved: called with every outcome, after the step that brought it.
        on_stopped: called when a member has stopped; its waiting callers hear nothing more.
        on_sent: called with every message as it leaves.
        on_committed: called when a member has learned that more is committed.
        on_refused: called when a member finds its store damaged, and stays down.
        reached: how often the group came to each of `STATES`.
        leaders_allowed: how many terms may be led so far; None: any number.
        leaving: members that are told to stop, until they start again.
        calm: members between which, and at which, nothing fails any more.
    """

    def __init__(
        self,
        settings: SimSettings,
        *,
        engine_type: type[Engine] = Engine,
        trace: Trace | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.trace = trace
        self.reached: Counter[str] = Counter()
        self.rng = Random(f"cluster/{settings.seed}")
        self.network = SimNetwork(settings, Random(f"network/{settings.seed}"))
        self.voters = tuple(NodeId(f"n{number}") for number in range(settings.node_count))
        spare_count = settings.spare_count if settings.changes_members else 0
        names = range(settings.node_count + spare_count)
        self.node_ids = tuple(NodeId(f"n{number}") for number in names)
        self.checker = StateChecker(self.node_ids, is_alone=len(self.voters) == 1)
        self.nodes = {node_id: self._make_node(node_id) for node_id in self.node_ids}
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
        self._saves = Saves(self)
        self._loads = Loads(self)
        self._repairs = Repairs(self)
        self._standstills = Standstills(self)
        self.leaders_allowed: int | None = None
        self.leaving: set[NodeId] = set()
        self._orders: dict[int, Callable[[Outcome], None]] = {}

    # Members.

    def start(self, node: SimNode) -> None:
        """Start a member on its store; do nothing when it is up, frozen, or refuses to start."""
        is_up = node.engine is not None or node.repair is not None
        if is_up or node.refusal or node.is_frozen:
            return
        self.leaving.discard(node.node_id)
        node.wall_jump_ms = 0  # also one that came while it was down
        config, local_ms = self.config_of(node.node_id), node.local_ms(self.now_ms)
        try:
            if self._meetings is not None:
                self._meetings.started(node)
            node.engine = self._engine_type(config, node.disk, draw=node.draw, now_ms=local_ms)
            applied_index = self._opened(node, node.engine)
        except (OSError, CorruptionError, DiskFailedError) as error:
            node.engine = None
            self._did_not_start(node, config, error)
            return
        node.timer_ms = None
        node.repair_count = 0
        self.trace_line(
            node, f"starts, log ends at {node.engine.log.last_id}, vote {node.engine.node.vote}"
        )
        if node.engine.lost_vote is not None:
            self.reached["lost-vote"] += 1
            self.checker.wiped(node.node_id)
        with self.disk_of(node):
            with node.disk.only_looked_at():
                self.checker.started(node.node_id, node.engine)
            self.checker.restored(node.node_id, applied_index)
            self.drain(node, node.engine)
        if node.missed is not None:
            self.step(node, GiveUpVote())

    def _did_not_start(self, node: SimNode, config: LogConfig, error: Exception) -> None:
        """Start the repair of a damaged store, or schedule another start after a failure of the disk."""
        self.trace_line(node, f"does not start: {error}")
        self.reached["start-failed"] += 1
        problem = is_repairable(config, error)
        if problem is not None and node.repair_count < REPAIRS_MAX:
            try:
                repair = StoreRepair(config, node.disk, problem)
            except (OSError, DiskFailedError) as another:
                self.trace_line(node, f"does not even repair: {another}")
                error, problem = another, None
            else:
                self._repairs.start(node, repair)
                return
        if problem is not None or isinstance(error, CorruptionError):
            self.refuse_start(node, problem or error)
            return
        if node.node_id in self.calm:
            raise error
        self.start_later(node)

    def _opened(self, node: SimNode, engine: Engine) -> Index:
        """Note that a store was opened. A group with a state machine restores it here.

        Returns:
            What the state machine contains already.

        Raises:
            CorruptionError, OSError: the member cannot start.
        """
        return NO_INDEX

    def refuse_start(self, node: SimNode, error: Exception) -> None:
        """Keep a member down, since nobody can repair its store, until its disk is replaced."""
        node.engine = None
        node.life += 1
        node.refusal = str(error)
        self.trace_line(node, f"refuses to start: {error}")
        self.on_refused(node)
        if node.node_id in self.calm:
            self.wipe(node)
            self.start_later(node)

    def stop(self, node: SimNode, *, power_loss: bool) -> None:
        """Kill a member. Without power loss everything that it wrote is still there, synced or not."""
        if node.engine is None and node.repair is None:
            return
        power_loss = power_loss and self.settings.fsync and not node.is_damaged
        self._saves.died(node)
        self._standstills.died(node)
        self.trace_line(node, "loses power" if power_loss else "is killed")
        node.engine = node.repair = None
        node.repair_count = 0
        node.life += 1
        node.paused_until_ms = 0
        node.crashes_in_save = False
        if power_loss:
            is_harmless = self.rng.random() * 1000 >= self.settings.crash_fault_permille
            node.disk.crash(keep=1.0 if is_harmless else None)
        else:
            node.disk.restart()
        self.on_stopped(node)

    def pause(self, node: SimNode, until_ms: int) -> None:
        """Pause a member for a while; messages for it wait."""
        node.paused_until_ms = until_ms
        self.trace_line(node, f"pauses until {until_ms}")
        if self.settings.sockets:
            self._standstills.begin(node)

    def step(self, node: SimNode, event: Event) -> bool:
        """Step a member with an event; return False when it is down or paused."""
        if node.engine is None or node.pauses(self.now_ms):
            return False
        self._step(node, node.engine, event)
        return True

    def order_transfer(self, node: SimNode, answered: Callable[[Outcome], None]) -> None:
        """Let a member hand leadership over to whom it finds best; `answered` hears the outcome, unless it dies."""
        self.order(node, lambda token: TransferRequested(None, token), answered)

    def order(
        self, node: SimNode, event: Callable[[int], Event], answered: Callable[[Outcome], None]
    ) -> bool:
        """Give a member an order, made with a token; return False when it is down or paused."""
        token = FIRST_ORDER - len(self._orders)
        self._orders[token] = answered
        return self.step(node, event(token))

    def order_members(
        self, node: SimNode, change: MemberChange, answered: Callable[[Outcome], None]
    ) -> bool:
        """Let a member change the members by one; `answered` hears the outcome, unless it dies.

        Returns:
            Whether it was told: not if it is down or pauses.
        """
        return self.order(node, lambda token: MembersRequested(change, token), answered)

    def configuration(self) -> Configuration:
        """Return the last members that are known to be committed."""
        return self.checker.configuration or Configuration(self.voters)

    def open_configurations(self) -> list[Configuration]:
        """Return those, and each other one that a node goes by, down or up: it may be committed yet."""
        seen = [node.configuration for node in self.nodes.values() if node.configuration]
        return [self.configuration(), *seen]

    def is_quiet(self, node: SimNode) -> bool:
        """Return whether nobody waits for an answer of this member."""
        return node.engine is None or not node.engine.node.pending_count

    def leaders(self) -> list[SimNode]:
        """Return the running members that believe to lead, deposed leaders included that do not know it yet."""
        return [
            node
            for node in self.nodes.values()
            if node.engine is not None
            and node.engine.node.role is Role.LEADER
            and not node.pauses(self.now_ms)
        ]

    def leader(self) -> SimNode | None:
        """Return the leader of the highest term; None while nobody leads."""
        best: SimNode | None = None
        best_term = -1
        for node in self.leaders():
            if node.engine is not None and node.engine.node.term > best_term:
                best, best_term = node, int(node.engine.node.term)
        return best

    def running(self) -> list[SimNode]:
        """Return the members that are up, in order of their names."""
        return [node for node in self.nodes.values() if node.engine is not None]

    def trace_line(self, node: SimNode | None, text: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            name = node.node_id if node is not None else "*"
            self.trace.line(self.now_ms, name, node.engine if node is not None else None, text)

    # How a step goes.

    def _step(self, node: SimNode, engine: Engine, event: Event) -> None:
        """Step a member with one event, and carry out everything that follows from it at once."""
        self.step_count += 1
        try:  # as `disk_of`, whose block costs as much as a short step
            engine.step(event, node.local_ms(self.now_ms))
            self.drain(node, engine)
        except DISK_FAILURES as error:
            self._disk_failed(node, error)

    @contextmanager
    def disk_of(self, node: SimNode) -> Iterator[None]:
        """Stop a member if its disk fails within the block, and start it again later."""
        try:
            yield
        except DISK_FAILURES as error:
            self._disk_failed(node, error)

    def _disk_failed(self, node: SimNode, error: Exception) -> None:
        if isinstance(error, CorruptionError):
            self.stop(node, power_loss=False)
            self.refuse_start(node, error)
            return
        self.trace_line(node, f"disk failed: {error}")
        self.stop(node, power_loss=False)
        self.start_later(node)

    def drain(self, node: SimNode, engine: Engine) -> None:
        """Check a member after a step, then send its messages and resolve its tokens."""
        if self._meetings is not None:
            self._meetings.look_after(node)
        checker = self.checker
        with node.disk.only_looked_at():
            checker.observe(node.node_id, engine)
        if self.trace is not None:
            self._trace_log(node, engine)
        self._take_news(node, engine)
        self._check_leadership(node, engine)
        if engine.has_committed:
            self._check_leases(engine)
            self.on_committed(node)
        self._settle(node, engine)
        for to, message in engine.take_outbox():
            if isinstance(message, RepairRequest | RepairAnswer):
                self.post(node, to, message)
                continue
            checker.sent(node.node_id, to, message, engine)
            self.post(node, to, message)
            self.on_sent(node, message)
        self._loads.begin(node, engine)
        if not engine.is_persisting and engine.has_unsaved:
            self._saves.begin(node, engine)
        self.arm(node, engine)

    def _take_news(self, node: SimNode, engine: Engine) -> None:
        """Trace and count what a member says of itself."""
        if self.settings.changes_members:
            node.configuration = engine.node.configuration
        for news in engine.take_news():
            self.trace_line(node, effect_line(news))
            self.reached["slow-disk-handover"] += isinstance(news, HandsOver)

    def _settle(self, node: SimNode, engine: Engine) -> None:
        """Hand out committed entries and answer callers; groups with a state machine override this."""
        while engine.has_committed:
            self.checker.handed_out(node.node_id, engine.take_committed(HANDED_OUT_BYTES_MAX))
        for token, outcome in engine.take_resolved():
            if self.trace is not None:
                self.trace_line(node, f"answers call {token}: {outcome_line(outcome)}")
            self.resolve(node, token, outcome)

    def resolve(self, node: SimNode, token: int, outcome: Outcome) -> None:
        """Tell whoever asked how it ended."""
        if token in self._orders:
            self._orders[token](outcome)
        else:
            self.on_resolved(node, token, outcome)

    def _trace_log(self, node: SimNode, engine: Engine) -> None:
        """Trace the log's end and the commit index if a step has changed one of them."""
        log_state = f"log ends at {engine.log.last_id}, committed to {engine.node.commit_index}"
        if log_state != node.traced_log:
            node.traced_log = log_state
            self.trace_line(node, log_state)

    def _check_leadership(self, node: SimNode, engine: Engine) -> None:
        """Check that each leader is justified, and that none has a lease although its successor has committed."""
        checker = self.checker
        allowed = self.leaders_allowed
        if allowed is not None and checker.leader_count > allowed:
            raise Violation(
                f"{node.node_id} leads term {engine.node.term} though nothing is wrong with the leader before"
            )
        if engine.node.role is Role.LEADER and checker.newest_commit_term > engine.node.term:
            self._check_lease(node, engine, checker.newest_commit_term)

    def _check_lease(self, node: SimNode, engine: Engine, later_term: Term) -> None:
        if engine.node.has_lease(node.local_ms(self.now_ms)):
            raise Violation(
                f"{node.node_id} has a lease of term {engine.node.term} though the leader of "
                f"term {later_term} commits"
            )

    def _check_leases(self, engine: Engine) -> None:
        """Check that, once a leader commits, no leader of an earlier term may answer reads by its lease."""
        if engine.node.role is not Role.LEADER:
            return
        for other in self.leaders():
            past = other.engine
            if past is None or past.node.term >= engine.node.term:
                continue
            self._check_lease(other, past, engine.node.term)

    def post(self, node: SimNode, to: NodeId, message: PeerMessage) -> None:
        """Let the network decide when a message arrives."""
        if self._meetings is not None and not self._meetings.may_speak(node, self.nodes[to]):
            if self.trace is not None:
                self.trace_line(node, f"-> {to} {message_line(message, span_line)} (no connection)")
            return
        if self.settings.wire:
            message = through_wire(message)
        arrivals = self.network.arrivals(node.node_id, to, self.now_ms)
        if self.trace is not None:
            when = ", ".join(str(arrival) for arrival in arrivals) or "never"
            self.trace_line(node, f"-> {to} {message_line(message, span_line)} (arrives {when})")
        for arrival in arrivals:
            self.at(arrival, self._deliver, self.nodes[to], message)

    def _deliver(self, node: SimNode, message: PeerMessage) -> None:
        """Deliver a message, unless its link was cut meanwhile or its target is down."""
        engine = node.engine
        if not self.network.is_open(message.source, node.node_id):
            return
        if isinstance(message, RepairRequest | RepairAnswer):
            self._repairs.deliver(node, message)
            return
        if engine is None:
            return
        if node.still_since_ms is not None:
            self._standstills.came(node, message)
            return
        if node.paused_until_ms > self.now_ms:
            self.at(node.paused_until_ms, self._deliver, node, message)
            return
        if self.trace is not None:
            self.trace_line(node, f"<- {message.source} {message_line(message, span_line)}")
        self._step(node, engine, Received(message))

    def arm(self, node: SimNode, engine: Engine) -> None:
        """Schedule the next tick, unless an earlier one is scheduled, which will reschedule itself."""
        due_ms = max(node.true_ms(engine.next_deadline_ms()), self.now_ms)
        if node.timer_ms is None or due_ms < node.timer_ms:
            node.timer_ms = due_ms
            self.at(due_ms, self._tick, node, node.life, due_ms)

    def _tick(self, node: SimNode, life: int, due_ms: int) -> None:
        """Tick at a scheduled moment, if the member's deadline has come."""
        engine = node.engine
        if engine is None or node.life != life or node.timer_ms != due_ms:
            return
        if node.still_since_ms is not None:
            node.timer_ms = None  # it is looked at when it runs again
            return
        if node.paused_until_ms > self.now_ms:
            node.timer_ms = node.paused_until_ms
            self.at(node.timer_ms, self._tick, node, life, node.timer_ms)
            return
        node.timer_ms = None
        if engine.next_deadline_ms() > node.local_ms(self.now_ms):
            self.arm(node, engine)
            return
        if self.trace is not None:
            self.trace_line(node, "tick")
        self._step(node, engine, Tick())

    # The world.

    def wipe(self, node: SimNode) -> None:
        """Replace a stopped member's disk by an empty one."""
        assert node.engine is None, f"{node.node_id} is up"
        fired = node.disk.fired
        node.disk = SimDisk(Random(f"disk/{self.settings.seed}/{node.node_id}/{node.life}"))
        node.disk.fired = fired
        node.member = node.old_disk = None
        node.configuration = None
        # Whoever brings it back knows that the group exists.
        node.joins = node.joins or self.settings.changes_members
        node.refusal = ""
        node.is_damaged = node.is_outdated = False
        node.flipped_snapshots.clear()
        self.trace_line(node, "gets an empty disk")
        self.checker.wiped(node.node_id)

    def put_back(self, node: SimNode) -> None:
        """Replace a stopped member's disk by an older copy of it."""
        assert node.engine is None, f"{node.node_id} is up"
        assert node.old_disk is not None, f"{node.node_id} has no copy"
        fired = node.disk.fired
        node.disk = node.old_disk
        node.disk.fired = fired
        node.copied_start = MemberFile.open(node.disk).record.start
        node.member = node.old_disk = None
        node.is_outdated = True
        self.trace_line(node, "gets an old copy of its disk")
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
            self._standstills.end(node, node.life)
            self.start(node)

    def _wake(self, node: SimNode) -> None:
        """End an unlimited pause, and make its waiting events due now."""
        self.hurry(
            node,
            (
                self._deliver,
                self._repairs.deliver,
                self._repairs.carry_on,
                self._tick,
                self._saves.end,
            ),
        )

    def _make_node(self, node_id: NodeId) -> SimNode:
        """Make a member with an empty disk and a clock of its own."""
        settings = self.settings
        draws = Random(f"draws/{settings.seed}/{node_id}")
        return SimNode(
            node_id,
            SimDisk(Random(f"disk/{settings.seed}/{node_id}")),
            draws.randint,
            clock_zero_ms=self.rng.randint(0, 100_000),
            clock_drift_permille=self._draw_drift(),
        )

    def _draw_drift(self) -> int:
        most = self.settings.drift_permille_max
        if self.settings.drifts_apart:
            return self.rng.choice((-most, most))
        return self.rng.randint(-most, most)

    def config_of(self, node_id: NodeId) -> LogConfig:
        """Return a member's settings."""
        if not self.settings.changes_members:
            return log_config(self.settings, self.voters, node_id)
        members = {node_id, *self.configuration().members}
        return log_config(
            self.settings,
            self.voters,
            node_id,
            known=[each for each in self.node_ids if each in members],
            joins=self.nodes[node_id].joins or node_id not in self.voters,
        )
