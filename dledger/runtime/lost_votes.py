"""The members without a vote, as far as this one knows: why nobody leads, when too many stores are lost.

A member whose store was lost, or is an older copy, has no vote until a leader has admitted it (docs/adr/0061).
Where that is so of too many, there never will be a leader: the others wait, rightly, and somebody has to say so
(obstacles.py says how members hear of it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from dledger.raft.ids import NodeId
from dledger.raft.quorum import majority
from dledger.runtime.events_log import log_event

VOTE_ATTRIBUTE: Final = "no_vote"
"""`true`; not there: the member has a vote, or cannot tell yet."""

REPORT_COUNT_MIN: Final = 6
"""A member without a vote is taken for lost when it has said so this often, every half second: one that joins a
working group is admitted meanwhile, and a group that is founded has its first leader."""


class LostVotes:
    """The members that have no vote, as far as it is known.

    Invariant: of others only what they have reported, each time they were asked, since this node has no leader.

    Attributes:
        problem: that the majority is lost, and what to do; empty: it is not known to be.
    """

    def __init__(
        self,
        node_id: NodeId,
        members: tuple[NodeId, ...],
        *,
        has_vote: Callable[[], bool],
        has_begun: Callable[[], bool],
    ) -> None:
        """Start with no lost vote known.

        Args:
            node_id: this member.
            members: all of them, in the order of the configuration.
            has_vote: whether this one has a vote, or cannot tell yet.
            has_begun: whether the group has ever had an election; before, nobody has a vote.
        """
        self.problem = ""
        self._node_id = node_id
        self._members = members
        self._has_vote = has_vote
        self._has_begun = has_begun
        self._report_counts: dict[NodeId, int] = {}
        self._has_leader = False

    def voters_changed(self, voters: tuple[NodeId, ...]) -> None:
        """Count these from now on: the group's voters have changed."""
        self._members = voters
        for gone in self._report_counts.keys() - set(voters):
            del self._report_counts[gone]

    def leader_changed(self, leader_id: NodeId | None) -> None:
        """Note who leads, as far as this node knows."""
        self._has_leader = leader_id is not None
        if self._has_leader:
            self._report_counts.clear()
            self.problem = ""

    def own_attributes(self) -> Mapping[str, str]:
        """Return the attribute for handshakes."""
        return {} if self._has_vote() else {VOTE_ATTRIBUTE: "true"}

    def learn(self, node_id: NodeId, attributes: Mapping[str, str] | None) -> None:
        """Note a member's latest report while nobody leads; None when it could not be asked."""
        if self._has_leader or VOTE_ATTRIBUTE not in (attributes or {}):
            self._report_counts.pop(node_id, None)
        else:
            self._report_counts[node_id] = self._report_counts.get(node_id, 0) + 1
        self._judge()

    def _judge(self) -> None:
        """Set or clear `problem`; logged only when it begins, so that repeated reports do not fill the log."""
        lost = [
            member
            for member in self._members
            if self._report_counts.get(member, 0) >= REPORT_COUNT_MIN
            or (member == self._node_id and not self._has_vote())
        ]
        voter_count = len(self._members) - len(lost)
        was = self.problem
        if voter_count >= majority(len(self._members)) or not self._has_begun():
            self.problem = ""
            return
        self.problem = (
            f"the majority of the group is lost: the stores of {' and '.join(lost)} were lost or are older copies, so "
            "they have no votes, and nobody can be elected. Start them with the stores that they had, or "
            "restore the group from what is left (docs/restoring.md)"
        )
        if not was:
            log_event(logging.ERROR, "majority-lost", node=self._node_id, reason=self.problem)
