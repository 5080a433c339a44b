"""One connection that carries remoting frames, for either end of it.

Non-blocking sockets and the loop's readiness, no stream on top: a read takes whatever the socket has, up to
the size of the buffer, and gives all whole frames of it at once; a write goes to the socket in the same
call, and only what the socket does not take waits in a queue with a bound, written by a task that lives
as long as there is a rest. A peer that lets more than the bound pile up is cut off.

One task reads; any task of the same thread writes.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import anyio

from dledger_mq.net.loop import Starter, current_loop
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FRAME_BYTES_MAX, Frame, FrameDecoder

_log = logging.getLogger(__name__)

READ_BYTES: Final = 1024 * 1024
"""With 16 KB a message costs twice the CPU: a batch needs more system calls and wake-ups."""

UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Four of the largest frames."""

_PEER_CLOSED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""The other end sends no more; Linux alone says so ahead of the bytes that wait to be read."""

_JOINED_BYTES_MAX: Final = 256 * 1024
"""Queued pieces are joined up to about this size for one system call."""

_PIECES_MAX: Final = 1024
"""Pieces that one system call takes (IOV_MAX of Linux)."""

FREE_BYTES: Final = 16 * 1024
"""A smaller frame asks for no room, and a connection that has none reads pieces of this size while room is short."""

Data = TypeVar("Data")


class Room(Protocol):
    """Memory for frames that have begun and not ended, shared by the connections of a server.

    A connection asks for room for one frame at a time, and reads on when it has it.
    """

    @property
    def is_short(self) -> bool:
        """True while connections are to read small pieces."""
        ...

    def want(self, holder: Connection, need_bytes: int, /) -> object:
        """Ask for room for a frame of this size."""
        ...

    def is_waiting(self, holder: Connection, /) -> bool:
        """Return whether a connection has asked and has no room yet."""
        ...

    async def wait(self, holder: Connection, /) -> None:
        """Wait until a connection has its room, or has given it up."""
        ...

    def leave(self, holder: Connection, /) -> None:
        """Give room back, or stop asking for it."""
        ...


class ReadBuffer:
    """Memory to receive into, shared by all connections of a thread: nothing stays in it over a wait."""

    __slots__ = ("_array", "_view")

    def __init__(self, size_bytes: int = READ_BYTES) -> None:
        self._array = bytearray(size_bytes)
        self._view = memoryview(self._array)

    def receive(self, sock: socket.socket, bytes_max: int = 0) -> bytes:
        """Return what the socket has, b"" at its end; at most `bytes_max`, 0: what fits the buffer.

        Raises:
            OSError: as `recv_into`; BlockingIOError when it has nothing.
        """
        count = sock.recv_into(self._array, min(bytes_max, len(self._array)))
        return bytes(self._view[:count])


class Connection:
    """A connected socket with what came half and what could not be sent yet.

    Invariant: bytes leave in the order of the `send_nowait` calls. After `close` nothing is sent and
    `receive` gives no frames; it never raises for a connection that ended.

    Attributes:
        peer: `host:port` of the other end, for logs and tools.
        close_reason: why it was closed; empty while it is open.
        received_at: the loop's time of the last received byte.
        partial_since: the loop's time since which a frame is unfinished; None between frames.
        received_bytes, sent_bytes, received_frames: totals.
        unsent_bytes: that wait for the socket.
    """

    __slots__ = (
        "_buffer",
        "_decoder",
        "_drained",
        "_has_asked",
        "_is_draining",
        "_loop",
        "_nursery",
        "_queue",
        "_room",
        "_sock",
        "_unsent_bytes_max",
        "close_reason",
        "partial_since",
        "peer",
        "received_at",
        "received_bytes",
        "received_frames",
        "sent_bytes",
        "unsent_bytes",
    )

    def __init__(
        self,
        sock: socket.socket,
        nursery: Starter,
        *,
        buffer: ReadBuffer | None = None,
        room: Room | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        """Take over a connected socket.

        Args:
            sock: made non-blocking here.
            nursery: where the task that writes a rest runs; it has to outlive the connection.
            buffer: to share between connections; one of its own when None.
            room: where frames that are not whole yet find room; None: nothing bounds them together.
            frame_bytes_max: larger frames end the connection.
            unsent_bytes_max: bound of `unsent_bytes`.
        """
        sock.setblocking(False)
        self.peer = _peer_text(sock)
        self.close_reason = ""
        self._loop = current_loop()
        self.received_at = self._loop.now()
        self.partial_since: float | None = None
        self.received_bytes = 0
        self.received_frames = 0
        self.sent_bytes = 0
        self.unsent_bytes = 0
        self._sock = sock
        self._nursery = nursery
        self._buffer = buffer or ReadBuffer()
        self._room = room
        self._decoder = FrameDecoder(frame_bytes_max)
        self._unsent_bytes_max = unsent_bytes_max
        self._queue: deque[bytes] = deque()
        self._is_draining = False
        self._drained = self._loop.new_event()
        self._has_asked = False

    @property
    def is_closed(self) -> bool:
        """True once it was closed from this end or found ended."""
        return bool(self.close_reason)

    @property
    def has_ended(self) -> bool:
        """True once it is closed, or the other end has closed it, though what came before was not read yet.

        A system call: for what is rare. Where the system cannot tell, an end is seen when it is read.
        """
        if self.close_reason or not _PEER_CLOSED:
            return self.is_closed
        poller = select.poll()
        poller.register(self._sock, _PEER_CLOSED)
        return bool(poller.poll(0))

    async def receive(self) -> list[Frame]:
        """Wait for bytes and return the frames that are whole now.

        Returns:
            At least one frame; an empty list means that the connection has ended, and `close_reason`
            says how.

        Raises:
            FrameError: the bytes are no frames. The connection is closed already.
        """
        room, loop = self._room, self._loop
        while not self.close_reason:
            try:
                if self.waits_for_room:
                    await self._wait_for_room()
                    continue
                await loop.wait_readable(self._sock)
                is_short = room is not None and room.is_short
                data = self._buffer.receive(self._sock, self._piece_bytes() if is_short else 0)
            except BlockingIOError:
                continue
            except (OSError, self._loop.closed_error) as error:
                self.close(f"read failed: {error}")
                break
            if not data:
                self.close("closed by the peer")
                break
            frames = self._cut(data)
            if frames:
                return frames
        return []

    def _cut(self, data: bytes) -> list[Frame]:
        """Feed a read to the decoder and return the whole frames.

        After a bad one no other can be found, so the connection is closed.
        """
        decoder = self._decoder
        self.received_at = self._loop.now()
        self.received_bytes += len(data)
        decoder.feed(data)
        try:
            frames = decoder.frames()
        except FrameError as error:
            self.close(f"bad frame: {error}")
            raise
        if decoder.pending_bytes or self.partial_since is not None:
            self._note_partial(decoder.pending_bytes, ended_one=bool(frames))
        self.received_frames += len(frames)
        return frames

    def _note_partial(self, pending_bytes: int, *, ended_one: bool) -> None:
        """Keep account of a frame that is unfinished, or was before these bytes."""
        room = self._room
        if self.partial_since is not None and (ended_one or not pending_bytes):
            self.partial_since = None
            if room is not None and self._has_asked:
                self._has_asked = False
                room.leave(self)
        if not pending_bytes:
            return
        if self.partial_since is None:
            self.partial_since = self.received_at
        if room is not None and not self._has_asked and self._decoder.need_bytes > FREE_BYTES:
            self._has_asked = True
            room.want(self, self._decoder.need_bytes)

    def _piece_bytes(self) -> int:
        """Return how much to read while room is short: the frame that has room, and little more."""
        if not self._has_asked:
            return FREE_BYTES
        return self._decoder.need_bytes - self._decoder.pending_bytes + FREE_BYTES

    async def _wait_for_room(self) -> None:
        """Wait until the frame that was begun may be read on; that time does not count against its sender."""
        assert self._room is not None, f"{self.peer} waits for room, and nothing bounds it"
        await self._room.wait(self)
        self.received_at = self._loop.now()
        self.partial_since = self.received_at

    @property
    def waits_for_room(self) -> bool:
        """True while the sender is kept waiting for room in memory."""
        return self._has_asked and self._room is not None and self._room.is_waiting(self)

    @property
    def has_unread(self) -> bool:
        """True if the socket has bytes that were not read yet."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def send_nowait(self, data: bytes) -> None:
        """Send a frame, or several joined; never blocks, never raises for a connection that ended.

        What the socket does not take is queued; over the bound the connection is closed.
        """
        if self.close_reason:
            return
        if not self._is_draining:
            assert not self._queue, f"{self.peer}: bytes would overtake those that wait"
            sent = self._try_to(self._sock.send, data)
            if sent == len(data) or self.close_reason:
                return
            data = data[sent:]
        self._queue_rest(data)

    def _queue_rest(self, data: bytes) -> None:
        """Queue what the socket did not take, and close the connection if that is too much."""
        if not self._is_draining:
            self._is_draining = True
            self._drained = self._loop.new_event()
            self._nursery.start_soon(self._drain)
        self.unsent_bytes += len(data)
        self._queue.append(data)
        if self.unsent_bytes > self._unsent_bytes_max:
            _log.warning("%s reads too slowly: %d bytes wait for it", self.peer, self.unsent_bytes)
            self.close(f"reads too slowly: {self.unsent_bytes} bytes wait")

    def send_many(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send pieces with one system call, joined: for small ones."""
        self.send_nowait(b"".join(pieces))

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send pieces with one system call, without joining what the socket takes: for large ones.

        Of what it does not take a copy is queued, so that no piece keeps more than itself in memory.
        """
        if self._is_draining or len(pieces) > _PIECES_MAX:
            self.send_nowait(b"".join(pieces))
            return
        if self.close_reason:
            return
        assert not self._queue, f"{self.peer}: bytes would overtake those that wait"
        sent = self._try_to(self._sock.sendmsg, pieces)
        if sent < sum(map(len, pieces)) and not self.close_reason:
            self._queue_rest(b"".join(pieces)[sent:])

    def _try_to(self, write: Callable[[Data], int], data: Data) -> int:
        """Return how many bytes the socket took of what is written; 0, too, of a connection that ends with it."""
        try:
            sent = write(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close(f"write failed: {error}")
            return 0
        self.sent_bytes += sent
        return sent

    async def _drain(self) -> None:
        """Write what is queued; ends when nothing is left or the connection has ended."""
        while self._queue and not self.close_reason:
            try:
                await self._loop.wait_writable(self._sock)
            except (OSError, self._loop.closed_error) as error:
                self.close(f"write failed: {error}")
                break
            if not self._queue:
                break  # closed between the wake-up and this line
            data = self._take_joined()
            sent = self._try_to(self._sock.send, data)
            self.unsent_bytes -= sent
            assert self.unsent_bytes >= 0, f"{self.unsent_bytes} bytes wait for {self.peer}"
            if sent < len(data):
                self._queue.appendleft(data[sent:])
        self._is_draining = False
        self._drained.set()

    def _take_joined(self) -> bytes:
        """Take the first queued pieces, joined; large ones alone."""
        queue = self._queue
        pieces = [queue.popleft()]
        size = len(pieces[0])
        while queue and size + len(queue[0]) <= _JOINED_BYTES_MAX:
            size += len(queue[0])
            pieces.append(queue.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def wait_sent(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; return whether that came in time. For an orderly end."""
        with anyio.move_on_after(timeout_s):
            if self._is_draining:
                await self._drained.wait()
        return not self._queue

    def cut_off(self, reason: str) -> None:
        """Close the connection, since others need its room."""
        self.close(reason)

    def close(self, reason: str) -> None:
        """Close at once. Tasks that wait on the socket wake up and see that it ended."""
        if self.close_reason:
            return
        self.close_reason = reason
        if self._room is not None and self._has_asked:
            self._room.leave(self)
        self._queue.clear()
        self.unsent_bytes = 0
        self._loop.notify_closing(self._sock)
        self._sock.close()


def _peer_text(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "a peer that is gone"
    if not isinstance(name, tuple):
        return "a local peer"  # a Unix socket: its address is a path, mostly empty
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
