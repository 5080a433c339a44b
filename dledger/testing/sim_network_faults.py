"""The network faults of a simulated run: cuts of every shape, flapping, clogged and broken connections.

When a fault strikes is not decided here (`sim_faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.raft.events import PeerUnreachable
from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster

FLAP_COUNT = 6
"""The times that a flapping member is cut off and joined again."""


class NetworkFaults:
    """The faults of links between members.

    Attributes:
        is_stopped: what was begun does not go on.
    """

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self.is_stopped = False
        self._cluster = cluster
        self._rng = rng

    def strikes(self) -> dict[str, Callable[[], object]]:
        """Return the function of each kind of fault, by its name."""
        return {
            "partition-half": self._half,
            "partition-one": self._one,
            "partition-leader": self._leader,
            "partition-bridge": self._bridge,
            "partition-one-way": self._one_way,
            "partition-creeping": self._creeping,
            "hold-answers": self._hold_answers,
            "late-answers": self._late_answers,
            "flap": self._flap,
            "heal": self._cluster.network.heal,
            "clog": self._clog,
            "unreachable": self._unreachable,
        }

    def isolate(self, lone: NodeId) -> None:
        """Cut one member off, which may be the only one to hold some entries, and join all others."""
        self._cluster.network.heal()
        self._split([lone])

    def deafen(self, lone: NodeId) -> None:
        """Cut the links to one member, while its own messages still arrive."""
        self._cluster.network.cut(self._others(lone), [lone])

    def report_unreachable(self, lost: NodeId) -> None:
        """Report the connection to `lost` as broken to other members."""
        now_ms = self._cluster.now_ms
        for node in self._cluster.nodes.values():
            if node.node_id != lost:
                due_ms = now_ms + self._rng.randint(0, 5)
                self._cluster.at(due_ms, self._cluster.step, node, PeerUnreachable(lost))

    def cut_one_by_one(
        self, leader: NodeId, *, after_ms: int = 0, least_ms: int = 0
    ) -> tuple[NodeId, int]:
        """Cut a leader off from one member after another; return the last of them, and when it is cut."""
        others = self._others(leader)
        self._rng.shuffle(others)
        due_ms = last_ms = self._cluster.now_ms + after_ms
        for other in others:
            last_ms = due_ms
            self._cluster.at(due_ms, self._cut_pair, leader, other)
            due_ms += self._rng.randint(least_ms, self._cluster.settings.lease_ms)
        return others[-1], last_ms

    def _others(self, lone: NodeId) -> list[NodeId]:
        return [node_id for node_id in self._cluster.node_ids if node_id != lone]

    def _split(self, side: list[NodeId]) -> None:
        others = [node_id for node_id in self._cluster.node_ids if node_id not in side]
        self._cluster.network.cut_both(side, others)

    def _half(self) -> None:
        voters = list(self._cluster.node_ids)
        self._rng.shuffle(voters)
        self._split(voters[: len(voters) // 2])

    def _one(self) -> None:
        self._split([self._rng.choice(self._cluster.node_ids)])

    def _leader(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            self._split([leader.node_id])

    def _bridge(self) -> None:
        """Cut the group in two sides, with one member that reaches both."""
        voters = list(self._cluster.node_ids)
        self._rng.shuffle(voters)
        rest = voters[1:]
        self._cluster.network.cut_both(rest[: len(rest) // 2], rest[len(rest) // 2 :])

    def _creeping(self) -> None:
        """Cut the leader off from one member after another, so that their timeouts do not coincide."""
        leader = self._cluster.leader()
        if leader is not None and len(self._cluster.node_ids) > 1:
            self.cut_one_by_one(leader.node_id)

    def _cut_pair(self, one: NodeId, other: NodeId) -> None:
        if not self.is_stopped:
            self._cluster.network.cut_both([one], [other])

    def _hold_answers(self) -> bool:
        """Hold back answers to the leader and cut its outgoing links: it may get them after it was deposed."""
        leader = self._cluster.leader()
        if leader is None or len(self._cluster.node_ids) < 2:
            return False
        settings, now_ms = self._cluster.settings, self._cluster.now_ms
        self._cluster.network.heal()
        until_ms = now_ms + self._rng.randint(settings.lease_ms, 2 * settings.election_max_ms)
        for other in self._others(leader.node_id):
            self._cluster.network.clog(other, leader.node_id, until_ms)
        self._cluster.at(now_ms + settings.heartbeat_ms, self._silence, leader.node_id)
        return True

    def _late_answers(self) -> bool:
        """Delay answers to the leader, then cut its outgoing links while late answers still arrive."""
        leader = self._cluster.leader()
        if leader is None or len(self._cluster.node_ids) < 2:
            return False
        settings, now_ms = self._cluster.settings, self._cluster.now_ms
        self._cluster.network.heal()
        # Later than that, the leader would hear nobody for so long that it gave up.
        late_ms = self._rng.randint(settings.lease_ms // 2, settings.election_max_ms * 9 // 10)
        for other in self._others(leader.node_id):
            self._cluster.network.delay(other, leader.node_id, late_ms)
        due_ms = now_ms + late_ms + self._rng.randint(0, 2 * settings.lease_ms)
        self._cluster.at(due_ms, self._silence, leader.node_id)
        return True

    def _silence(self, lone: NodeId) -> None:
        """Cut the links from one member, while messages to it still arrive."""
        if not self.is_stopped:
            self._cluster.network.cut([lone], self._others(lone))

    def _one_way(self) -> None:
        """Let one member not be heard, or not hear."""
        lone = self._rng.choice(self._cluster.node_ids)
        if self._rng.random() < 0.5:
            self.deafen(lone)
        else:
            self._silence(lone)

    def _flap(self) -> None:
        """Cut a member off and join it again, quickly, several times."""
        lone = self._rng.choice(self._cluster.node_ids)
        pace_ms = 1 + self._rng.randint(0, self._cluster.settings.lease_ms)
        for turn in range(FLAP_COUNT):
            due_ms = self._cluster.now_ms + turn * pace_ms
            self._cluster.at(due_ms, self._flap_once, lone, turn % 2 == 0)

    def _flap_once(self, lone: NodeId, is_cut: bool) -> None:
        if self.is_stopped:
            return
        if is_cut:
            self._split([lone])
        else:
            self._cluster.network.heal()

    def _clog(self) -> None:
        """Hold back for a while what one member sends to another; it comes all at once."""
        source, target = self._rng.choices(self._cluster.node_ids, k=2)
        length_ms = self._rng.randint(1, self._cluster.settings.clog_ms_max)
        self._cluster.network.clog(source, target, self._cluster.now_ms + length_ms)

    def _unreachable(self) -> None:
        """Break connections though nobody died."""
        self.report_unreachable(self._rng.choice(self._cluster.node_ids))
