"""Accepts clients and reads their frames: a task for each connection, one pass over all frames of one read."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import trio

from broker.remoting.errors import FrameError
from broker.remoting.frame import Frame, FrameDecoder
from broker.server.config import Address, Limits
from broker.server.connection import ClientConnection

_log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
"""One receive buffer for all connections: 16 KB would double the CPU a message costs (performance.md)."""

IDLE_MS = 120_000
"""Both ends of the protocol close a connection that was silent for this long (remoting.md 1.1)."""

PARTIAL_MS = 60_000
"""A frame must be complete this long after its first byte."""

_SWEEP_S = 5.0
_BACKLOG = 1024

FrameHandler = Callable[[ClientConnection, Frame], None]


class Listener:
    """All client connections of a process.

    Answers are gathered on their connections and written by `flush`, which everything that produced
    some calls when it is done: the read pass here, a commit, a timer.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        handle: FrameHandler,
        closed: Callable[[ClientConnection], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Prepare; `run` does the work.

        `handle` is called for each frame, without a checkpoint; it raises FrameError for a bad header.
        `closed` is called once for each connection that ended.
        """
        self._limits = limits
        self._handle = handle
        self._closed = closed
        self._now_ms = now_ms
        self._dirty: list[ClientConnection] = []
        self._buffer = bytearray(READ_BYTES)
        self._nursery: trio.Nursery | None = None
        self.connections: dict[int, ClientConnection] = {}
        self.addresses: list[Address] = []
        self.is_refusing = False

    async def run(
        self,
        addresses: list[Address],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled; started with the addresses that are bound.

        Raises:
            OSError: an address cannot be bound.
        """
        sockets: list[socket.socket] = []
        try:
            sockets.extend(_bind(address) for address in addresses)
            self.addresses = [Address(*sock.getsockname()[:2]) for sock in sockets]
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._sweep)
                for sock in sockets:
                    nursery.start_soon(self._accept, sock)
                task_status.started(self.addresses)
        finally:
            for sock in sockets:
                sock.close()
            for connection in tuple(self.connections.values()):
                connection.close("the broker stops")

    def flush(self) -> None:
        """Write all gathered answers, one system call for each connection."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.flush()

    async def _accept(self, listening: socket.socket) -> None:
        assert self._nursery is not None
        while True:
            await trio.lowlevel.wait_readable(listening)
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of file descriptors, most often: others must go on, and so must the loop.
                _log.warning("a client could not be accepted: %s", error)
                await trio.sleep(0.1)
                continue
            if self.is_refusing or len(self.connections) >= self._limits.connections_max:
                if not self.is_refusing:
                    _log.warning("a client was turned away: %d connections", len(self.connections))
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._nursery.start_soon(self._serve, self._connect(sock))

    def _connect(self, sock: socket.socket) -> ClientConnection:
        nursery = self._nursery
        assert nursery is not None
        connection = ClientConnection(
            sock,
            decoder=FrameDecoder(self._limits.frame_bytes_max),
            output_bytes_max=self._limits.output_bytes_max,
            mark_dirty=self._mark_dirty,
            spawn=lambda connection: nursery.start_soon(connection.drain),
            now_ms=self._now_ms(),
        )
        self.connections[connection.number] = connection
        return connection

    def _mark_dirty(self, connection: ClientConnection) -> None:
        self._dirty.append(connection)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await self._read_frames(connection)
        finally:
            connection.close("closed by the client")
            del self.connections[connection.number]
            self._closed(connection)

    async def _read_frames(self, connection: ClientConnection) -> None:
        view = memoryview(self._buffer)
        decoder, sock, handle = connection.decoder, connection.sock, self._handle
        while not connection.is_closed:
            try:
                await trio.lowlevel.wait_readable(sock)
                received = sock.recv_into(self._buffer)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return
            if received == 0:
                return
            connection.active_ms = self._now_ms()
            decoder.feed(bytes(view[:received]))
            try:
                for frame in decoder.frames():
                    handle(connection, frame)
            except FrameError as error:
                self.flush()
                _log.warning("closed the connection of %s: %s", connection.address, error)
                connection.close(str(error))
                return
            if decoder.pending_bytes == 0:
                connection.partial_since_ms = None
            elif connection.partial_since_ms is None:
                connection.partial_since_ms = connection.active_ms
            self.flush()

    async def _sweep(self) -> None:
        """Cut connections that are silent or that never finish a frame."""
        while True:
            await trio.sleep(_SWEEP_S)
            now_ms = self._now_ms()
            for connection in tuple(self.connections.values()):
                since = connection.partial_since_ms
                if now_ms - connection.active_ms > IDLE_MS:
                    connection.close("idle")
                elif since is not None and now_ms - since > PARTIAL_MS:
                    pending = connection.decoder.pending_bytes
                    _log.warning(
                        "closed the connection of %s: a frame is incomplete after %d s (%d bytes came)",
                        connection.address,
                        PARTIAL_MS // 1000,
                        pending,
                    )
                    connection.close("incomplete frame")


def _bind(address: Address) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
