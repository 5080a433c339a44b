"""The check of a node that is its group's only voter, and hears of members that were committed later than its own.

Whatever its group has committed a lone voter has written. So its store is another one than that with which the group
went on: it was deleted, and the node was started as when it founded the group, or it is an old copy. Then there are two
groups that acknowledge, and this one has to stop. What says so is part of a handshake that may end before the other
side has shown the group's secret; so the node asks for itself, as a client does, and believes a leader there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from dledger.codec.members_attribute import StatedMembers
from dledger.config import Peer, peer_at
from dledger.errors import DLedgerError
from dledger.raft.ids import Index, NodeId
from dledger.raft.membership import names_of
from dledger.runtime.client import Client
from dledger.runtime.events_log import log_event
from dledger.runtime.handshake import Identity
from dledger.runtime.roster import Roster

ASK_S: Final = 5.0
"""For so long a leader is looked for that answers."""

PAUSE_S: Final = 1.0
"""Between two questions: whoever connects can cause them."""


class LoneCheck:
    """Asks who leads where others contradict a lone voter, and has it give up its vote if there is one."""

    def __init__(self, me: Identity, roster: Roster, give_up: Callable[[str], None]) -> None:
        """Set up the check; `run` does it.

        Args:
            me: this member.
            roster: the members as it knows them.
            give_up: called with the reason for which this node must not vote any more.
        """
        self._me = me
        self._roster = roster
        self._give_up = give_up
        self._suspect: Peer | None = None
        self._heard = trio.Event()

    def note_claim(self, node_id: str, stated: StatedMembers) -> None:
        """Take in what a node says of the members, which nobody has proved yet."""
        if self._suspect is None and self._roster.is_outrun(stated):
            self._suspect = peer_at(NodeId(node_id), stated.address) or self._roster.peer(node_id)
            self._heard.set()

    async def run(self) -> None:
        """Ask whoever was heard, one at a time, until cancelled."""
        while True:
            await self._heard.wait()
            self._heard = trio.Event()
            suspect = self._suspect
            if suspect is not None:
                await self._ask(suspect)
            self._suspect = None
            await trio.sleep(PAUSE_S)

    async def _ask(self, peer: Peer) -> None:
        """Ask who leads by what this member knows, and give up the vote if they are further."""
        me = self._me
        try:
            async with Client(
                (peer,), group=me.group, secret=me.secret, tls=me.tls, timeout_s=ASK_S
            ) as client:
                seen = await client.members()
        except DLedgerError as error:
            # Nobody leads there, so nobody acknowledges anything there either.
            log_event(
                logging.WARNING,
                "not-asked-about-members",
                node=me.node_id,
                peer=peer,
                reason=error,
            )
            return
        names = frozenset(map(NodeId, (*seen.voters, *seen.learners)))
        said = StatedMembers(
            names, Index(seen.index), Index(seen.index if seen.is_committed else 0)
        )
        if self._roster.is_outrun(said):
            self._give_up(
                f"{seen.leader_id} leads the members ({names_of(names)}), by entry {seen.index}, which {me.node_id} "
                "does not have, though by its own store it is alone: the store was deleted or is an old copy, and the "
                "group has gone on without it. What was acknowledged here since is not in the group: stop this node, "
                "put its store aside, and start it with an empty one and --join (docs/members.md)"
            )
