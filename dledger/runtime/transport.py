"""Connections between members, and the port on which all of them and log clients come in.

Every node dials every other node and sends its own messages on that connection; on a connection
that came in it only reads. All connections of members hang on one epoll descriptor, so that the
driver reads everything that is there in one pass with one wake-up. Handshakes and log clients have
tasks of their own.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import trio

from dledger.codec.frame import FRAME_BYTES_MAX, FrameDecoder
from dledger.codec.hello import HELLO_FRAME_BYTES_MAX
from dledger.codec.member_record import MEMBER_ATTRIBUTE
from dledger.codec.rpc import decode_message
from dledger.config import Peer
from dledger.errors import (
    DiskFailedError,
    DLedgerError,
    ForkedError,
    HandshakeRefusedError,
    PeerProtocolError,
    UnreachableError,
)
from dledger.raft.ids import NodeId
from dledger.raft.messages import PeerMessage
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
from dledger.runtime.peer_link import BlobCache, PeerLink
from dledger.runtime.sockets import RESOURCE_ERRORS, FrameStream, listen, tune
from dledger.runtime.task_group import TaskGroup, open_task_group

RECEIVE_BUFFER_BYTES: Final = 1024 * 1024
"""One buffer for all members: large reads halve the CPU per message (measured)."""

READS_PER_PASS_MAX: Final = 4
"""Full buffers taken from one member in a pass; then the others have their turn."""

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

_READ = select.EPOLLIN | select.EPOLLRDHUP
_READ_AND_WRITE = _READ | select.EPOLLOUT

ClientHandler = Callable[[FrameStream, Remote], Awaitable[None]]


class Outgoing:
    """The connection to a member, while there is one."""

    __slots__ = ("is_broken", "link", "node_id", "wants_write")

    def __init__(self, node_id: NodeId, cache: BlobCache) -> None:
        self.node_id = node_id
        self.link = PeerLink(cache)
        self.wants_write = False
        self.is_broken = trio.Event()


class Incoming:
    """A connection on which a member speaks to us."""

    __slots__ = ("decoder", "node_id", "process", "sock")

    def __init__(
        self, node_id: NodeId, process: int, sock: socket.socket, decoder: FrameDecoder
    ) -> None:
        self.node_id = node_id
        self.process = process
        self.sock = sock
        self.decoder = decoder


class Transport:
    """All connections of one node.

    The driver calls the synchronous half (`receive`, `post`, `flush`, `take_lost`) in its passes;
    `run` owns the tasks that listen and dial.
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
        """Prepare; nothing is opened before `listen`.

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
        self._epoll = select.epoll()
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        cache = BlobCache()
        self._outgoing = {
            peer.node_id: Outgoing(peer.node_id, cache)
            for peer in peers
            if peer.node_id != me.node_id
        }
        self._incoming: dict[NodeId, Incoming] = {}
        self._by_descriptor: dict[int, Outgoing | Incoming] = {}
        self._attributes: dict[NodeId, Mapping[str, str]] = {}
        self._lost: list[NodeId] = []
        self._listener: socket.socket | None = None
        self._untrusted_count = 0
        self._connection_count = 0
        self._outsiders = LimitedLog()
        largest_bytes = FRAME_BYTES_MAX + client_blob_bytes_max
        self._room = FrameRoom(max(ROOM_BYTES_MAX, 2 * largest_bytes))

    # What the driver uses; nothing here waits.

    def receive(self, deliver: Callable[[PeerMessage], None]) -> None:
        """Read what every member has sent, and hand over each message; finish waiting sends."""
        for descriptor, mask in self._epoll.poll(0):
            match self._by_descriptor.get(descriptor):
                case Incoming() as incoming:
                    self._read(incoming, deliver)
                case Outgoing() as outgoing:
                    if mask & ~select.EPOLLOUT:
                        self._notice_end(outgoing)
                    else:
                        self._flush_one(outgoing)
                case None:
                    pass

    def post(self, to: NodeId, message: PeerMessage) -> None:
        """Queue a message; `flush` sends it."""
        self._outgoing[to].link.post(message)

    def flush(self) -> None:
        """Send what is queued, as far as the kernel takes it."""
        for outgoing in self._outgoing.values():
            if not outgoing.wants_write and outgoing.link.has_waiting:
                self._flush_one(outgoing)

    def take_lost(self) -> list[NodeId]:
        """Return the members whose connection broke since the last call."""
        taken, self._lost = self._lost, []
        return taken

    async def wait_ready(self) -> None:
        """Wait until `receive` has something to do."""
        await trio.lowlevel.wait_readable(self._epoll)

    # What others may know.

    def attributes(self, node_id: NodeId) -> Mapping[str, str]:
        """Return what a member last reported of itself; empty when it was never met."""
        return self._attributes.get(node_id, {})

    def connected(self) -> list[NodeId]:
        """Return the members that we can send to, in the order of the configuration."""
        return [
            node_id
            for node_id, outgoing in self._outgoing.items()
            if outgoing.link.sock is not None
        ]

    # Reading and writing.

    def _read(self, incoming: Incoming, deliver: Callable[[PeerMessage], None]) -> None:
        for _ in range(READS_PER_PASS_MAX):
            try:
                count = incoming.sock.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._end_incoming(incoming)
                return
            try:
                for frame in incoming.decoder.feed(self._buffer[:count]):
                    message = decode_message(frame.header, frame.blob)
                    _check_source(message, incoming.node_id)
                    deliver(message)
            except ForkedError as error:
                self._part_from(incoming, error)
                return
            except PeerProtocolError as error:
                self._outsiders.log_event(
                    logging.WARNING,
                    "peer-broke-protocol",
                    node=self._me.node_id,
                    peer=incoming.node_id,
                    reason=error,
                )
                self._end_incoming(incoming)
                return
            if count < len(self._buffer):
                return

    def _part_from(self, incoming: Incoming, error: ForkedError) -> None:
        """End all conversation with a member that leads with another history."""
        if self._me.group_check is not None:
            self._me.group_check.note_forked(incoming.node_id, incoming.process, error)
        self._end_incoming(incoming)
        outgoing = self._outgoing.get(incoming.node_id)
        if outgoing is not None and outgoing.link.sock is not None:
            self._end_outgoing(outgoing, "it leads with another history")

    def _flush_one(self, outgoing: Outgoing) -> None:
        sock = outgoing.link.sock
        try:
            waits = outgoing.link.flush()
        except OSError as error:
            self._end_outgoing(outgoing, str(error.strerror))
            return
        if sock is not None and waits != outgoing.wants_write:
            outgoing.wants_write = waits
            self._epoll.modify(sock, _READ_AND_WRITE if waits else _READ)

    def _notice_end(self, outgoing: Outgoing) -> None:
        """Read from a connection on which the member never speaks: it is over, or a broken protocol."""
        assert outgoing.link.sock is not None, f"{outgoing.node_id} is not connected"
        try:
            data = outgoing.link.sock.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            self._end_outgoing(outgoing, str(error.strerror))
            return
        self._end_outgoing(outgoing, "unexpected bytes" if data else "closed by the peer")

    def _end_outgoing(self, outgoing: Outgoing, reason: str) -> None:
        sock = outgoing.link.sock
        assert sock is not None, f"{outgoing.node_id} is not connected"
        del self._by_descriptor[sock.fileno()]
        outgoing.link.close()
        outgoing.wants_write = False
        outgoing.is_broken.set()
        self._lost.append(outgoing.node_id)
        log_event(
            logging.INFO,
            "peer-disconnected",
            node=self._me.node_id,
            peer=outgoing.node_id,
            reason=reason,
        )

    def _end_incoming(self, incoming: Incoming) -> None:
        """Close a member's connection. That it is gone is reported once: by the outgoing side, if open."""
        self._close_incoming(incoming)
        outgoing = self._outgoing.get(incoming.node_id)
        if outgoing is None or outgoing.link.sock is None:
            self._lost.append(incoming.node_id)

    def _close_incoming(self, incoming: Incoming) -> None:
        del self._by_descriptor[incoming.sock.fileno()]
        if self._incoming.get(incoming.node_id) is incoming:
            del self._incoming[incoming.node_id]
        incoming.sock.close()
        self._connection_count -= 1
        assert self._connection_count >= 0, "more connections are closed than came in"

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
        for outgoing in self._outgoing.values():
            outgoing.link.close()
        for incoming in list(self._incoming.values()):
            self._close_incoming(incoming)
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()

    async def _accept_all(self, listener: socket.socket, tasks: TaskGroup) -> None:
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
                or self._connection_count >= CONNECTION_COUNT_MAX
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
        self._connection_count += 1
        is_adopted = False
        try:
            remote = await self._shake_hands(stream)
            if remote is not None and remote.node_id is not None:
                _trust(stream, self._blob_bytes_max)
                await self._meet(remote.node_id, remote)
                self._adopt(remote.node_id, remote, stream)
                is_adopted = True
            elif remote is not None:
                _trust(stream, self._client_blob_bytes_max)
                stream.share(self._room)
                await self._serve_client(stream, remote)
        except PeerProtocolError as error:
            self._log_outsider("client-broke-protocol", stream, error)
        finally:
            if not is_adopted:
                self._connection_count -= 1
                stream.close()

    async def _shake_hands(self, stream: FrameStream) -> Remote | None:
        """Return the other side, or None when nobody came out of it; the reason is in the log."""
        reason: object
        self._untrusted_count += 1
        try:
            tune(stream.sock)
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                return await accept(stream, self._me, self._why_duplicate)
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

    def _why_duplicate(self, node_id: NodeId, process: int) -> str | None:
        """Refuse a second process with a member's id while the first is connected."""
        present = self._incoming.get(node_id)
        if present is None or present.process == process or _has_ended(present.sock):
            return None
        return f"another process is connected as {node_id}"

    def _adopt(self, node_id: NodeId, remote: Remote, stream: FrameStream) -> None:
        """Let the driver read this connection from here on."""
        old = self._incoming.get(node_id)
        if old is not None:
            self._close_incoming(old)
        incoming = Incoming(node_id, remote.process, stream.sock, stream.decoder)
        self._incoming[node_id] = incoming
        assert stream.sock.fileno() not in self._by_descriptor, f"{node_id} is read twice"
        self._by_descriptor[stream.sock.fileno()] = incoming
        self._epoll.register(stream.sock, _READ)

    async def _meet(self, node_id: NodeId, remote: Remote) -> None:
        """Take what a member said of itself; only then is anything said or heard on its connection.

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
        outgoing = self._outgoing[peer.node_id]
        pause_ms = REDIAL_MIN_MS
        last_reason, last_line_s = "", 0.0
        while True:
            try:
                await self._dial(peer, outgoing)
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
                await outgoing.is_broken.wait()
            await trio.sleep(draw(pause_ms // 2, pause_ms) / 1000)
            pause_ms = min(2 * pause_ms, REDIAL_MAX_MS)

    async def _dial(self, peer: Peer, outgoing: Outgoing) -> None:
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
        self._heard_clock(peer.node_id, remote)
        outgoing.link.open(stream.sock)
        outgoing.is_broken = trio.Event()
        self._by_descriptor[stream.sock.fileno()] = outgoing
        self._epoll.register(stream.sock, _READ)
        log_event(logging.INFO, "peer-connected", node=self._me.node_id, peer=peer.node_id)

    def _heard_clock(self, node_id: NodeId, remote: Remote) -> None:
        if self._me.clock is not None and remote.clock is not None:
            self._me.clock.learn(node_id, remote.clock)

    async def _keep_reading_clock(self, peer: Peer) -> None:
        """Read the clock of a connected member now and then."""
        while True:
            await trio.sleep(CLOCK_INTERVAL_S)
            remote = await self._look_at(peer)
            if remote is not None:
                self._heard_clock(peer.node_id, remote)

    async def _keep_asking_for_obstacles(self, peer: Peer, obstacles: Obstacles) -> None:
        """Ask a connected member for its obstacles, as long as these may be why nobody leads."""
        while True:
            await obstacles.wait_wanted()
            await trio.sleep(OBSTACLES_INTERVAL_S)
            remote = await self._look_at(peer)
            obstacles.learn(peer.node_id, None if remote is None else remote.attributes)

    async def _look_at(self, peer: Peer) -> Remote | None:
        """Return what a connected member reports of itself now, by a handshake as a client that asks nothing more."""
        if self._outgoing[peer.node_id].link.sock is None:
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
    """Take larger frames, as far as such blobs need them: the handshake is done."""
    frame_bytes_max = min(FRAME_BYTES_MAX, HELLO_FRAME_BYTES_MAX + blob_bytes_max)
    stream.decoder.raise_bounds(frame_bytes_max=frame_bytes_max, blob_bytes_max=blob_bytes_max)


def _check_source(message: PeerMessage, node_id: NodeId) -> None:
    if message.source != node_id:
        raise PeerProtocolError(f"a message of {message.source} came from {node_id}")


def _has_ended(sock: socket.socket) -> bool:
    """Return whether the other side is known to be gone, though nobody has read that far."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
