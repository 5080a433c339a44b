"""The choice of members to strike: whose stores count, and how many of them may still be lost.

A majority of stores must stay that lost nothing, or nothing could be demanded of the group. A store counts for
nothing while its member may not vote, since it is new, and when its disk has lied. It counts for nothing either while
its member votes only because it has not yet met who remembers more of its starts (docs/adr/0103).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_meetings import will_learn_that_it_is_old
from dledger.testing.sim_node import SimNode


class Victims:
    """The members as faults see them.

    Invariant: `unproven` holds the members that may not vote, since their stores are new. They and those whose
    disks have lied are a minority together, once the group was formed.
    """

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self.unproven = set(cluster.node_ids)
        self._founders = set(cluster.node_ids)
        self._cluster = cluster
        self._rng = rng

    def look_for_proof(self) -> None:
        """Find the members that have become voters with their new stores, which count from now on."""
        nodes = self._cluster.nodes.values()
        for node in self._cluster.running():
            engine = node.engine
            is_proven = engine is not None and engine.node.is_voter and not engine.has_unsaved
            if not is_proven or node.is_outdated or node.node_id not in self.unproven:
                continue
            if will_learn_that_it_is_old(node, (each for each in nodes if each is not node)):
                continue
            self.unproven.discard(node.node_id)
            self._cluster.reached["readmitted"] += node.node_id not in self._founders
            self._founders.discard(node.node_id)

    def lost_stores(self) -> set[NodeId]:
        """Return the members whose stores do not count."""
        damaged = {node.node_id for node in self._cluster.nodes.values() if node.is_damaged}
        return self.unproven | damaged

    def any(self) -> SimNode:
        """Any member, up or down."""
        return self._rng.choice(list(self._cluster.nodes.values()))

    def running(self, is_fit: Callable[[SimNode], bool] | None = None) -> SimNode | None:
        """Choose a member that is up, by chance; None when there is none, or it is not fit.

        In runs that insist another one is then looked for.
        """
        nodes = self._cluster.running()
        if not nodes:
            return None
        chosen = self._rng.choice(nodes)
        if is_fit is None or is_fit(chosen):
            return chosen
        if not self._cluster.settings.insists:
            return None
        return next(filter(is_fit, nodes), None)

    def is_spare(self, node: SimNode) -> bool:
        """Return whether this member's store may be lost."""
        lost = self.lost_stores() | {node.node_id}
        if not self._cluster.settings.changes_members:
            return len(lost) <= (len(self._cluster.voters) - 1) // 2
        # Also when those that join have become voters.
        groups = [
            {*each.voters, *joining}
            for each in self._cluster.open_configurations()
            for joining in ((), each.joining)
        ]
        return all(len(lost & group) <= (len(group) - 1) // 2 for group in groups)

    def may_lie(self, node: SimNode) -> bool:
        """Return whether a log could show that its disk lies: without syncs no index unit proves what was there.

        Nor does one when both are damaged, so that one lie for each member and disk is enough. While a member
        runs on an old copy nobody may forget that it does.
        """
        if any(each.is_outdated for each in self._cluster.nodes.values()):
            return False
        return self._cluster.settings.fsync and not node.is_damaged and self.is_spare(node)
