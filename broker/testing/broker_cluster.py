"""A group of simulated brokers: `SimCluster` with a broker over every member, and their snapshots.

The engine's steps and the brokers' callbacks meet in `_settle`, in the order of the real driver's pass.

Nothing here knows what clients do.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

from broker.server.config import BrokerConfig
from broker.server.controller import BrokerController
from broker.service.retention import RetentionRules
from broker.store.recent_sends import AGE_MAX_MS, RecentSends
from broker.store.state import BrokerState
from broker.testing.answers import Answers
from broker.testing.model import LIMITS, BrokerModel
from broker.testing.pop_answers import PopAnswers
from broker.testing.pop_model import POP_GROUP, POP_GROUPS
from broker.testing.settings import REPEAT_AGE_MS, BrokerSimSettings
from broker.testing.sim_broker import SimBroker, address_of
from broker.testing.taking_in import TakingIn
from broker.testing.wires import SimConnection, Wires
from dledger.codec.snapshot import SnapshotMeta
from dledger.config import parse_peers
from dledger.engine import Engine
from dledger.errors import CorruptionError, DLedgerError, RefusedError
from dledger.raft.configuration import MemberChange
from dledger.raft.effects import Failed, Outcome
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId
from dledger.starting_state import StartingState, check_restored, restore_newest
from dledger.state_machine import SnapshotOvertakenError, SnapshotRefusedError
from dledger.storage.snapshot_parts import SUFFIXES, number_of
from dledger.storage.snapshots import SnapshotFile, SnapshotStore, SnapshotWriter, Written
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import Violation
from dledger_mq.net.address import Address

DELAYS_MS = (150, 400, 900, 1500)
CHECK_TIMEOUT_MS = 400
CHECK_INTERVAL_MS = 300
CHECK_MAX = 4
FETCH_INTERVAL_MS = 100
FORGET_ROUND_MS = 200
DIGEST_EVERY = 5
STARTS_MAX = 4
"""Of a member whose snapshots have lost parts: one for each that it keeps, one without, one more."""
"""Entries between two comparisons of the digests of a replica with those of the first that was there."""


class BrokerCluster(SimCluster):
    """The brokers of one group.

    Attributes:
        brokers: by member; those of members that are down have ended.
        model: judges what they do.
        answers, pop_answers: judge the answers that clients read.
        wires: between them, and to their clients.
        counts: snapshots taken, restored and fetched.
    """

    def __init__(
        self,
        settings: BrokerSimSettings,
        *,
        engine_type: type[Engine] = Engine,
        state_type: type[BrokerState] = BrokerState,
        controller_type: type[BrokerController] = BrokerController,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(settings, engine_type=engine_type, trace=trace)
        self.brokers: dict[NodeId, SimBroker] = {}
        self.model = BrokerModel(REPEAT_AGE_MS if settings.forget_bytes else AGE_MAX_MS)
        self.answers = Answers(self.model)
        self.pop_answers = PopAnswers(self.model.pops, self.model)
        self.wires = Wires(self, settings)
        self.counts: Counter[str] = Counter()
        self.controller_type = controller_type
        self.wall_offset_ms_max = settings.wall_offset_ms_max
        self.pop_return_ms = settings.pop_return_ms
        if settings.popper_count:
            is_ordered = settings.pop_ordered_permille > 0
            self.model.pops.groups = POP_GROUPS if is_ordered else (POP_GROUP,)
        self.model.pops.return_ms = settings.pop_return_ms
        self.model.pops.retries_max = settings.pop_retries_max
        self.on_stopped = self._broker_stopped
        self._state_type = state_type
        self._broker_settings = settings
        self._chance = Random(f"brokers/{settings.seed}")
        self._newest: dict[NodeId, SnapshotFile | None] = {}
        self._older: dict[NodeId, SnapshotFile | None] = {}
        self._stores: dict[NodeId, SnapshotStore] = {}
        self._taking_in = TakingIn(
            self,
            self._taken_in,
            Random(f"taking in/{settings.seed}"),
            settings.snapshot_step_ms_max,
        )

    # What the brokers ask.

    def run_pass(self, node: SimNode, engine: Engine) -> None:
        """Carry out the effects of an engine whose broker has proposed an entry."""
        with self.disk_of(node):
            if engine.failure is not None:
                raise engine.failure
            self.drain(node, engine)

    def order_transfer(self, node: SimNode, answered: Callable[[Outcome], None]) -> None:
        """See `SimCluster`; here the order goes through the broker's log server."""
        with self.disk_of(node):
            try:
                self.brokers[node.node_id].driver.request_transfer(None, answered)
            except RefusedError as error:
                answered(Failed(error))

    def order_members(
        self, node: SimNode, change: MemberChange, answered: Callable[[Outcome], None]
    ) -> bool:
        """See `SimCluster`; here the order goes through the broker's log server."""
        if node.engine is None or node.pauses(self.now_ms):
            return False
        with self.disk_of(node):
            try:
                self.brokers[node.node_id].driver.request_members(change, answered)
            except DLedgerError as error:
                answered(Failed(error))
        return True

    def is_quiet(self, node: SimNode) -> bool:
        """Return whether no client waits for an answer of this member's broker."""
        return node.engine is None or self.brokers[node.node_id].controller.is_quiet

    def connect(self, source: NodeId | str, target: NodeId) -> SimConnection | None:
        """Return a new connection to a member's broker; None when it cannot be reached.

        `source` is a member, or a client's `host:port`.
        """
        node, broker = self.nodes[target], self.brokers.get(target)
        if node.engine is None or broker is None:
            return None
        member = NodeId(source) if source in self.nodes else None
        if member is not None and not self.network.is_open(member, target):
            return None
        name = f"127.0.0.1:{30_000 + self._chance.randrange(20_000)}" if member else str(source)
        near, far = self.wires.connect(
            name, str(address_of(target)), client_node=member, server_node=target
        )
        broker.accept(far)
        return near

    def applied(self, broker: SimBroker, node: SimNode, entry: Entry) -> None:
        """Compare a broker, which has folded an entry, with the model."""
        self.checker.handed_out(node.node_id, [entry])
        looks_closely = entry.index % DIGEST_EVERY == 0
        self.model.applied(broker.state, entry, now_ms=self.now_ms, looks_closely=looks_closely)

    # How a member lives.

    def _opened(self, node: SimNode, engine: Engine) -> Index:
        """Start a member's broker from its newest snapshot, which must equal a replay of the log up to its index."""
        state, found = self._restored(node, engine)
        newest = found.newest
        self._look_at_flipped(node, newest)
        found.let_go_on(engine, state.applied_index)
        if newest is not None:
            self.counts["snapshot-restored"] += 1
            self.model.compare_with_replay(state)
        self._newest[node.node_id], self._older[node.node_id] = newest, found.older
        self.brokers[node.node_id] = SimBroker(
            self, node, engine, state=state, config=self._broker_config(node.node_id)
        )
        self._schedule_snapshot(node, node.life)
        if engine.is_new_store:
            self.at(self.now_ms + FETCH_INTERVAL_MS, self._fetch, node, node.life)
        return state.applied_index

    def _restored(self, node: SimNode, engine: Engine) -> tuple[BrokerState, StartingState]:
        """Return the state of the newest snapshot, and read the parts in which it stands at once.

        A broker does that soon after its start; where it finds a part lost it stops, and starts anew.
        """
        for _ in range(STARTS_MAX):
            state = self._state_type(limits=LIMITS)
            if self._broker_settings.forget_bytes:
                state.recent_sends = RecentSends(REPEAT_AGE_MS)
            store = self._stores[node.node_id] = SnapshotStore(node.disk)
            found = restore_newest(store, state, engine.log)
            for reason in found.refused:
                self._demand_parts(node, reason)
            while (part := store.in_use.unverified()) is not None:
                self.counts["served-from-parts"] += 1
                with suppress(CorruptionError):  # it is noted there
                    part.verify()
            lost = store.in_use.set_lost_aside()
            if lost is None:
                return state, found
            self._demand_parts(node, str(lost))
            self.trace_line(node, f"starts anew: {lost}")
        raise OSError(errno.EIO, f"{node.node_id} cannot set a lost part aside")

    def _look_at_flipped(self, node: SimNode, used: SnapshotFile | None) -> None:
        """Demand that a damaged snapshot is noticed and not used."""
        found = (path for path in node.flipped_snapshots if node.is_flipped(path))
        flipped = [path for path in found if number_of(path.rpartition("/")[2]) is None]
        self.counts["snapshot-refused"] += len(flipped)
        if used is not None and used.path in flipped:
            raise Violation(f"{node.node_id} was restored from {used.path}, which is damaged")

    def _settle(self, node: SimNode, engine: Engine) -> None:
        broker = self.brokers[node.node_id]
        if broker.driver.engine is engine:
            broker.after_step()

    def _broker_stopped(self, node: SimNode) -> None:
        broker = self.brokers.get(node.node_id)
        if broker is not None:
            broker.stopped(power_loss=self._chance.random() < 0.5)

    def _broker_config(self, node_id: NodeId) -> BrokerConfig:
        """Configure a member with the model's delays and check times, which the checks of a run rely on."""
        peers = ";".join(
            f"{name}-127.0.0.1:{1 + place}" for place, name in enumerate(self.node_ids)
        )
        return BrokerConfig(
            group="sim",
            broker_name="sim",
            node_id=str(node_id),
            peers=parse_peers(peers),
            store_path="",
            listen=Address("127.0.0.1", address_of(node_id).port),
            delay_levels_ms=DELAYS_MS,
            default_topic_queues=self._broker_settings.queue_count,
            transaction_timeout_ms=CHECK_TIMEOUT_MS,
            transaction_check_interval_ms=CHECK_INTERVAL_MS,
            transaction_check_max=CHECK_MAX,
            retention=RetentionRules(
                bytes_max=self._broker_settings.forget_bytes, round_ms=FORGET_ROUND_MS
            ),
        )

    # Snapshots, as `Snapshotter` takes them.

    def _alive(self, node: SimNode, life: int) -> bool:
        return node.life == life and node.engine is not None

    def _schedule_snapshot(self, node: SimNode, life: int) -> None:
        mean_ms = self._broker_settings.snapshot_interval_ms
        if mean_ms:
            pause_ms = 1 + int(self._chance.expovariate(1 / mean_ms))
            self.at(self.now_ms + pause_ms, self._begin_snapshot, node, life)

    def _begin_snapshot(self, node: SimNode, life: int) -> None:
        """Begin a snapshot at the applied index, unless the node died meanwhile (`life`) or nothing new was applied."""
        engine = node.engine
        if engine is None or node.life != life:
            return
        state = self.brokers[node.node_id].state
        index = state.applied_index
        newest = self._newest[node.node_id]
        if not index or not engine.log.layout.has(index) or (newest and newest.meta.index >= index):
            self._schedule_snapshot(node, life)
            return
        self._gather_snapshot(node, life, state.prepare_snapshot())

    def _gather_snapshot(self, node: SimNode, life: int, steps: Iterator[bool]) -> None:
        """Gather a step of the state, in an event of its own as long as entries may be folded; then write it down."""
        if not self._alive(node, life):
            return
        try:
            if next(steps, True):
                for _ in steps:
                    pass  # the fold stands still
                self._begin_writing(node, life)
                return
        except SnapshotOvertakenError:
            self.counts["snapshots_given_up"] += 1
            self._schedule_snapshot(node, life)
            return
        pause_ms = 1 + self._chance.randint(0, self._broker_settings.snapshot_step_ms_max)
        self.at(self.now_ms + pause_ms, self._gather_snapshot, node, life, steps)

    def _begin_writing(self, node: SimNode, life: int) -> None:
        """Begin to write the state as it is now; one of another member may be ahead of the log."""
        engine, state = node.engine, self.brokers[node.node_id].state
        index = state.applied_index
        if engine is None or not engine.log.layout.has(index):
            self._schedule_snapshot(node, life)
            return
        with self.disk_of(node):
            term = engine.log.layout.term_of(index)
            assert term is not None, (
                f"the log of {node.node_id} has entry {index}, and no term of it"
            )
            position = engine.log.layout.position_of(Index(index + 1))
            crc = engine.log.chain_crc_of(index)
            meta = SnapshotMeta(index, term, position, crc, state.digest())
            store = self._stores[node.node_id]
            chunks = store.with_parts(state.sealed_snapshot())
            try:
                writer = store.begin(meta, has_parts=True)
            except OSError:
                self._schedule_snapshot(node, life)
                return
            self._continue_snapshot(node, life, chunks, writer)

    def _continue_snapshot(
        self, node: SimNode, life: int, chunks: Iterator[Written], writer: SnapshotWriter
    ) -> None:
        """Write a chunk, or the end once the log is durable so far; a failure costs the snapshot."""
        if not self._alive(node, life):
            return
        try:
            chunk = next(chunks, None)
            if chunk is not None:
                writer.add([chunk])
            elif self._is_durable(node, writer.meta.index):
                self._has_written(node, taken := writer.finish())
                self._check_taken(node, taken)
                self.counts["snapshots_taken"] += 1
                self._schedule_snapshot(node, life)
                return
        except (SnapshotOvertakenError, OSError):
            self.counts["snapshots_given_up"] += 1
            self._try_quietly(writer.abandon)
            self._schedule_snapshot(node, life)
            return
        pause_ms = 1 + self._chance.randint(0, self._broker_settings.snapshot_step_ms_max)
        step = (node, life, chunks, writer)
        self.at(self.now_ms + pause_ms, self._continue_snapshot, *step)

    def _check_taken(self, node: SimNode, snapshot: SnapshotFile) -> None:
        """Demand that what was just written down is the state that it claims to be."""
        again = BrokerState()
        try:
            again.restore(self._stores[node.node_id].chunks(snapshot))
            check_restored(snapshot, again)
        except SnapshotRefusedError as error:
            raise Violation(
                f"{node.node_id} has written {snapshot.path} wrongly: {error}"
            ) from error
        except CorruptionError:
            return  # the disk gives it back damaged
        self._check_kept(node)

    def _check_kept(self, node: SimNode) -> None:
        """Demand that what the snapshots on a disk name is there."""
        store = self._stores[node.node_id]
        for snapshot in store.newest_first()[0]:
            try:
                store.verify(snapshot)
            except CorruptionError as error:
                self._demand_parts(node, str(error))

    @staticmethod
    def _demand_parts(node: SimNode, reason: str) -> None:
        """Demand that a snapshot was not refused for one of its parts, if nothing has damaged the disk."""
        is_struck = node.flipped_snapshots or node.disk.fired["fail-read"]
        if SUFFIXES[-1] in reason and not is_struck:
            raise Violation(f"{node.node_id} has not what a snapshot names: {reason}")

    def _has_written(self, node: SimNode, snapshot: SnapshotFile) -> None:
        """Note a member's newest snapshot, which is durable."""
        node_id = node.node_id
        self._older[node_id], self._newest[node_id] = self._newest[node_id], snapshot
        self._stores[node_id].kept_index = snapshot.meta.index

    @staticmethod
    def _is_durable(node: SimNode, index: Index) -> bool:
        return node.engine is not None and node.engine.log.durable_index >= index

    @staticmethod
    def _try_quietly(act: Callable[[], None]) -> None:
        try:
            act()
        except OSError:
            return

    def _fetch(self, node: SimNode, life: int) -> None:
        """Give a member that began empty the leader's newest snapshot, as `SnapshotFetch` does."""
        engine = node.engine
        if engine is None or node.life != life or engine.node.is_voter:
            return
        leader_id = engine.node.leader_id
        source = self._newest.get(leader_id) if leader_id is not None else None
        applied_index = self.brokers[node.node_id].driver.applied_index
        if leader_id in {None, node.node_id} or source is None or self._chance.random() < 0.5:
            self.at(self.now_ms + FETCH_INTERVAL_MS, self._fetch, node, life)
            return
        assert leader_id is not None, "it is known"
        if source.meta.index > applied_index:
            self._fetch_from(node, leader_id, source)

    def _fetch_from(self, node: SimNode, source: NodeId, snapshot: SnapshotFile) -> None:
        """Copy a snapshot, and begin to take it in."""
        broker, store = self.brokers[node.node_id], self._stores[node.node_id]
        try:
            self._taking_in.begin(node, broker, store, self._copy(source, snapshot, node))
        except (OSError, CorruptionError) as error:
            self.trace_line(node, f"no snapshot fetched: {error}")

    def _copy(self, source: NodeId, snapshot: SnapshotFile, target: SimNode) -> SnapshotFile:
        given, taken = self._stores[source], self._stores[target.node_id]
        copy = taken.begin_copy(snapshot.meta.index)
        whole = given.whole(snapshot)
        while data := whole.part(copy.size_bytes):
            copy.add(data)
        finished = copy.finish()
        if self.nodes[source].is_flipped(snapshot.path):
            raise Violation(f"{target.node_id} took {snapshot.path} of {source}, which is damaged")
        return finished

    def _taken_in(self, node: SimNode, snapshot: SnapshotFile) -> None:
        """Judge a state that a member has taken over, and let it go on after it."""
        broker = self.brokers[node.node_id]
        self.counts["snapshot-fetched"] += 1
        self.model.compare_with_replay(broker.state)
        self.checker.restored(node.node_id, snapshot.meta.index)
        self._has_written(node, snapshot)
        broker.driver.state_replaced(snapshot.meta.index, snapshot.meta.chain_crc)
