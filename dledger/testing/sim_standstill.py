"""Members that stand still, and what they find when they run again.

Whoever does not run still gets what is sent to it: it waits in the sockets. Afterwards the member is given
what its driver would give it (dledger/runtime/driver.py): first the word that it stood still, then everything
that came, each connection in its order and several of them in any, and only then a deadline counts.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from dledger.raft.events import Received, StoodStill, Tick
from dledger.raft.ids import NodeId
from dledger.raft.messages import Message
from dledger.testing.core_trace import message_line, span_line
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode


class Standstills:
    """Of all members.

    Invariant: only a member that stands still has something in its sockets.
    """

    def __init__(self, cluster: SimGroup) -> None:
        self._cluster = cluster
        self._chance = Random(f"sockets/{cluster.settings.seed}")
        self._sockets: defaultdict[NodeId, dict[NodeId, list[Message]]] = defaultdict(dict)

    def begin(self, node: SimNode) -> None:
        """Let a member stand still until `paused_until_ms`."""
        cluster = self._cluster
        if node.still_since_ms is None:
            node.still_since_ms = cluster.now_ms
        cluster.at(node.paused_until_ms, self.end, node, node.life)

    def came(self, node: SimNode, message: Message) -> None:
        """Put a message into its socket."""
        self._sockets[node.node_id].setdefault(message.source, []).append(message)

    def died(self, node: SimNode) -> None:
        """Forget its sockets, since its process is no more."""
        node.still_since_ms = None
        self._sockets.pop(node.node_id, None)

    def end(self, node: SimNode, life: int) -> None:
        """Let it run again, unless it is to stand still for longer."""
        cluster = self._cluster
        since_ms = node.still_since_ms
        is_over = node.paused_until_ms <= cluster.now_ms and node.life == life
        if since_ms is None or not is_over:
            return
        node.still_since_ms = None
        cluster.trace_line(node, "runs again")
        # The driver looks at its clock once in a heartbeat interval: it cannot measure what is less than that.
        pulse_ms = cluster.settings.heartbeat_ms
        length_ms = node.local_ms(cluster.now_ms) - node.local_ms(since_ms)
        length_ms -= self._chance.randint(0, pulse_ms)
        if length_ms >= pulse_ms:
            cluster.step(node, StoodStill(length_ms))
        for message in self._take(node):
            if node.life != life:
                return
            if cluster.trace is not None:
                cluster.trace_line(node, f"<- {message.source} {message_line(message, span_line)}")
            cluster.step(node, Received(message))
        engine = node.engine
        if engine is None or node.life != life:
            return
        if engine.next_deadline_ms() <= node.local_ms(cluster.now_ms):
            cluster.trace_line(node, "tick")
            cluster.step(node, Tick())
        else:
            cluster.arm(node, engine)

    def _take(self, node: SimNode) -> list[Message]:
        """Return what came, each source's in its order, and those of several in any."""
        sockets = list(self._sockets.pop(node.node_id, {}).values())
        taken: list[Message] = []
        while sockets:
            socket = self._chance.choice(sockets)
            taken.append(socket.pop(0))
            if not socket:
                sockets.remove(socket)
        return taken
