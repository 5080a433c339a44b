"""The watch of a node that waits to be added to a group: it says what is wrong while nobody takes it in.

Such a node has no group yet, so nothing else fails when `--peers` is mistyped: a member that is not there is a matter
of course in a group, and here it may be all that the node knows. Dialling reports how each attempt ended; what
follows from all of them together is said here, loudly and again and again, and shown in the node's status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import trio

from dledger.config import Peer
from dledger.raft.ids import NodeId
from dledger.runtime.clock import now_s
from dledger.runtime.events_log import log_event
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.roster import Roster

LOOK_S: Final = 0.5
PATIENCE_S: Final = 4.0
"""Longer than an attempt to connect takes, so that one look has heard of each member; short for who sits before it."""

REPEAT_S: Final = 60.0
"""The time after which the same trouble is logged again."""

_WHAT_TO_DO: Final = (
    "Correct --peers (dLegerPeers), or the group's name, and start again; the store may stay as it is "
    "(docs/members.md)"
)


class JoinWatch:
    """The watch for a group that is not found, and for one that does not find this node.

    Attributes:
        trouble: what is wrong, for people; empty: nothing is known to be.
    """

    def __init__(self, roster: Roster, links: PeerLinks) -> None:
        """Set up the watch; `run` looks.

        Args:
            roster: the members as this node knows them.
            links: its connections.
        """
        self.trouble = ""
        self._roster = roster
        self._links = links
        self._reasons: dict[NodeId, str] = {}
        self._waits_since_s = now_s()
        self._said: tuple[str, float] | None = None

    @property
    def is_waiting(self) -> bool:
        """True of a node that joins and was not added yet, as far as it knows."""
        return not self._roster.knows_members

    def reached(self, node_id: NodeId) -> None:
        """Note that a member answered as one of the group, whatever it thinks of this node."""
        self._reasons[node_id] = ""

    def not_reached(self, peer: Peer, reason: str) -> None:
        """Note why a member cannot be spoken to, or is none of the group."""
        self._reasons[peer.node_id] = reason.removeprefix(f"{peer}: ")

    async def run(self) -> None:
        """Look as long as this node waits, until cancelled."""
        while True:
            if not self.is_waiting:
                self.trouble, self._said = "", None
                await self._roster.wait_changed()
                self._waits_since_s = now_s()
                continue
            self.look()
            with trio.move_on_after(LOOK_S):
                await self._roster.wait_changed()

    def look(self) -> None:
        """Find out what is wrong, and say it if that is news or long ago."""
        if now_s() - self._waits_since_s < PATIENCE_S:
            return
        event, self.trouble = self._find()
        if not event:
            self._said = None
            return
        if self._said is not None and self._said[0] == event and now_s() < self._said[1] + REPEAT_S:
            return
        self._said = event, now_s()
        log_event(logging.ERROR, event, node=self._roster.node_id, reason=self.trouble)

    def _find(self) -> tuple[str, str]:
        """Return what is wrong, as an event and for people; both empty: nothing is known to be."""
        contacts = self._roster.contacts()
        if all(self._reasons.get(name) != "" for name in contacts):
            return "group-not-found", self._why_not_found(contacts)
        if self._links.connected() and not self._links.incoming_count:
            own = self._roster.peer(self._roster.node_id)
            assert own is not None, "a node's own address is among its peers"
            return "not-reached-by-members", (
                f"{', '.join(self._links.connected())} know this node as a member, and none of them connects to it at "
                f"{own.address}: it was added with another address, or nothing gets through to this one. Remove it and "
                f"add it as {own}, or start it where it was added; the store may stay as it is (docs/members.md)"
            )
        return "", ""

    def _why_not_found(self, contacts: Mapping[NodeId, Peer]) -> str:
        told = [
            f"{peer} ({self._reasons.get(name) or 'no answer yet'})"
            for name, peer in contacts.items()
        ]
        return f"nobody whom --peers names answers as one of the group: {'; '.join(told)}. {_WHAT_TO_DO}"
