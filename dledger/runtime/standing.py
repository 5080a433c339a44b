"""The present state of a member: store not open yet, following, leading, serving, or stopped.

Everything that is asked of a member starts here: whether there is an engine to ask, and whether it may be
asked. Knows nothing of how the engine came to be (store_opening.py), nor of what is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.config import RaftConfig
from dledger.errors import LeaderNotReadyError, NotLeaderError, StoppingError, UsageError
from dledger.raft.effects import Role
from dledger.raft.ids import NO_TERM, NodeId, Term
from dledger.repair.store_repair import StoreRepair
from dledger.runtime.clock import now_ms
from dledger.runtime.driver import Driver
from dledger.runtime.obstacles import Obstacles


class Standing:
    """One member, from before its store is open until after it has stopped.

    Attributes:
        node_id: this member.
        driver: who runs the engine; None until the store is open. It stays after the stop.
        is_draining: nothing more is taken, since a stop is near.
        has_stopped: nothing is done any more.
        repair: what is being mended before the store can be opened.
        obstacles: what is known to keep the group from having a leader.
    """

    def __init__(self, config: RaftConfig, *, clock_ms: Callable[[], int] = now_ms) -> None:
        """Describe a member that does not run yet.

        Args:
            config: of the core.
            clock_ms: the clock that leases are measured with.
        """
        self.node_id = config.node_id
        self.driver: Driver | None = None
        self.is_draining = False
        self.has_stopped = False
        self.repair: StoreRepair | None = None
        self.obstacles = Obstacles(
            config.node_id,
            config.voters,
            has_vote=lambda: self.driver is None or self.is_voter,
            has_begun=lambda: self.term > NO_TERM,
        )
        self._clock_ms = clock_ms

    @property
    def running(self) -> Driver:
        """The driver of a member whose store is open.

        Raises:
            UsageError: the store is not open yet.
        """
        if self.driver is None:
            raise UsageError("the LogServer does not run yet")
        return self.driver

    @property
    def role(self) -> Role:
        """The node's role."""
        return self.driver.engine.node.role if self.driver else Role.FOLLOWER

    @property
    def term(self) -> Term:
        """The highest term that it has seen."""
        return self.driver.engine.node.term if self.driver else NO_TERM

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this term, as far as it is known."""
        return self.driver.engine.node.leader_id if self.driver else None

    @property
    def is_voter(self) -> bool:
        """True while it may vote and is counted (docs/adr/0061)."""
        return self.driver is not None and self.driver.engine.node.is_voter

    @property
    def is_serving(self) -> bool:
        """True while it leads and has applied the first entry of its term."""
        return self.driver is not None and self.driver.is_serving and not self.has_stopped

    def has_lease(self) -> bool:
        """Return whether it leads and no other node can have been elected up to now."""
        return self.driver is not None and self.driver.engine.node.has_lease(self._clock_ms())

    def check_leads(self) -> Driver:
        """Return the driver of a member that leads.

        Raises:
            NotLeaderError: it does not.
        """
        if self.driver is None or self.role is not Role.LEADER:
            raise NotLeaderError(self.leader_id, self.term)
        return self.driver

    def check_serving(self) -> Driver:
        """Return the driver of a member that takes appends and answers reads for the group.

        Raises:
            RefusedError: it does not now; the class says why, and nothing has happened.
        """
        driver = self.driver
        if self.has_stopped:
            raise StoppingError(f"{self.node_id} has stopped")
        if driver is None:
            raise NotLeaderError(None, 0, "the node does not run yet")
        if self.is_draining:
            raise StoppingError(f"{self.node_id} is about to stop")
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader_id, self.term, self.obstacles.lost_votes.problem)
        if not driver.is_serving:
            raise LeaderNotReadyError(
                f"{self.node_id} has not yet applied the first entry of its term"
            )
        return driver
