"""The operator of a simulated group, who changes its members while everything else may fail.

Orders are as careful as a person's should be: a change that would leave a group without a majority of sound stores is
not ordered. All else is the leader's to refuse. Which nodes there are is fixed (`SimCluster.node_ids`); those that are
no members yet, or no more, run like the others.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.raft.configuration import ChangeKind, Configuration, MemberChange
from dledger.raft.effects import Outcome
from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster
from dledger.testing.core_trace import outcome_line
from dledger.testing.sim_node import SimNode

JOINS = 0.3
"""The odds that a member is added to become a voter by itself."""

SHRINKS_TO_ONE = 0.05
"""The odds that a removal may leave one voter; otherwise it leaves two."""

LEADER_LEAVES = 0.3
"""The odds that a removal is one of the leader."""

CUT_FIRST = 0.3
"""The odds that the leader is cut off from others just before."""

IN_A_ROW = 0.4
"""The odds that another order follows at once, whatever becomes of the first."""


class MemberOrders:
    """The orders of one run.

    Args:
        cluster: whose leader is asked.
        lost_stores: returns the members whose stores do not count.
        rng: of the operator alone.
    """

    def __init__(
        self, cluster: SimCluster, lost_stores: Callable[[], set[NodeId]], rng: Random
    ) -> None:
        self._cluster = cluster
        self._lost_stores = lost_stores
        self._rng = rng

    def order(self) -> bool:
        """Order one change, or two at once; return False if nobody leads, or nothing can be ordered."""
        leader = self._cluster.leader()
        if leader is None or leader.engine is None:
            return False
        if self._rng.random() < CUT_FIRST:
            self._cut_off(leader.node_id)
        is_ordered = self._order_one(leader)
        if self._rng.random() < IN_A_ROW:
            is_ordered = self._order_one(leader) or is_ordered
        return is_ordered

    def _cut_off(self, leader_id: NodeId) -> None:
        """Leave the leader with a few nodes only, just before its orders come: what it changes is to be undone."""
        network, node_ids = self._cluster.network, self._cluster.node_ids
        chosen = {leader_id, *self._rng.sample(node_ids, self._rng.randint(0, len(node_ids) // 2))}
        network.heal()
        network.cut_both(
            [name for name in node_ids if name in chosen],
            [name for name in node_ids if name not in chosen],
        )
        self._cluster.trace_line(None, f"network: {network.describe()}")

    def _order_one(self, leader: SimNode) -> bool:
        """Order one change by chance; return False if there is none that a careful operator would make now."""
        engine = leader.engine
        if engine is None:
            return False
        configuration = engine.node.configuration
        changes = [
            change
            for change in self._changes(configuration, leader.node_id)
            if self._is_careful(change, configuration)
        ]
        if not changes:
            return False
        change = self._rng.choice(changes)
        self._cluster.trace_line(leader, f"is to {change.kind.value} {change.node_id}")

        def answered(outcome: Outcome) -> None:
            self._cluster.trace_line(leader, f"{change.kind.value}: {outcome_line(outcome)}")

        return self._cluster.order_members(leader, change, answered)

    def _changes(self, configuration: Configuration, leader_id: NodeId) -> list[MemberChange]:
        """Return changes of one kind, which is chosen by chance among those that make sense."""
        outside = [name for name in self._cluster.node_ids if name not in configuration.members]
        removable = list(configuration.learners)
        least = 1 if self._rng.random() < SHRINKS_TO_ONE else 2
        # Of those that are committed: a second removal at once is for the leader to refuse.
        if len(self._cluster.configuration().voters) > least:
            removable += configuration.voters
        kinds: list[list[MemberChange]] = [
            [
                MemberChange(ChangeKind.ADD, name, is_joining=self._rng.random() < JOINS)
                for name in outside
            ],
            [MemberChange(ChangeKind.PROMOTE, name) for name in configuration.learners],
            [MemberChange(ChangeKind.REMOVE, name) for name in removable],
        ]
        if leader_id in removable and self._rng.random() < LEADER_LEAVES:
            return [MemberChange(ChangeKind.REMOVE, leader_id)]
        return self._rng.choice([kind for kind in kinds if kind] or [[]])

    def _is_careful(self, change: MemberChange, before: Configuration) -> bool:
        """Return whether a majority of sound stores stays, also when those that join have become voters."""
        after = change.apply(before)
        if isinstance(after, str):
            return False
        lost = self._lost_stores()
        return all(
            len(lost & set(voters)) <= (len(voters) - 1) // 2
            for voters in (after.voters, (*after.voters, *after.joining))
        )
