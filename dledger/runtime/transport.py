"""The port of a node, on which members and log clients come in, and the owner of all its connections.

Every node dials every other node (dialing.py), and serves whoever dials it: here are listening and the handshakes of
those that come. What is sent and read once a member is connected stands in peer_links.py; it needs no task.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from dledger.codec.frame import FRAME_BYTES_MAX
from dledger.codec.hello import HELLO_FRAME_BYTES_MAX
from dledger.codec.member_record import MEMBER_ATTRIBUTE
from dledger.config import Peer
from dledger.errors import DLedgerError, HandshakeRefusedError, PeerProtocolError
from dledger.raft.ids import NodeId
from dledger.runtime import descriptors
from dledger.runtime.dialing import Dialing, level_of
from dledger.runtime.events_log import LimitedLog, log_event
from dledger.runtime.frame_room import ROOM_BYTES_MAX, FrameRoom, Holder
from dledger.runtime.group_check import OWN_ATTRIBUTES
from dledger.runtime.handshake import (
    HANDSHAKE_TIMEOUT_S,
    Identity,
    Remote,
    accept,
    opening_decoder,
)
from dledger.runtime.joining import JoinWatch
from dledger.runtime.lone_check import LoneCheck
from dledger.runtime.member_sockets import meet
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.roster import Roster
from dledger.runtime.sockets import RESOURCE_ERRORS, FrameStream, listen, tune
from dledger.runtime.task_group import TaskGroup, open_task_group

UNTRUSTED_COUNT_MAX: Final = 64
"""Connections whose handshake is not finished; more are closed at once."""

CONNECTION_COUNT_MAX: Final = 1024
"""Connections that came in, members and clients together."""

ClientHandler = Callable[[FrameStream, Remote], Awaitable[None]]


class Transport:
    """All connections of one node.

    `run` owns the tasks that listen and dial.

    Attributes:
        links: to and from the other members; the driver uses them in its passes.
        join_watch: what is wrong while nobody takes this node in.
    """

    def __init__(
        self,
        me: Identity,
        own: Peer,
        *,
        roster: Roster,
        blob_bytes_max: int,
        client_blob_bytes_max: int,
        serve_client: ClientHandler,
    ) -> None:
        """Set up a transport without sockets; `listen` opens the first one.

        Args:
            me: this member.
            own: where it listens.
            roster: the members, to which connections are kept.
            blob_bytes_max: largest blob that a member may send.
            client_blob_bytes_max: largest blob that a client may send.
            serve_client: talks to an accepted log client until it goes.
        """
        self._me = me
        self._own = own
        self._blob_bytes_max = blob_bytes_max
        self._client_blob_bytes_max = client_blob_bytes_max
        self._serve_client = serve_client
        self._outsiders = LimitedLog()
        assert me.node_id is not None, "only a member has a transport"
        self.links = PeerLinks(me.node_id, group_check=me.group_check, outsiders=self._outsiders)
        self._roster = roster
        self._lone_check = LoneCheck(me, roster, self._give_up_vote)
        if me.group_check is not None:
            me.group_check.note_claim = self._lone_check.note_claim
        self.join_watch = JoinWatch(roster, self.links)
        self._dialing = Dialing(me, roster, self.links, join_watch=self.join_watch, meet=self._meet)
        self._attributes: dict[NodeId, Mapping[str, str]] = {}
        self._listener: socket.socket | None = None
        self._untrusted_count = 0
        self._serving_count = 0
        largest_bytes = FRAME_BYTES_MAX + client_blob_bytes_max
        self._room = FrameRoom(max(ROOM_BYTES_MAX, 2 * largest_bytes))

    # What others may know.

    def attributes(self, node_id: NodeId) -> Mapping[str, str]:
        """Return a member's latest attributes; empty when this node never connected to it."""
        return self._attributes.get(node_id, {})

    # Tasks.

    async def listen(self) -> None:
        """Take the port.

        Raises:
            ListenError: it is taken.
        """
        self._listener = await listen(self._own.host, self._own.port)

    async def run(self) -> None:
        """Accept and dial until cancelled."""
        assert self._listener is not None, "listen first"
        async with open_task_group() as tasks:
            tasks.start(self._accept_all, self._listener, tasks, name="accept")
            tasks.start(self._room.keep_pace, self._log_cut_off, name="pace")
            tasks.start(self._dialing.run, name="dialing")
            tasks.start(self._lone_check.run, name="lone check")
            tasks.start(self.join_watch.run, name="join watch")

    def close(self) -> None:
        """Close everything. The tasks must have ended."""
        if self._listener is not None:
            self._listener.close()
        self.links.close()

    async def _accept_all(self, listener: socket.socket, tasks: TaskGroup) -> None:
        """Accept connections; a lack of descriptors must not end the task, so it is logged and tried again."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno not in RESOURCE_ERRORS:
                    # The connection ended before it was accepted; accept(2) reports it here.
                    continue
                self._outsiders.log_event(
                    logging.ERROR, "accept-failed", node=self._me.node_id, reason=error.strerror
                )
                await trio.sleep(0.1)
                continue
            if (
                self._untrusted_count >= UNTRUSTED_COUNT_MAX
                or self._serving_count + self.links.incoming_count >= CONNECTION_COUNT_MAX
            ):
                sock.close()
                self._outsiders.log_event(
                    logging.WARNING,
                    "connection-refused",
                    node=self._me.node_id,
                    reason="too many connections",
                )
                continue
            tasks.start(self._serve, sock, name="incoming")

    async def _serve(self, sock: socket.socket) -> None:
        """Serve one connection that came in, from its handshake on."""
        stream = FrameStream(sock, opening_decoder())
        self._serving_count += 1
        is_adopted = False
        try:
            remote = await self._shake_hands(stream)
            if remote is not None and remote.node_id is not None:
                _trust(stream, self._blob_bytes_max)
                await self._meet(remote.node_id, remote)
                self.links.adopt(remote.node_id, remote.process, stream)
                self._roster.taken_in()
                is_adopted = True
            elif remote is not None and descriptors.is_kept(stream.sock.fileno()):
                reason = f"no descriptors for clients: {descriptors.limit()} are all (ulimit -n)"
                self._log_outsider("connection-refused", stream, reason)
            elif remote is not None:
                _trust(stream, self._client_blob_bytes_max)
                stream.share(self._room)
                await self._serve_client(stream, remote)
        except PeerProtocolError as error:
            self._log_outsider("client-broke-protocol", stream, error)
        finally:
            self._serving_count -= 1
            if not is_adopted:
                stream.close()

    async def _shake_hands(self, stream: FrameStream) -> Remote | None:
        """Return the other side, or None when nobody came out of it; the reason is in the log."""
        reason: object
        self._untrusted_count += 1
        try:
            tune(stream.sock)
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                if self._me.tls is not None:
                    await meet(stream, self._me.tls)
                return await accept(stream, self._me, self.links.why_duplicate)
        except trio.TooSlowError:
            reason = "handshake timeout"
        except (DLedgerError, OSError) as error:
            reason = error
        finally:
            self._untrusted_count -= 1
        self._log_outsider("connection-refused", stream, reason)
        return None

    def _log_cut_off(self, closed: list[Holder]) -> None:
        log_event(
            logging.WARNING,
            "unfinished-frames-cut-off",
            node=self._me.node_id,
            address=closed[0].peer,
            count=len(closed),
            waiting=self._room.waiting_count,
            room_bytes=self._room.bytes_max,
        )

    def _log_outsider(self, event: str, stream: FrameStream, reason: object) -> None:
        level = level_of(reason) if isinstance(reason, HandshakeRefusedError) else logging.WARNING
        self._outsiders.log_event(
            level,
            event,
            node=self._me.node_id,
            address=stream.peer,
            reason=reason,
        )

    def _give_up_vote(self, reason: str) -> None:
        if self._me.store_identity is not None:
            self._me.store_identity.note_lost(reason)

    async def _meet(self, node_id: NodeId, remote: Remote) -> None:
        """Take in a member's handshake before any message is sent or read on its connection.

        Raises:
            PeerProtocolError: it is not to be understood.
            DiskFailedError: it could not be remembered; the node must stop.
        """
        if self._me.store_identity is not None:
            await self._me.store_identity.learn(node_id, remote.attributes)
        if self._me.group_check is not None:
            self._me.group_check.learn(node_id, remote.attributes)
        self._attributes[node_id] = {
            name: value
            for name, value in remote.attributes.items()
            if name != MEMBER_ATTRIBUTE and name not in OWN_ATTRIBUTES
        }


def _trust(stream: FrameStream, blob_bytes_max: int) -> None:
    """Raise the decoder's bounds for blobs of this size, now that the handshake has succeeded."""
    frame_bytes_max = min(FRAME_BYTES_MAX, HELLO_FRAME_BYTES_MAX + blob_bytes_max)
    stream.decoder.raise_bounds(frame_bytes_max=frame_bytes_max, blob_bytes_max=blob_bytes_max)
