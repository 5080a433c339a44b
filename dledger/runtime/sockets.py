"""Non-blocking TCP sockets, and streams of frames on them.

Plain sockets with trio's readiness calls: half the CPU of a trio stream for small messages
(measured), and the transport needs the bare descriptors anyway.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import Final

import trio

from dledger.codec.frame import Frame, FrameDecoder
from dledger.errors import ListenError, PeerProtocolError
from dledger.runtime.frame_room import FREE_BYTES, FrameRoom

RECEIVE_BYTES: Final = 64 * 1024

NOTSENT_BYTES_MAX: Final = 512 * 1024
"""Unsent bytes that the kernel takes from us: what is in there cannot be overtaken by a heartbeat."""

DEAD_AFTER_MS: Final = 2000
"""Sent bytes that nobody acknowledged for so long break a connection (a cut network, a dead host)."""

CONNECT_TIMEOUT_S: Final = 1.0

RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""accept() fails with these when the machine is short of something; the listener is still good."""


def tune(sock: socket.socket) -> None:
    """Set the options of every connection between members and of log clients."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOTSENT_BYTES_MAX)


async def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        ListenError: the address is taken or not ours.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(256)
    except OSError as error:
        sock.close()
        hint = (
            " (does another process already run as this member?)"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return sock


async def connect(host: str, port: int) -> socket.socket:
    """Open a connection, within CONNECT_TIMEOUT_S.

    Raises:
        OSError: nobody answers there.
    """
    with trio.move_on_after(CONNECT_TIMEOUT_S):
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (UnicodeError, OverflowError) as error:
            # Addresses come from other members and from the log, and such a name is no cause to stop.
            raise OSError(errno.EADDRNOTAVAIL, f"no address: {error}") from error
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            tune(sock)
            await _wait_connected(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock
    raise OSError(errno.ETIMEDOUT, "no answer")


async def _wait_connected(sock: socket.socket, address: object) -> None:
    code = sock.connect_ex(address)  # type: ignore[arg-type]  # whatever getaddrinfo gave
    if code == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    if sock.getsockname() == sock.getpeername():
        # TCP may connect a port of the dynamic range to itself.
        raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class FrameStream:
    """Frames on a socket, for one reading task and any number of writers.

    Invariants: what is queued leaves in order; `queued_bytes` counts what the kernel has not taken.

    Attributes:
        peer: `host:port` of the other end; `?` when it was gone already.
        received_bytes: all that came.
    """

    def __init__(self, sock: socket.socket, decoder: FrameDecoder) -> None:
        self.sock = sock
        self.decoder = decoder
        self.peer = _peer_of(sock)
        self.is_closed = False
        self.received_bytes = 0
        self._room: FrameRoom | None = None
        self._room_bytes = 0
        self._ended_count = 0
        self._cut_off_for = ""
        self._rest: list[bytes] = []
        self.queued_bytes = 0
        self._wants_write = trio.Event()
        self._is_drained = trio.Event()

    def share(self, room: FrameRoom) -> None:
        """Hold what has begun and is not whole in a room that others use, too, from here on."""
        self._room = room
        self._ended_count = self.decoder.ended_count

    async def receive(self) -> list[Frame]:
        """Return all frames that are there, at least one; empty at the end of the stream.

        Raises:
            PeerProtocolError: the bytes are no frames, the stream ended within one, or it was cut off.
            OSError, trio.ClosedResourceError: the connection is gone.
        """
        while True:
            if self._room is not None:
                await self._room.wait(self)
            if self.is_closed:  # before this task had its first turn
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self.sock)
            if self._cut_off_for:
                raise PeerProtocolError(self._cut_off_for)
            if self.is_closed:  # when this task was about to go on
                raise trio.ClosedResourceError
            try:
                data = self.sock.recv(self._piece_bytes())
            except BlockingIOError:
                continue
            self.received_bytes += len(data)
            if not data:
                if not self.decoder.is_between_frames:
                    raise PeerProtocolError("the connection ended within a frame")
                return []
            frames = self.decoder.feed(data)
            if self._room is not None:
                self._take_room(self._room)
            if frames:
                return frames

    def _take_room(self, room: FrameRoom) -> None:
        """Give back what has ended, and ask for what has begun."""
        need_bytes, ended_count = self.decoder.need_bytes, self.decoder.ended_count
        if need_bytes <= FREE_BYTES:
            need_bytes = 0
        if ended_count == self._ended_count and need_bytes == self._room_bytes:
            return
        self._leave_room()
        self._ended_count = ended_count
        self._room_bytes = need_bytes
        if need_bytes:
            room.want(self, need_bytes)

    def _leave_room(self) -> None:
        if self._room is not None and self._room_bytes:
            self._room_bytes = 0
            self._room.leave(self)

    def _forget(self) -> None:
        """Give back the room, and drop the bytes: others get it now, and who holds this object may do so for long."""
        self._leave_room()
        self.decoder.forget()

    def _piece_bytes(self) -> int:
        """Return how much to read: little where room is short and this stream has none."""
        is_short = self._room is not None and not self._room_bytes and self._room.is_short
        return FREE_BYTES if is_short else RECEIVE_BYTES

    @property
    def has_unread(self) -> bool:
        """True while the socket has bytes that were not taken yet."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def cut_off(self, reason: str) -> None:
        """End the conversation: its reader gets the reason, its writer finds it broken, and its owner closes it."""
        self._cut_off_for = reason
        self._forget()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    async def receive_one(self) -> bytes:
        """Return exactly one header, for conversations in turns.

        Raises:
            PeerProtocolError: more came than was asked for, or nothing.
        """
        frames = await self.receive()
        if not frames:
            raise PeerProtocolError("the other side closed the connection")
        if len(frames) > 1 or len(frames[0].blob) or not self.decoder.is_between_frames:
            raise PeerProtocolError("more was sent than this side has asked for")
        return frames[0].header

    def send_soon(self, data: bytes) -> None:
        """Send what the kernel takes at once; `run_writer` sends the rest.

        A broken connection is noticed by its reader.
        """
        if self.is_closed:
            return
        if not self._rest:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._wants_write.set()
        self._rest.append(data)
        self.queued_bytes += len(data)

    async def run_writer(self) -> None:
        """Send what `send_soon` left over; ends when the connection does."""
        while True:
            await self._wants_write.wait()
            self._wants_write = trio.Event()
            while self._rest:
                data = b"".join(self._rest)
                self._rest = [data]
                await trio.lowlevel.wait_writable(self.sock)
                try:
                    sent = self.sock.send(data)
                except BlockingIOError:
                    continue
                except OSError:
                    # Nobody takes this any more, and who waits for that must not wait for ever.
                    self._rest = []
                    self.queued_bytes = 0
                    self._is_drained.set()
                    return
                # More may have been queued while this task waited.
                self._rest[0] = data[sent:]
                if not self._rest[0]:
                    del self._rest[0]
                self.queued_bytes -= sent
                assert self.queued_bytes >= 0, (
                    f"{-self.queued_bytes} bytes more left than were queued"
                )
            self._is_drained.set()

    async def wait_drained(self) -> None:
        """Wait until nothing is queued any more (back-pressure on the reader)."""
        while self.queued_bytes and not self.is_closed:
            if self._is_drained.is_set():
                self._is_drained = trio.Event()
            await self._is_drained.wait()

    async def send(self, data: bytes) -> None:
        """Send everything, without a writer task. Not to be mixed with `send_soon`.

        Raises:
            OSError: the connection is gone; an unknown part was sent.
        """
        rest = memoryview(data)
        while True:
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)
            if not rest:
                return

    def close(self) -> None:
        """Close; tasks that wait on the socket get `trio.ClosedResourceError`."""
        if not self.is_closed:
            self.is_closed = True
            self._is_drained.set()
            self._forget()
            self._rest = []
            self.queued_bytes = 0
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()


def _peer_of(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "?"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
