"""The obstacles that keep a group from having a leader, as far as this member knows: full disks, lost votes.

With nobody to lead there is nobody who would say why. So each member names its own obstacles in every handshake, as
attributes that older versions ignore. Whoever has no leader, or no room itself, asks the others now and then; a leader
asks at once when it hears no majority any more, so that it can say why its term is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.raft.ids import NodeId
from dledger.runtime.full_disks import FullDisks
from dledger.runtime.lost_votes import LostVotes


class Obstacles:
    """The obstacles that are known: full disks, lost votes.

    Attributes:
        full_disks: whose disks are full.
        lost_votes: who has no vote.
    """

    def __init__(
        self,
        node_id: NodeId,
        members: tuple[NodeId, ...],
        *,
        has_vote: Callable[[], bool],
        has_begun: Callable[[], bool],
    ) -> None:
        """Start with no obstacle known; the arguments are those of `LostVotes`."""
        self.full_disks = FullDisks(node_id, members)
        self.lost_votes = LostVotes(node_id, members, has_vote=has_vote, has_begun=has_begun)

    def voters_changed(self, voters: tuple[NodeId, ...]) -> None:
        """Count these from now on: the group's voters have changed."""
        self.full_disks.voters_changed(voters)
        self.lost_votes.voters_changed(voters)

    def leader_changed(self, leader_id: NodeId | None) -> None:
        """Note who leads, as far as this node knows."""
        self.full_disks.leader_changed(leader_id)
        self.lost_votes.leader_changed(leader_id)

    def majority_judged(self, *, is_silent: bool) -> None:
        """Note whether this node leads and hears no majority any more."""
        self.full_disks.majority_judged(is_silent=is_silent)

    async def wait_wanted(self) -> None:
        """Wait until the others' reports are needed: nobody leads, this node leads unheard, or its own disk is full."""
        await self.full_disks.wait_wanted()

    @property
    def are_wanted(self) -> bool:
        """True while `wait_wanted` returns at once."""
        return self.full_disks.are_wanted

    @property
    def are_pressing(self) -> bool:
        """True while this node leads without a majority: its term is about to end."""
        return self.full_disks.are_pressing

    def own_attributes(self) -> dict[str, str]:
        """Return the attributes for handshakes: this member's own obstacles."""
        return {**self.full_disks.own_attributes(), **self.lost_votes.own_attributes()}

    def learn(self, node_id: NodeId, attributes: Mapping[str, str] | None) -> None:
        """Note a member's latest report; None when it could not be asked."""
        self.full_disks.learn(node_id, attributes)
        self.lost_votes.learn(node_id, attributes)
