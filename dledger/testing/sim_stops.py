"""Planned stops of a simulated group: a member that leads hands over, serves on as a follower for a while, and ends.

So does a server that is told to stop (`broker/server/stopping.py`, `LogServer.drain`): its clients have yet to learn
who leads. Meanwhile everything else may go wrong; a member that dies first has stopped already. Which member, and
when, is not decided here.
"""

from __future__ import annotations

from functools import partial
from random import Random

from dledger.raft.effects import Outcome, Role, TransferDone
from dledger.raft.ids import Term
from dledger.raft.transfer import GIVE_BACK_MS
from dledger.testing.cluster import SimCluster
from dledger.testing.core_trace import outcome_line
from dledger.testing.sim_node import SimNode
from dledger.testing.state_checker import Violation

LOOK_MS = 20
"""Pause between two looks of a member that stops at whether it leads, and at whether all is answered."""

HAND_OVER_MS_MAX, QUIET_MS_MAX = 3000, 300
"""The longest times after which a member that stops ends though it leads, and though somebody waits for an answer."""

LAG_MAX = 20
"""Entries that a member may lack if it could lead soon."""

DRIFT_MS = GIVE_BACK_MS // 20
"""By so much a clock may be ahead of time after that time."""


def check_handed_over(node: SimNode, term: Term, outcome: Outcome) -> None:
    """Demand that a member that says that another one leads knows of a later term than `term`, which it led."""
    if isinstance(outcome, TransferDone) and node.engine and node.engine.node.term <= term:
        raise Violation(
            f"{node.node_id} answers that {outcome.target} leads, but knows of no later term than {term}"
        )


class PlannedStops:
    """The stops under way.

    Attributes:
        is_over: those under way are called off.
    """

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self.is_over = False
        self._cluster = cluster
        self._rng = rng

    def begin(self, node: SimNode) -> bool:
        """Tell a member to stop; return False if it is stopping already, or may not stop now."""
        cluster = self._cluster
        if node.node_id in cluster.leaving:
            return False
        if cluster.leaders_allowed is not None and not self._may_stop_steadily(node):
            return False
        cluster.leaving.add(node.node_id)
        forward_ms = self._rng.randint(0, cluster.settings.forward_ms_max)
        forward_ms = max(forward_ms, cluster.settings.forward_ms_min)
        cluster.trace_line(node, f"is to stop, and to serve for {forward_ms} ms more")
        self._look(node, node.life, cluster.now_ms + forward_ms)
        return True

    def _may_stop_steadily(self, node: SimNode) -> bool:
        """Return whether a stop is a reason for one new leader and no more: all others are there and lack little."""
        cluster = self._cluster
        leader, running = cluster.leader(), cluster.running()
        if leader is None or len(running) < len(cluster.voters):
            return False
        if (
            cluster.settings.prefers_first
            and node is leader is not cluster.nodes[cluster.voters[0]]
        ):
            return False  # its target would not keep the lead
        ends = {each.engine.log.last_id.index for each in running if each.engine is not None}
        is_close = max(ends) - min(ends) <= LAG_MAX
        return is_close and not cluster.leaving

    def _look(self, node: SimNode, life: int, end_ms: int) -> None:
        """Hand over while it leads; end once its time is over and everybody has an answer."""
        cluster, engine = self._cluster, node.engine
        if self.is_over:
            cluster.leaving.discard(node.node_id)
        if self.is_over or engine is None or node.life != life:
            return
        due_ms = max(cluster.now_ms + LOOK_MS, node.paused_until_ms)
        cluster.at(due_ms, self._look, node, life, end_ms)
        if node.pauses(cluster.now_ms):
            return
        is_leader = engine.node.role is Role.LEADER and len(cluster.voters) > 1
        is_late = cluster.now_ms >= end_ms + (HAND_OVER_MS_MAX if is_leader else QUIET_MS_MAX)
        if is_leader and not is_late:
            self._hand_over(node)
        elif is_late or (cluster.now_ms >= end_ms and cluster.is_quiet(node)):
            if is_leader and cluster.leaders_allowed is not None:
                raise Violation(f"{node.node_id} stops as a leader, though nothing is wrong")
            self._end(node)

    def _hand_over(self, node: SimNode) -> None:
        """Order the member to hand over, unless it is at it."""
        cluster, engine = self._cluster, node.engine
        if engine is None or engine.node.transfer_target is not None:
            return
        if cluster.leaders_allowed is not None:
            self._allow_one_more()
            if cluster.settings.prefers_first:
                cluster.at(cluster.now_ms + GIVE_BACK_MS - DRIFT_MS, self._allow_one_more)
        cluster.order_transfer(node, partial(self._answered, node, engine.node.term))

    def _allow_one_more(self) -> None:
        """Let one more term be led, in a run in which each has to have its reason."""
        if self._cluster.leaders_allowed is not None:
            self._cluster.leaders_allowed = self._cluster.checker.leader_count + 1

    def _answered(self, node: SimNode, term: Term, outcome: Outcome) -> None:
        """Check the outcome of an order; what follows from it shows when the member looks again."""
        self._cluster.trace_line(node, f"hand-over before a stop: {outcome_line(outcome)}")
        check_handed_over(node, term, outcome)

    def _end(self, node: SimNode) -> None:
        """End the process, which starts again later."""
        cluster = self._cluster
        cluster.reached["stopped-in-order"] += 1
        cluster.stop(node, power_loss=False)
        cluster.start_later(node)
