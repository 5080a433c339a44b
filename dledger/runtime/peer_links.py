"""The connections between this node and the other members, as its driver uses them: no call blocks.

A node sends its own messages on the connection that it dialled, and only reads from one that came in. All of them hang
on one epoll descriptor, so that the driver reads everything that is there in one pass with one wake-up. How a
connection comes about is transport.py's business; what a message means is the core's.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import trio

from dledger.codec.frame import FrameDecoder
from dledger.codec.rpc import decode_message
from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.ids import NodeId
from dledger.raft.messages import PeerMessage
from dledger.runtime.events_log import LimitedLog, log_event
from dledger.runtime.group_check import GroupCheck
from dledger.runtime.peer_link import FrameCache, PeerLink
from dledger.runtime.ready_sockets import READ, WRITE, ReadySockets
from dledger.runtime.sockets import FrameStream

RECEIVE_BUFFER_BYTES: Final = 1024 * 1024
"""One buffer for all members: large reads halve the CPU per message (measured)."""

READS_PER_PASS_MAX: Final = 4
"""Full buffers taken from one member in a pass; then the others have their turn."""


class Outgoing:
    """The connection to a member, while there is one."""

    __slots__ = ("is_broken", "link", "node_id", "wants_write")

    def __init__(self, node_id: NodeId, cache: FrameCache) -> None:
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


class PeerLinks:
    """The connections to and from the other members.

    Invariant: every open connection is watched, and nothing else but what `watching` was told.
    """

    def __init__(
        self,
        node_id: NodeId,
        *,
        group_check: GroupCheck | None,
        outsiders: LimitedLog,
    ) -> None:
        """Start without connections.

        Args:
            node_id: this member.
            group_check: remembers which member leads with another history.
            outsiders: the log of what others may cause.
        """
        self._node_id = node_id
        self._group_check = group_check
        self._outsiders = outsiders
        self._ready: ReadySockets[Outgoing | Incoming | Callable[[], None]] = ReadySockets()
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._cache = FrameCache()
        self._outgoing: dict[NodeId, Outgoing] = {}
        self._incoming: dict[NodeId, Incoming] = {}
        self._lost: list[NodeId] = []

    # Messages.

    def receive(self, deliver: Callable[[PeerMessage], None]) -> None:
        """Read what every member has sent, and hand over each message; finish waiting sends."""
        for owner, mask in self._ready.take():
            if isinstance(owner, Incoming):
                if owner.sock.fileno() >= 0:  # what was read before may have closed it
                    self._read(owner, deliver)
            elif not isinstance(owner, Outgoing):
                owner()
            elif owner.link.sock is None:
                pass  # in the same way
            elif mask & ~WRITE:
                self._notice_end(owner)
            else:
                self._flush_one(owner)

    def post(self, to: NodeId, message: PeerMessage) -> None:
        """Queue a message; `flush` sends it. To who is no contact it is lost, as on a connection that breaks."""
        outgoing = self._outgoing.get(to)
        if outgoing is not None:
            outgoing.link.post(message)

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
        await self._ready.wait()

    @contextmanager
    def watching(self, descriptor: int, become_readable: Callable[[], None]) -> Iterator[None]:
        """Let something else end `wait_ready`, too, within the block: `receive` calls back while it is readable."""
        assert not self._ready.is_watched(descriptor), f"descriptor {descriptor} is watched twice"
        self._ready.watch(descriptor, become_readable, READ)
        try:
            yield
        finally:
            self._ready.forget(descriptor)

    # Connections.

    def add(self, node_id: NodeId) -> None:
        """Keep a place for the connection to a node, which may be opened from here on."""
        self._outgoing.setdefault(node_id, Outgoing(node_id, self._cache))

    def drop(self, node_id: NodeId) -> None:
        """Close the connections to and from a node that is no contact any more."""
        outgoing = self._outgoing.get(node_id)
        if outgoing is not None:
            if outgoing.link.sock is not None:
                self._end_outgoing(outgoing, "it is no member any more")
            del self._outgoing[node_id]
        incoming = self._incoming.get(node_id)
        if incoming is not None:
            self._end_incoming(incoming)

    def connected(self) -> list[NodeId]:
        """Return the members that we can send to, in the order in which they became contacts."""
        return [
            node_id
            for node_id, outgoing in self._outgoing.items()
            if outgoing.link.sock is not None
        ]

    @property
    def incoming_count(self) -> int:
        """Connections on which members speak."""
        return len(self._incoming)

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node can send to a member."""
        outgoing = self._outgoing.get(node_id)
        return outgoing is not None and outgoing.link.sock is not None

    def has_incoming(self, node_id: NodeId) -> bool:
        """Return whether a member has a connection on which it speaks to this node."""
        return node_id in self._incoming

    def open(self, node_id: NodeId, sock: socket.socket) -> None:
        """Send to a member on this connection from here on."""
        outgoing = self._outgoing[node_id]
        outgoing.link.open(sock)
        outgoing.is_broken = trio.Event()
        self._ready.watch(sock, outgoing, READ)
        log_event(logging.INFO, "peer-connected", node=self._node_id, peer=node_id)

    async def wait_broken(self, node_id: NodeId) -> None:
        """Wait until the connection on which this node sends to a member breaks."""
        await self._outgoing[node_id].is_broken.wait()

    def adopt(self, node_id: NodeId, process: int, stream: FrameStream) -> None:
        """Read from a member on this connection from here on."""
        old = self._incoming.get(node_id)
        if old is not None:
            self._close_incoming(old)
        incoming = Incoming(node_id, process, stream.sock, stream.decoder)
        self._incoming[node_id] = incoming
        assert not self._ready.is_watched(stream.sock), f"{node_id} is read twice"
        self._ready.watch(stream.sock, incoming, READ)

    def why_duplicate(self, node_id: NodeId, process: int) -> str | None:
        """Return why a connection is refused: another process with this member's id is connected. Else None."""
        present = self._incoming.get(node_id)
        if present is None or present.process == process or _has_ended(present.sock):
            return None
        return f"another process is connected as {node_id}"

    def close(self) -> None:
        """Close everything."""
        for outgoing in self._outgoing.values():
            outgoing.link.close()
        for incoming in list(self._incoming.values()):
            self._close_incoming(incoming)
        self._ready.close()

    # Reading and writing.

    def _read(self, incoming: Incoming, deliver: Callable[[PeerMessage], None]) -> None:
        """Deliver what the socket holds, in a bounded number of reads: one busy member must not starve the others."""
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
                    message = decode_message(frame.header, *frame.pieces)
                    if message.source != incoming.node_id:
                        _refuse_source(message, incoming.node_id)
                    deliver(message)
            except ForkedError as error:
                self._part_from(incoming, error)
                return
            except PeerProtocolError as error:
                self._outsiders.log_event(
                    logging.WARNING,
                    "peer-broke-protocol",
                    node=self._node_id,
                    peer=incoming.node_id,
                    reason=error,
                )
                self._end_incoming(incoming)
                return
            if count < len(self._buffer):
                return

    def _part_from(self, incoming: Incoming, error: ForkedError) -> None:
        """Close both connections to a member that leads with another history."""
        if self._group_check is not None:
            self._group_check.note_forked(incoming.node_id, incoming.process, error)
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
            self._ready.watch(sock, outgoing, READ | WRITE if waits else READ)

    def _notice_end(self, outgoing: Outgoing) -> None:
        """Read from an outgoing connection, on which the member never sends: it was closed, or breaks the protocol."""
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
        """Close a connection and report it as lost, so that the core knows that what was under way may not arrive."""
        sock = outgoing.link.sock
        assert sock is not None, f"{outgoing.node_id} is not connected"
        self._ready.forget(sock)
        outgoing.link.close()
        outgoing.wants_write = False
        outgoing.is_broken.set()
        self._lost.append(outgoing.node_id)
        log_event(
            logging.INFO,
            "peer-disconnected",
            node=self._node_id,
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
        self._ready.forget(incoming.sock)
        if self._incoming.get(incoming.node_id) is incoming:
            del self._incoming[incoming.node_id]
        incoming.decoder.forget()  # whoever keeps the error in a log record keeps the decoder
        incoming.sock.close()


def _refuse_source(message: PeerMessage, node_id: NodeId) -> NoReturn:
    raise PeerProtocolError(f"a message of {message.source} came from {node_id}")


def _has_ended(sock: socket.socket) -> bool:
    """Return whether the other side is known to be gone, though nobody has read that far."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
