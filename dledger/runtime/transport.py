"""Connections between members, and the port on which all of them and log clients come in.

Every node dials every other node, and serves whoever dials it. Here are the tasks for that: listening, dialling,
handshakes, asking connected members how they are. What is sent and read once a member is connected stands in
peer_links.py; it needs no task.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import trio

from dledger.codec.frame import FRAME_BYTES_MAX
from dledger.codec.hello import HELLO_FRAME_BYTES_MAX
from dledger.codec.member_record import MEMBER_ATTRIBUTE
from dledger.config import Peer
from dledger.errors import (
    DiskFailedError,
    DLedgerError,
    HandshakeRefusedError,
    PeerProtocolError,
    UnreachableError,
)
from dledger.raft.ids import NodeId
from dledger.runtime.clock import draw, draw_process_number, now_s
from dledger.runtime.events_log import LimitedLog, log_event
from dledger.runtime.frame_room import ROOM_BYTES_MAX, FrameRoom, Holder
from dledger.runtime.group_check import OWN_ATTRIBUTES
from dledger.runtime.handshake import (
    HANDSHAKE_TIMEOUT_S,
    Identity,
    Remote,
    accept,
    dial_member,
    opening_decoder,
)
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.sockets import RESOURCE_ERRORS, FrameStream, listen, tune
from dledger.runtime.task_group import TaskGroup, open_task_group

UNTRUSTED_COUNT_MAX: Final = 64
"""Connections whose handshake is not finished; more are closed at once."""

CONNECTION_COUNT_MAX: Final = 1024
"""Connections that came in, members and clients together."""

REDIAL_MIN_MS: Final = 50
REDIAL_MAX_MS: Final = 500
"""Pause between two attempts to reach a member; it doubles."""

CLOCK_INTERVAL_S: Final = 60.0
"""A connected member's clock is read again after this; clocks that drift part by milliseconds meanwhile."""

OBSTACLES_INTERVAL_S: Final = 0.5
"""As long as there is no leader, or no room here, members are asked for their obstacles again after this: it begins
after an election that goes well."""

REPEAT_LINE_S: Final = 10.0
"""The same failure to reach a member is logged again after this."""

ClientHandler = Callable[[FrameStream, Remote], Awaitable[None]]


