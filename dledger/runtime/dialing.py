"""The connections that a node opens: one to each of its contacts, for as long as the roster names them.

They come and go with the members (docs/adr/0185). One that is no contact any more stays connected for a moment: a
leader that was removed hands over on it, and whoever was removed with it hears of what was committed. Knows nothing of
who comes in (transport.py), nor of what is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from dledger.codec.members_attribute import decode_members
from dledger.config import Peer
from dledger.errors import DiskFailedError, DLedgerError, HandshakeRefusedError, UnreachableError
from dledger.raft.ids import NodeId
from dledger.runtime.clock import draw, draw_process_number, now_s
from dledger.runtime.events_log import log_event
from dledger.runtime.handshake import Identity, Remote, dial_member
from dledger.runtime.joining import JoinWatch
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.roster import Roster
from dledger.runtime.task_group import open_task_group

REDIAL_MIN_MS: Final = 50
REDIAL_MAX_MS: Final = 500
"""Pause between two attempts to reach a member; it doubles."""

CLOCK_INTERVAL_S: Final = 60.0
"""A connected member's clock is read again after this; clocks that drift part by milliseconds meanwhile."""

OBSTACLES_INTERVAL_S: Final = 0.5
"""As long as there is no leader, or no room here, members are asked for their obstacles again after this: it begins
after an election that goes well. A leader that hears no majority has less time, and asks the first time at once."""

REPEAT_LINE_S: Final = 10.0
"""The same failure to reach a member is logged again after this."""

REASONS_MAX: Final = 4
"""Failures of so many kinds are told apart; more of them are not logged within that time."""

PARTING_S: Final = 2.0
"""For so long the connections with a removed member stay: a hand-over takes no longer by default."""

Meet = Callable[[NodeId, Remote], Awaitable[None]]


