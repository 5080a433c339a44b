"""The preferred leaders that cannot lead: who has no vote, or is no member, is named once and then passed over.

Leadership is handed to voters only (raft/transfer.py), and members change while the group runs, so a preferred leader
may be added later, or be gone. Nothing here hands over; a wish that comes to nothing is to be known.
"""

from __future__ import annotations

import logging

from dledger.raft.ids import NodeId
from dledger.raft.membership import names_of
from dledger.runtime.events_log import log_event
from dledger.runtime.roster import Roster


class PreferredLeaders:
    """Tells which of the preferred leaders have no vote, whenever that changes."""

    def __init__(self, preferred: tuple[NodeId, ...], roster: Roster) -> None:
        """Start with nothing told.

        Args:
            preferred: members that should lead when they can, as this node was started.
            roster: the members as it knows them.
        """
        self._preferred = preferred
        self._roster = roster
        self._told: dict[NodeId, str] = {}

    def look(self) -> None:
        """Log what is new; to be called after each change of the members."""
        if not self._roster.knows_members:
            return
        for name in self._preferred:
            reason = self._why_not(name)
            if reason == self._told.get(name, ""):
                continue
            self._told[name] = reason
            level, event = (
                (logging.WARNING, "preferred-leader-has-no-vote")
                if reason
                else (logging.INFO, "preferred-leader-votes")
            )
            log_event(level, event, node=self._roster.node_id, preferred=name, reason=reason or "-")

    def _why_not(self, name: NodeId) -> str:
        """Return why a preferred leader cannot lead; empty: it may."""
        members = self._roster.in_force
        if name in members.voters:
            return ""
        if name in members.joining:
            return "it is a learner; it leads once it votes, which it does by itself"
        if name in members.learners:
            return "it is a learner, and leads once it is promoted (docs/members.md)"
        return f"it is none of the members ({names_of(members.members)}), and leads once it is added and votes"
