"""A group of simulated brokers that give the bytes back of what they have forgotten.

What may be dropped, and when a log is begun anew, is decided by `dledger.forgetting` and the engine, as in the runtime;
here it is only carried out, at once: what dies halfway is a matter of the log's own simulator (sim_forgetting.py).
"""

from __future__ import annotations

from functools import cached_property
from random import Random

from broker.testing.broker_cluster import BrokerCluster
from dledger.engine import Engine
from dledger.errors import DiskFullError
from dledger.forgetting import ForgettingBounds, covered_index, first_to_keep, may_begin_after
from dledger.raft.ids import Index, NodeId
from dledger.storage.log_start import FrontDrop
from dledger.storage.snapshots import SnapshotFile
from dledger.testing.sim_node import SimNode
from dledger.testing.state_checker import Violation

LOOK_MS = 80
"""Mean pause between two looks of a member at what it may drop, or lacks."""


class DroppingBrokers(BrokerCluster):
    """The brokers of a group whose logs lose their beginning."""

    @cached_property
    def _bounds(self) -> ForgettingBounds:
        settings = self._broker_settings
        return ForgettingBounds(settings.catch_up_bytes_max, settings.election_max_ms)

    @cached_property
    def _looks(self) -> Random:
        return Random(f"dropping/{self._broker_settings.seed}")

    @cached_property
    def _undone(self) -> dict[NodeId, FrontDrop]:
        """Drops for which there was no room."""
        return {}

    def _opened(self, node: SimNode, engine: Engine) -> Index:
        index = super()._opened(node, engine)
        self._undone.pop(node.node_id, None)
        self._look_later(node, node.life)
        return index

    def refuse_start(self, node: SimNode, error: Exception) -> None:
        """See `SimCluster`; a store that nothing has damaged must start."""
        if not node.is_damaged and not node.disk.fired["fail-read"]:
            raise Violation(f"{node.node_id} has a sound store, and cannot start: {error}")
        super().refuse_start(node, error)

    def _look_later(self, node: SimNode, life: int) -> None:
        pause_ms = 1 + int(self._looks.expovariate(1 / LOOK_MS))
        self.at(self.now_ms + pause_ms, self._look, node, life)

    def _look(self, node: SimNode, life: int) -> None:
        """Drop what is forgotten, or fetch what is lacking, unless the member is down or pauses."""
        engine = node.engine
        if engine is None or node.life != life:
            return
        self._look_later(node, life)
        if node.pauses(self.now_ms) or engine.failure is not None:
            return
        with self.disk_of(node):
            self._drop(node, engine)
            self._catch_up(node, engine)

    def _drop(self, node: SimNode, engine: Engine) -> None:
        """Drop the segments that the member need not keep; again, as `Forgetting` does, where there was no room."""
        drop = self._undone.pop(node.node_id, None) or self._forgotten(node, engine)
        if drop is None:
            return
        try:
            drop.run()
        except DiskFullError as error:
            self.trace_line(node, f"drops nothing yet: {error}")
            self._undone[node.node_id] = drop
            return
        engine.dropped()
        self.trace_line(node, f"drops what is before entry {drop.start.index + 1}")
        self.counts["dropped"] += 1
        begins, keep_from = (
            engine.log.layout.first_index,
            self.brokers[node.node_id].state.keep_from,
        )
        if begins > keep_from:
            raise Violation(
                f"{node.node_id} has a log from entry {begins} on, and shows what stands from {keep_from} on"
            )

    def _forgotten(self, node: SimNode, engine: Engine) -> FrontDrop | None:
        """Forget what the member need not keep; return what is to be removed for it."""
        state = self.brokers[node.node_id].state
        newest, older = self._newest[node.node_id], self._older[node.node_id]
        covered = covered_index(newest.meta if newest else None, older.meta if older else None)
        first = first_to_keep(
            engine,
            state.keep_from,
            covered=covered,
            bounds=self._bounds,
            now_ms=node.local_ms(self.now_ms),
        )
        return engine.forget_before(first)

    def _catch_up(self, node: SimNode, engine: Engine) -> None:
        """Fetch the leader's snapshot, if its log begins after what the member needs, as `SnapshotFetch` does."""
        leader_id = engine.needs_snapshot_of
        if leader_id is None or leader_id != engine.node.leader_id or not engine.may_begin_anew:
            return
        if self._begin_anew(node, engine):
            return
        snapshot = self._reachable_snapshot(node, leader_id)
        applied_index = self.brokers[node.node_id].driver.applied_index
        if snapshot is None or snapshot.meta.index <= applied_index:
            return
        self._fetch_from(node, leader_id, snapshot)

    def _taken_in(self, node: SimNode, snapshot: SnapshotFile) -> None:
        """See `BrokerCluster`; now the log can be begun anew."""
        super()._taken_in(node, snapshot)
        engine = node.engine
        assert engine is not None, f"{node.node_id} is down"
        if engine.may_begin_anew:
            self._begin_anew(node, engine)

    def _reachable_snapshot(self, node: SimNode, leader_id: NodeId) -> SnapshotFile | None:
        """Return the leader's newest snapshot, if the member can ask for it."""
        source, network = self.nodes[leader_id], self.network
        is_open = network.is_open(node.node_id, leader_id) and network.is_open(
            leader_id, node.node_id
        )
        if source.engine is None or source.pauses(self.now_ms) or not is_open:
            return None
        return self._newest.get(leader_id)

    def _begin_anew(self, node: SimNode, engine: Engine) -> bool:
        """Begin the log where the leader's begins, if that may be now; return whether."""
        start, newest = engine.start_of_leader, self._newest[node.node_id]
        if start is None or not may_begin_after(engine, start, newest.meta if newest else None):
            return False
        self.trace_line(node, f"begins its log anew after entry {start.index}")
        self.counts["begun-anew"] += 1
        self.brokers[node.node_id].driver.log_begun_after(start)
        self.drain(node, engine)
        return True