class Dialing:
    """The tasks that dial.

    Invariant: whoever is dialled has a place in the links.
    """

    def __init__(
        self,
        me: Identity,
        roster: Roster,
        links: PeerLinks,
        *,
        join_watch: JoinWatch,
        meet: Meet,
    ) -> None:
        """Set up the tasks; `run` starts them.

        Args:
            me: this member.
            roster: says whom to dial.
            links: gets the connections.
            join_watch: hears how each attempt ended.
            meet: takes in a member's handshake before any message is sent on its connection.
        """
        self._me = me
        self._roster = roster
        self._links = links
        self._join_watch = join_watch
        self._meet = meet
        self._scopes: dict[Peer, trio.CancelScope] = {}

    async def run(self) -> None:
        """Keep a connection to every contact until cancelled."""
        async with open_task_group() as tasks:
            while True:
                contacts = self._roster.contacts()
                for peer in contacts.values():
                    if peer not in self._scopes:
                        self._links.add(peer.node_id)
                        self._scopes[peer] = trio.CancelScope()
                        tasks.start(self._attend, peer, name=f"dial {peer.node_id}")
                for peer in self._scopes:
                    if contacts.get(peer.node_id) != peer:
                        tasks.start(self._part_from, peer, name=f"part from {peer.node_id}")
                await self._roster.wait_changed()

    async def _attend(self, peer: Peer) -> None:
        """Hold a connection to a member, and ask it how it is, for as long as it is a contact."""
        node_id = peer.node_id
        with self._scopes[peer]:
            async with open_task_group() as tasks:
                tasks.start(self._keep_dialing, peer, name=f"dial {node_id}")
                if self._me.clock is not None:
                    tasks.start(self._keep_reading_clock, peer, name=f"clock {node_id}")
                if self._me.obstacles is not None:
                    tasks.start(
                        self._keep_asking_for_obstacles,
                        peer,
                        self._me.obstacles,
                        name=f"obstacles {node_id}",
                    )

    async def _part_from(self, peer: Peer) -> None:
        """Close the connections with a member that was removed, or listens elsewhere; not if it is back by then."""
        contact = self._roster.contacts().get(peer.node_id)
        if contact is None:
            await trio.sleep(PARTING_S)
            contact = self._roster.contacts().get(peer.node_id)
        if contact == peer or peer not in self._scopes:
            return
        self._scopes.pop(peer).cancel()
        self._links.drop(peer.node_id)
        if contact is not None:
            self._links.add(peer.node_id)

    async def _keep_dialing(self, peer: Peer) -> None:
        """Hold a connection to a member for as long as this node lives."""
        pause_ms = REDIAL_MIN_MS
        said = _Said()
        while True:
            try:
                await self._dial(peer)
            except DiskFailedError:
                raise
            except DLedgerError as error:
                reason = str(error)
                is_stranger = isinstance(error, HandshakeRefusedError) and error.kind == "stranger"
                self._note_outcome(peer, "" if is_stranger else reason)
                if said.is_news(reason):
                    log_event(
                        self._level_of(error),
                        "peer-not-reached",
                        node=self._me.node_id,
                        peer=peer,
                        reason=reason,
                    )
                if is_stranger:
                    self._note_turned_away(reason)
            else:
                pause_ms = REDIAL_MIN_MS
                said = _Said()
                await self._links.wait_broken(peer.node_id)
            await trio.sleep(draw(pause_ms // 2, pause_ms) / 1000)
            pause_ms = min(2 * pause_ms, REDIAL_MAX_MS)

    def _note_outcome(self, peer: Peer, reason: str) -> None:
        if reason:
            self._join_watch.not_reached(peer, reason)
        else:
            self._join_watch.reached(peer.node_id)

    def _level_of(self, error: DLedgerError) -> int:
        """Return the log level; to a node that waits to be added nobody who is down is a matter of course."""
        is_down = isinstance(error, UnreachableError) and self._join_watch.is_waiting
        return logging.WARNING if is_down else level_of(error)

    def _note_turned_away(self, reason: str) -> None:
        """Remember that a member takes this node for none; the first one is a line of its own."""
        if self._roster.turned_away(reason):
            is_waiting = not self._roster.knows_members
            level, event = (
                (logging.INFO, "not-added-yet") if is_waiting else (logging.ERROR, "removed")
            )
            log_event(level, event, node=self._me.node_id, reason=reason)

    async def _dial(self, peer: Peer) -> None:
        """Try once to reach a member.

        Raises:
            UnreachableError: nobody answers there.
            DLedgerError: who answers is not that member, or does not want us.
        """
        stream, remote = await dial_member(peer, self._me)
        try:
            await self._meet(peer.node_id, remote)
            # It saves, whatever happens: meanwhile the member may have been removed, or have moved.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:  # also a cancellation: nobody else knows of the stream yet
            stream.close()
            raise
        # Before the first message can leave: who asks for a vote has read the clocks of those whom it asks.
        self._learn_clock(peer.node_id, remote)
        self._links.open(peer.node_id, stream.sock)
        waits_too = decode_members(remote.attributes).is_joining
        self._note_outcome(peer, "it waits to be added itself" if waits_too else "")
        self._roster.taken_in()

    def _learn_clock(self, node_id: NodeId, remote: Remote) -> None:
        if self._me.clock is not None and remote.clock is not None:
            self._me.clock.learn(node_id, remote.clock)

    async def _keep_reading_clock(self, peer: Peer) -> None:
        """Read the clock of a connected member now and then."""
        while True:
            await trio.sleep(CLOCK_INTERVAL_S)
            remote = await self._look_at(peer)
            if remote is not None:
                self._learn_clock(peer.node_id, remote)

    async def _keep_asking_for_obstacles(self, peer: Peer, obstacles: Obstacles) -> None:
        """Ask a connected member for its obstacles, as long as these may be why nobody leads or hears a majority."""
        while True:
            await obstacles.wait_wanted()
            if not obstacles.are_pressing:
                await trio.sleep(OBSTACLES_INTERVAL_S)
            while obstacles.are_wanted:
                remote = await self._look_at(peer)
                obstacles.learn(peer.node_id, None if remote is None else remote.attributes)
                await trio.sleep(OBSTACLES_INTERVAL_S)

    async def _look_at(self, peer: Peer) -> Remote | None:
        """Return a member's current attributes, by a second handshake as a client that then disconnects."""
        if not self._links.is_connected(peer.node_id):
            return None
        reader = replace(
            self._me,
            node_id=None,
            process=draw_process_number(),
            attributes={},
            clock=None,
            store_identity=None,
            obstacles=None,
            group_check=None,
        )
        try:
            stream, remote = await dial_member(peer, reader)
        except DLedgerError:
            # A member that cannot be reached is logged where its own connection breaks.
            return None
        stream.close()
        return remote


class _Said:
    """The failures to reach one member that were logged of late.

    Whoever listens there instead of it may end one attempt in this way and the next in that.
    """

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def is_news(self, reason: str) -> bool:
        """Return whether a failure is to be logged now, and remember that it is."""
        present_s = now_s()
        self._at_s = {
            each: at_s for each, at_s in self._at_s.items() if present_s - at_s <= REPEAT_LINE_S
        }
        if reason in self._at_s or len(self._at_s) >= REASONS_MAX:
            return False
        self._at_s[reason] = present_s
        return True


def level_of(error: BaseException) -> int:
    """Return the log level: a member that is down is a matter of course, one of another group is an error."""
    if isinstance(error, UnreachableError):
        return logging.INFO
    kind = error.kind if isinstance(error, HandshakeRefusedError) else ""
    if kind == "stranger":
        return logging.INFO  # said once, and louder, by a line of its own
    return logging.ERROR if kind == "group" else logging.WARNING
