"""One TCP connection: bytes out, frames in. Everything above it is about what the frames mean.

Plain non-blocking sockets under trio's readiness calls: a read takes all that the socket has (up to
1 MiB) and yields all whole frames in it, a write is one system call for however many requests were
joined. What the socket does not take at once waits in a backlog that a task of the connection writes.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from broker.client.errors import ClientUsageError, ConnectionLostError
from broker.remoting.errors import FrameError
from broker.remoting.frame import Frame, FrameDecoder

CONNECT_TIMEOUT_S: Final = 3.0  # the Java client's
READ_BYTES_MIN: Final = 64 * 1024
READ_BYTES_MAX: Final = 1024 * 1024


class Wire:
    """An open connection. Owned by the task that runs `serve`; anyone in the thread may send."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.address = address
        self._socket = sock
        self._decoder = FrameDecoder()
        self._read_bytes = READ_BYTES_MIN
        self._backlog = bytearray()
        self._backlog_grew = trio.Event()
        self._is_broken = False

    @property
    def backlog_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._backlog)

    def send_nowait(self, data: bytes) -> None:
        """Send, or queue behind what is queued.

        A failure is not raised here: the reader sees the broken connection too, and it tells
        everybody who waits for an answer.
        """
        if self._is_broken:
            return
        if self._backlog:
            self._backlog += data
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_broken = True
            return
        if sent < len(data):
            self._backlog += memoryview(data)[sent:]
            self._backlog_grew.set()

    async def serve(self, on_frames: Callable[[list[Frame]], None]) -> None:
        """Hand every batch of received frames to `on_frames` until the connection ends.

        Raises:
            ConnectionLostError: always, in the end: it was closed or broke, or the peer sent
                something that is no frame.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_backlog)
                while True:
                    on_frames(await self._receive())
        except* ConnectionLostError as group:
            raise ConnectionLostError(str(group.exceptions[0])) from None
        finally:
            self._is_broken = True

    async def _receive(self) -> list[Frame]:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(self._read_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionLostError(f"{self.address}: {error}") from error
            if not data:
                raise ConnectionLostError(f"{self.address} closed the connection")
            if len(data) == self._read_bytes < READ_BYTES_MAX:
                self._read_bytes *= 2
            self._decoder.feed(data)
            try:
                frames = self._decoder.frames()
            except FrameError as error:
                raise ConnectionLostError(f"{self.address} sent no frame: {error}") from error
            if frames:
                return frames

    async def _write_backlog(self) -> None:
        while True:
            await self._backlog_grew.wait()
            self._backlog_grew = trio.Event()
            while self._backlog:
                await trio.lowlevel.wait_writable(self._socket)
                try:
                    sent = self._socket.send(self._backlog)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._is_broken = True
                    raise ConnectionLostError(f"{self.address}: {error}") from error
                del self._backlog[:sent]


def split_address(address: str) -> tuple[str, int]:
    """Take "host:port" apart.

    Raises:
        ClientUsageError: it is not of that form.
    """
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ClientUsageError(f"{address!r} is not host:port")
    return host, int(port)


@asynccontextmanager
async def open_wire(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> AsyncIterator[Wire]:
    """Connect; the connection is closed when the block is left.

    Raises:
        ConnectionLostError: nobody listens there, or not in time.
    """
    host, port = split_address(address)
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError) as error:
        reason = str(error) or f"no connection within {timeout_s} s"
        raise ConnectionLostError(f"{address}: {reason}") from error
    sock = socket.socket(fileno=stream.socket.detach())
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Wire(sock, address)
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()
