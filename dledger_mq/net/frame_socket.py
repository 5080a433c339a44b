"""A connected socket that carries remoting frames, for either end of it; nothing here waits.

Non-blocking sockets, no stream on top: a read takes whatever the socket has, up to the size of the buffer, and gives
all whole frames of it at once; a write goes to the socket in the same call, and only what the socket does not take
waits in a queue with a bound. A peer that lets more than the bound pile up is cut off.

Who waits for the socket is the business of those who derive from it: one task for each (connection.py), or one for all
of a server.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from dledger_mq.net.tls import TlsError
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FRAME_BYTES_MAX, Frame, FrameDecoder

_log = logging.getLogger(__name__)

CLOSED_BY_PEER: Final = "closed by the peer"
READ_BYTES: Final = 1024 * 1024
"""With 16 KB a message costs twice the CPU: a batch needs more system calls and wake-ups."""

UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Four of the largest frames."""

_PEER_CLOSED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""The other end sends no more; Linux alone says so ahead of the bytes that wait to be read."""

BUSY: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})
"""The errors of a socket that would have to be waited for."""

_JOINED_BYTES_MAX: Final = 256 * 1024
"""Queued pieces are joined up to about this size for one system call."""

_NOT_COPIED_BYTES: Final = 32 * 1024
"""To copy fewer costs less than to find the piece in which they end."""

_PIECES_MAX: Final = 1024
"""Pieces that one system call takes (IOV_MAX of Linux)."""

Data = TypeVar("Data")


class ReadBuffer:
    """Memory to receive into, shared by all connections of a thread: nothing stays in it over a wait."""

    __slots__ = ("_array", "_view")

    def __init__(self, size_bytes: int = READ_BYTES) -> None:
        self._array = bytearray(size_bytes)
        self._view = memoryview(self._array)

    def receive(self, sock: socket.socket, bytes_max: int = 0) -> memoryview:
        """Return what the socket has, nothing at its end; at most `bytes_max`, 0: what fits the buffer.

        The next call overwrites it.

        Raises:
            OSError: as `recv_into`; BlockingIOError when it has nothing.
        """
        count = sock.recv_into(self._array, min(bytes_max, len(self._array)))
        return self._view[:count]


class Cipher(Protocol):
    """The layer between a socket and its frames where that is not, or not surely, plain text; see `TlsEnd`."""

    @property
    def is_open(self) -> bool:
        """True once frames may pass."""
        ...

    @property
    def is_plain(self) -> bool:
        """True once it is known that there is nothing to decrypt: then nobody needs it any more."""
        ...

    @property
    def has_ended(self) -> bool:
        """True once the other end has said that it sends no more."""
        ...

    def decrypt(self, data: bytes, /) -> bytes:
        """Return the plain bytes that are whole now; raises TlsError."""
        ...

    def encrypt(self, data: bytes, /) -> bytes:
        """Return plain bytes as they travel."""
        ...

    def take_output(self) -> bytes:
        """Return what is to be sent by itself."""
        ...

    def farewell(self) -> bytes:
        """Return what is to be sent last."""
        ...


class FrameSocket(ABC):
    """A connected socket with what came half and what could not be sent yet.

    Invariant: bytes leave in the order of the `send_nowait` calls. After `close` nothing is sent and
    nothing is read; nothing raises for a connection that ended.

    Attributes:
        peer: `host:port` of the other end, for logs and tools.
        close_reason: why it was closed; empty while it is open.
        descriptor: of its socket, while it is open.
        received_at: the time of the last received byte, in seconds.
        partial_since: the time since which a frame, or a TLS handshake, is unfinished; None between frames.
        is_shaking: True until frames may pass: before the first byte, which may begin a handshake, and during that.
        received_bytes, sent_bytes, received_frames: totals.
        unsent_bytes: that wait for the socket.
    """

    __slots__ = (
        "_buffer",
        "_cipher",
        "_decoder",
        "_now",
        "_queue",
        "_sock",
        "_unsent_bytes_max",
        "close_reason",
        "descriptor",
        "is_shaking",
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
        *,
        now: Callable[[], float],
        buffer: ReadBuffer | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        cipher: Cipher | None = None,
    ) -> None:
        """Take over a connected socket.

        Args:
            sock: made non-blocking here.
            now: a clock in seconds that never goes back.
            buffer: to share between connections; one of its own when None.
            frame_bytes_max: larger frames end the connection.
            unsent_bytes_max: bound of `unsent_bytes`, as they travel.
            cipher: of a connection that may be encrypted; None: plain text.
        """
        sock.setblocking(False)
        self.peer = _peer_text(sock)
        self.close_reason = ""
        self.descriptor = sock.fileno()
        self._cipher = cipher
        self.is_shaking = cipher is not None
        self._now = now
        self.received_at = now()
        self.partial_since: float | None = None
        self.received_bytes = 0
        self.received_frames = 0
        self.sent_bytes = 0
        self.unsent_bytes = 0
        self._sock = sock
        self._buffer = buffer or ReadBuffer()
        self._decoder = FrameDecoder(frame_bytes_max)
        self._unsent_bytes_max = unsent_bytes_max
        self._queue: deque[bytes] = deque()

    # Who waits for the socket.

    @abstractmethod
    def _write_later(self) -> None:
        """Call `write_queued` whenever the socket takes more, as long as something is queued; called at its begin."""

    @abstractmethod
    def _part_from(self, sock: socket.socket) -> None:
        """Let nobody wait for the socket any more: it is about to be closed."""

    # Its state.

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

    # Reading.

    def read_now(self, bytes_max: int = 0) -> list[Frame]:
        """Read once what the socket has, and return the frames that are whole now.

        There may be none; after the end of the connection `close_reason` says how it came.

        Args:
            bytes_max: how much to read at most; 0: what fits the buffer.

        Raises:
            FrameError: the bytes are no frames. The connection is closed already.
        """
        try:
            data = self._buffer.receive(self._sock, bytes_max)
        except BlockingIOError:
            return []
        except OSError as error:
            self.close(f"read failed: {error}")
            return []
        return self._take(data)

    def _take(self, data: bytes | memoryview) -> list[Frame]:
        """Take a read, b"" at the end of the socket, and return the frames that are whole now.

        Raises:
            FrameError: see `read_now`.
        """
        if not data:
            return self._end()
        if self._cipher is not None:
            data = self._decrypt(self._cipher, bytes(data))
            if not data:
                return []
        return self._cut(data)

    def _end(self) -> list[Frame]:
        """Close what the other end has closed.

        Raises:
            FrameError: it did so within a handshake.
        """
        if self.is_shaking and self.partial_since is not None:
            error = TlsError(
                "TLS handshake: the other end closed the connection in the middle of it"
            )
            self.close(str(error))
            raise error
        self.close(CLOSED_BY_PEER)
        return []

    def _decrypt(self, cipher: Cipher, data: bytes) -> bytes:
        """Return the plain bytes of a read, and send what the handshake wants sent.

        Raises:
            FrameError: there is no agreement with the other end. The connection is closed already.
        """
        self.received_at = self._now()
        try:
            plain = cipher.decrypt(data)
        except TlsError as error:
            self._send_output(cipher.take_output())  # it says to the other end why
            self.close(str(error))
            raise
        self.received_bytes += len(data) - len(plain)  # `_cut` counts the others
        if cipher.is_plain:
            self._cipher = None
        self._send_output(cipher.take_output())
        if self.is_shaking:
            self.is_shaking = not cipher.is_open
            if self.partial_since is None or not self.is_shaking:
                self.partial_since = self.received_at if self.is_shaking else None
        if cipher.has_ended and not plain:
            self.close(CLOSED_BY_PEER)
        return b"" if self.close_reason else plain

    def _send_output(self, data: bytes) -> None:
        """Send what belongs to the encryption itself: it is rare, and goes in order with what waits."""
        if data and not self.close_reason:
            self._queue_rest(data)
            self.write_queued()

    def _cut(self, data: bytes | memoryview) -> list[Frame]:
        """Feed a read to the decoder and return the whole frames.

        After a bad one no other can be found, so the connection is closed.
        """
        decoder = self._decoder
        self.received_at = self._now()
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
        if ended_one or not pending_bytes:
            self.partial_since = None
        if pending_bytes and self.partial_since is None:
            self.partial_since = self.received_at

    # Writing.

    def send_nowait(self, data: bytes) -> None:
        """Send a frame, or several joined; never blocks, never raises for a connection that ended.

        What the socket does not take is queued; over the bound the connection is closed.
        """
        if self.close_reason:
            return
        if self._cipher is not None:
            data = self._encrypt(self._cipher, data)
        if not self._queue:
            sent = self._try_to(self._sock.send, data)
            if sent == len(data) or self.close_reason:
                return
            data = data[sent:]
        self._queue_rest(data)

    @property
    def takes_directly(self) -> bool:
        """True while what is sent goes to the socket as it is."""
        return not (self._queue or self.close_reason) and self._cipher is None

    def was_sent(self, data: bytes, sent: int) -> None:
        """Do what `send_nowait` does once the socket took so many bytes, or none with an error; for `send_each`."""
        if self.close_reason:
            return
        if sent < 0:
            if -sent not in BUSY:
                self.close(f"write failed: {OSError(-sent, os.strerror(-sent))}")
                return
            sent = 0
        self.sent_bytes += sent
        if sent < len(data):
            self._queue_rest(data[sent:])

    def _encrypt(self, cipher: Cipher, data: bytes) -> bytes:
        """Return plain bytes as they travel; nothing, of a connection that ends with it."""
        try:
            return cipher.encrypt(data)
        except TlsError as error:
            self.close(str(error))
            return b""

    def _queue_rest(self, data: bytes) -> None:
        """Queue what the socket did not take, and close the connection if that is too much."""
        self.unsent_bytes += len(data)
        self._queue.append(data)
        if len(self._queue) == 1:
            self._write_later()
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
        if self._queue or self._cipher is not None or len(pieces) > _PIECES_MAX:
            self.send_nowait(b"".join(pieces))
            return
        if self.close_reason:
            return
        sent = self._try_to(self._sock.sendmsg, pieces)
        if sent < sum(map(len, pieces)) and not self.close_reason:
            self._queue_rest(_joined_from(pieces, sent))

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

    def write_queued(self) -> None:
        """Write once of what is queued; for those who know that the socket takes more."""
        if not self._queue:
            return
        data = self._take_joined()
        sent = self._try_to(self._sock.send, data)
        if self.close_reason:
            return
        self.unsent_bytes -= sent
        assert self.unsent_bytes >= 0, f"{self.unsent_bytes} bytes wait for {self.peer}"
        if sent < len(data):
            self._queue.appendleft(data[sent:])

    def _take_joined(self) -> bytes:
        """Take the first queued pieces, joined; large ones alone."""
        queue = self._queue
        pieces = [queue.popleft()]
        size = len(pieces[0])
        while queue and size + len(queue[0]) <= _JOINED_BYTES_MAX:
            size += len(queue[0])
            pieces.append(queue.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self, reason: str) -> None:
        """Close at once. Whoever waits for the socket sees that it ended."""
        if self.close_reason:
            return
        self.close_reason = reason
        if self._cipher is not None and not self._queue:
            with suppress(OSError):  # best effort: nobody waits for it
                self._sock.send(self._cipher.farewell())
        self._queue.clear()
        self.unsent_bytes = 0
        self._decoder.forget()  # others get its room, before this object is collected
        self._part_from(self._sock)
        self._sock.close()


def _joined_from(pieces: Sequence[bytes | memoryview], start: int) -> bytes:
    """Return pieces joined, without their first bytes, which are not copied if they are many."""
    if start < _NOT_COPIED_BYTES:
        return b"".join(pieces)[start:]
    for place, piece in enumerate(pieces):
        if start < len(piece):
            return b"".join((memoryview(piece)[start:], *pieces[place + 1 :]))
        start -= len(piece)
    return b""


def _peer_text(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "a peer that is gone"
    if not isinstance(name, tuple):
        return "a local peer"  # a Unix socket: its address is a path, mostly empty
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
