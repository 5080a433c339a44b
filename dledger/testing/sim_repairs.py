"""Members of a simulated group that mend their damaged logs before they take part (`StoreRepair`).

What damaged them is not known here.
"""

from __future__ import annotations

from dledger.raft.messages import RepairMessage
from dledger.repair.store_repair import StoreRepair
from dledger.testing.core_trace import message_line, span_line
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode


class Repairs:
    """Carries the questions and answers of all repairs, those of running members among them."""

    def __init__(self, cluster: SimGroup) -> None:
        self._cluster = cluster

    def start(self, node: SimNode, repair: StoreRepair) -> None:
        """Begin the repair of a member's damaged log: it only asks for entries until it is whole."""
        node.repair = repair
        self.carry_on(node, node.life)

    def carry_on(self, node: SimNode, life: int) -> None:
        """Let a repair act, and come back when it wants to act again."""
        cluster, repair = self._cluster, node.repair
        if repair is None or node.life != life:
            return
        if node.paused_until_ms > cluster.now_ms:
            cluster.at(node.paused_until_ms, self.carry_on, node, life)
            return
        cluster.step_count += 1
        with cluster.disk_of(node):
            repair.tick(node.local_ms(cluster.now_ms))
            if not self._drain(node, repair):
                due_ms = max(node.true_ms(repair.next_deadline_ms()), cluster.now_ms + 1)
                cluster.at(due_ms, self.carry_on, node, life)

    def deliver(self, node: SimNode, message: RepairMessage) -> None:
        """Let a request for lost entries, or an answer to one, arrive."""
        cluster = self._cluster
        if node.engine is None and node.repair is None:
            return
        if node.paused_until_ms > cluster.now_ms:
            cluster.at(node.paused_until_ms, self.deliver, node, message)
            return
        if cluster.trace is not None:
            cluster.trace_line(node, f"<- {message.source} {message_line(message, span_line)}")
        cluster.step_count += 1
        with cluster.disk_of(node):
            if node.repair is not None:
                node.repair.receive(message, node.local_ms(cluster.now_ms))
                self._drain(node, node.repair)
            elif node.engine is not None:
                before = node.engine.live_repair.repaired_count
                node.engine.repair(message, node.local_ms(cluster.now_ms))
                cluster.reached["repaired-live"] += node.engine.live_repair.repaired_count - before
                cluster.drain(node, node.engine)

    def _drain(self, node: SimNode, repair: StoreRepair) -> bool:
        """Carry a repair's messages away; start the member when it is done, and say so."""
        cluster = self._cluster
        for note in repair.notes:
            cluster.trace_line(node, note)
        repair.notes.clear()
        for to, message in repair.take_outbox():
            cluster.post(node, to, message)
        if repair.hopeless is not None:
            raise repair.hopeless
        if not repair.is_done:
            return False
        cluster.trace_line(node, f"is repaired: {repair.repaired_count} entries")
        cluster.reached["repaired-before-start"] += 1
        node.repair = None
        node.repair_count += 1
        if repair.has_cut:
            cluster.checker.wiped(node.node_id)
        cluster.start(node)
        return True