class Transport:
    """All connections of one node.

    `run` owns the tasks that listen and dial.

    Attributes:
        links: to and from the other members; the driver uses them in its passes.
    """

    def __init__(
        self,
        me: Identity,
        peers: tuple[Peer, ...],
        *,
        blob_bytes_max: int,
        client_blob_bytes_max: int,
        serve_client: ClientHandler,
    ) -> None:
        """Set up a transport without sockets; `listen` opens the first one.

        Args:
            me: this member.
            peers: all members, this one included.
            blob_bytes_max: largest blob that a member may send.
            client_blob_bytes_max: largest blob that a client may send.
            serve_client: talks to an accepted log client until it goes.
        """
        self._me = me
        self._peers = peers
        self._blob_bytes_max = blob_bytes_max
        self._client_blob_bytes_max = client_blob_bytes_max
        self._serve_client = serve_client
        others = [peer.node_id for peer in peers if peer.node_id != me.node_id]
        self._outsiders = LimitedLog()
        assert me.node_id is not None, "only a member has a transport"
        self.links = PeerLinks(
            me.node_id, others, group_check=me.group_check, outsiders=self._outsiders
        )
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
        own = next(peer for peer in self._peers if peer.node_id == self._me.node_id)
        self._listener = await listen(own.host, own.port)

    async def run(self) -> None:
        """Accept and dial until cancelled."""
        assert self._listener is not None, "listen first"
        async with open_task_group() as tasks:
            tasks.start(self._accept_all, self._listener, tasks, name="accept")
            tasks.start(self._room.keep_pace, self._log_cut_off, name="pace")
            for peer in self._peers:
                if peer.node_id != self._me.node_id:
                    tasks.start(self._keep_dialing, peer, name=f"dial {peer.node_id}")
                    if self._me.clock is not None:
                        tasks.start(self._keep_reading_clock, peer, name=f"clock {peer.node_id}")
                    if self._me.obstacles is not None:
                        tasks.start(
                            self._keep_asking_for_obstacles,
                            peer,
                            self._me.obstacles,
                            name=f"obstacles {peer.node_id}",
                        )

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
                is_adopted = True
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
        level = _level_of(reason) if isinstance(reason, HandshakeRefusedError) else logging.WARNING
        self._outsiders.log_event(
            level,
            event,
            node=self._me.node_id,
            address=stream.peer,
            reason=reason,
        )

    async def _meet(self, node_id: NodeId, remote: Remote) -> None:
        """Take in a member's handshake before any message is sent or read on its connection.

        Raises:
            PeerProtocolError: it is not to be understood.
            DiskFailedError: it could not be remembered; the node must stop.
        """
        if self._me.store_identity is not None:
            await self._me.store_identity.learn(node_id, remote.attributes)
        self._attributes[node_id] = {
            name: value
            for name, value in remote.attributes.items()
            if name != MEMBER_ATTRIBUTE and name not in OWN_ATTRIBUTES
        }

    async def _keep_dialing(self, peer: Peer) -> None:
        """Hold a connection to a member for as long as this node lives."""
        pause_ms = REDIAL_MIN_MS
        last_reason, last_line_s = "", 0.0
        while True:
            try:
                await self._dial(peer)
            except DiskFailedError:
                raise
            except DLedgerError as error:
                reason = str(error)
                if reason != last_reason or now_s() - last_line_s > REPEAT_LINE_S:
                    last_reason, last_line_s = reason, now_s()
                    log_event(
                        _level_of(error),
                        "peer-not-reached",
                        node=self._me.node_id,
                        peer=peer,
                        reason=reason,
                    )
            else:
                pause_ms = REDIAL_MIN_MS
                last_reason = ""
                await self.links.wait_broken(peer.node_id)
            await trio.sleep(draw(pause_ms // 2, pause_ms) / 1000)
            pause_ms = min(2 * pause_ms, REDIAL_MAX_MS)

    async def _dial(self, peer: Peer) -> None:
        """Try once to reach a member.

        Raises:
            UnreachableError: nobody answers there.
            DLedgerError: who answers is not that member, or does not want us.
        """
        stream, remote = await dial_member(peer, self._me)
        try:
            await self._meet(peer.node_id, remote)
        except BaseException:
            stream.close()
            raise
        # Before the first message can leave: who asks for a vote has read the clocks of those whom it asks.
        self._learn_clock(peer.node_id, remote)
        self.links.open(peer.node_id, stream.sock)

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
        """Ask a connected member for its obstacles, as long as these may be why nobody leads."""
        while True:
            await obstacles.wait_wanted()
            await trio.sleep(OBSTACLES_INTERVAL_S)
            remote = await self._look_at(peer)
            obstacles.learn(peer.node_id, None if remote is None else remote.attributes)

    async def _look_at(self, peer: Peer) -> Remote | None:
        """Return a member's current attributes, by a second handshake as a client that then disconnects."""
        if not self.links.is_connected(peer.node_id):
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


def _level_of(error: BaseException) -> int:
    """Return the log level: a member that is down is a matter of course, one of another group is an error."""
    if isinstance(error, UnreachableError):
        return logging.INFO
    is_foreign = isinstance(error, HandshakeRefusedError) and error.kind == "group"
    return logging.ERROR if is_foreign else logging.WARNING


def _trust(stream: FrameStream, blob_bytes_max: int) -> None:
    """Raise the decoder's bounds for blobs of this size, now that the handshake has succeeded."""
    frame_bytes_max = min(FRAME_BYTES_MAX, HELLO_FRAME_BYTES_MAX + blob_bytes_max)
    stream.decoder.raise_bounds(frame_bytes_max=frame_bytes_max, blob_bytes_max=blob_bytes_max)
