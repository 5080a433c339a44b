"""One connection of a server: what it waits for, while one task serves all of them (served_connections.py)."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import Final, Protocol

from broker.net.handshakes import Handshakes
from broker.net.unsent_answers import UnsentAnswers
from dledger.runtime.frame_room import FrameRoom
from dledger.runtime.ready_sockets import READ, WRITE, ReadySockets
from dledger_mq.net.frame_socket import BUSY, Cipher, FrameSocket, ReadBuffer
from dledger_mq.remoting.frame import FRAME_HEAD_BYTES, Frame

_HALF_CLOSED: Final[int] = select.EPOLLRDHUP
_CROWDED_BYTES: Final = 4096
"""Read at once, beside a large frame that is unfinished, while much waits for its turn: some requests."""

LONE_BYTES_MAX: Final = 64 * 1024
"""Read at once of a connection that lately sent one frame, of half of this at most."""

_ASKED_MAX: Final = 1
"""Of the connections that have ended, one is enough to know that not all are there."""


class Server(Protocol):
    """The owner of served connections, as far as one of them knows it."""

    ready: ReadySockets[ServedConnection]
    ends: select.epoll
    room: FrameRoom
    handshakes: Handshakes
    unsent: UnsentAnswers

    @property
    def is_crowded(self) -> bool:
        """True while no more than a small piece may be read from a connection at once."""
        ...

    def kept_waiting(self, connection: ServedConnection, /) -> None:
        """Let a connection go on once it has the room that it waits for."""
        ...

    def ended(self, connection: ServedConnection, /) -> None:
        """Take note that a connection was closed."""
        ...


class ServedConnection(FrameSocket):
    """A connection that was accepted.

    Invariant: it is read from unless it waits for room, and written to as long as something is queued.

    Attributes:
        has_spoken: a whole frame has come.
        waits_for_turn: True while frames that were read wait for their turn; it is not read from.
        is_lone: its last read was one small frame, in plain text: so the next one is likely to be (lone_reads.py).
    """

    __slots__ = (
        "_has_asked",
        "_is_loose",
        "_server",
        "_watched",
        "has_spoken",
        "is_lone",
        "waits_for_turn",
    )

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        *,
        now: Callable[[], float],
        buffer: ReadBuffer,
        frame_bytes_max: int,
        unsent_bytes_max: int,
        cipher: Cipher | None = None,
    ) -> None:
        """Take over a connected socket; see `FrameSocket`."""
        super().__init__(
            sock,
            now=now,
            buffer=buffer,
            frame_bytes_max=frame_bytes_max,
            unsent_bytes_max=unsent_bytes_max,
            cipher=cipher,
        )
        self._server = server
        self._has_asked = self._is_loose = False
        self.has_spoken = self.waits_for_turn = self.is_lone = False
        self._watched = 0
        server.ends.register(sock, _HALF_CLOSED)
        self._watch()

    # What it waits for.

    def _watch(self) -> None:
        """Wait for what is wanted now, and for nothing else: an end that nobody reads would be reported for ever."""
        wanted = (0 if self.waits_for_room else READ) | (WRITE if self._queue else 0)
        if wanted == self._watched:
            return
        try:
            if wanted:
                self._server.ready.watch(self._sock, self, wanted)
            else:
                self._server.ready.forget(self._sock)
        except OSError as error:  # the system lacks memory for it
            self.close(f"it cannot be waited for: {error}")
        else:
            self._watched = wanted

    def _write_later(self) -> None:
        """See `FrameSocket`."""
        self._watch()

    def write_queued(self) -> None:
        """See `FrameSocket`."""
        before_bytes = self.unsent_bytes
        super().write_queued()
        if 0 < self.unsent_bytes < before_bytes or not self._queue:
            self._server.unsent.shrank(self)
        if not self._queue and not self.close_reason:
            self._watch()

    def _queue_rest(self, data: bytes) -> None:
        """See `FrameSocket`; what waits for all connections has a bound, too."""
        super()._queue_rest(data)
        if not self.close_reason:
            self._server.unsent.grew(self)

    def _part_from(self, sock: socket.socket) -> None:
        """Give back what it has of the server, which tells others of the end later."""
        server = self._server
        server.handshakes.leave(self)
        server.unsent.leave(self)
        if self._has_asked:
            server.room.leave(self)
        self._note_loose(False)
        if self._watched:
            server.ready.forget(sock)
        server.ends.unregister(sock)
        server.ended(self)

    @property
    def has_ended(self) -> bool:
        """See `FrameSocket`. As long as no connection of the server has ended unseen, one look says so of all."""
        if self.close_reason or not self._server.ends.poll(0, _ASKED_MAX):
            return self.is_closed
        return super().has_ended

    # Reads that are one frame.

    def note_read(self, frames: list[Frame]) -> None:
        """Note what a read has brought, once it is known."""
        self.is_lone = (
            len(frames) == 1
            and len(frames[0].header) + len(frames[0].body) <= LONE_BYTES_MAX // 2
            and self._cipher is None
            and not self._decoder.pending_bytes
        )

    def take_read(self, found: Frame | bytes | int) -> list[Frame]:
        """Do what `read_now` does with what was read of it while it was lone: a frame, other bytes, or an error.

        Raises:
            FrameError: see `read_now`.
        """
        if isinstance(found, Frame):
            self.frame_came(found, self._now())
            return [found]
        self.is_lone = False
        if isinstance(found, bytes):
            return self._take(found)
        if found not in BUSY:
            self.close(f"read failed: {OSError(found, os.strerror(found))}")
        return []

    def frame_came(self, frame: Frame, now: float) -> None:
        """Count a read that was one frame, when it is taken."""
        self.received_at = now
        self.received_bytes += FRAME_HEAD_BYTES + len(frame.header) + len(frame.body)
        self.received_frames += 1

    # Its handshake, where it has one.

    def _decrypt(self, cipher: Cipher, data: bytes) -> bytes:
        """See `FrameSocket`; handshakes that last are counted."""
        was_shaking = self.is_shaking
        plain = super()._decrypt(cipher, data)
        if self.is_shaking:
            self._server.handshakes.join(self)
        elif was_shaking:
            self._server.handshakes.leave(self)
        return plain

    # Room for the frame that it has begun.

    @property
    def waits_for_room(self) -> bool:
        """True while the sender is kept waiting for room in memory."""
        return self._has_asked and self._server.room.is_waiting(self)

    @property
    def has_unread(self) -> bool:
        """True if the socket has bytes that were not read yet."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def cut_off(self, reason: str) -> None:
        """Close the connection, since others need its room."""
        self.close(reason)

    def piece_bytes(self) -> int:
        """Return how much to read, 0: what fits. While room is short: the frame that has some, and little more.

        So it is while much that was read waits for its turn.
        """
        if self._server.is_crowded:
            piece_bytes = _CROWDED_BYTES
        elif self._server.room.is_short:
            piece_bytes = self._server.room.free_bytes
        else:
            return 0
        if self._has_asked:
            piece_bytes += self._decoder.need_bytes - self._decoder.pending_bytes
        return piece_bytes

    def _note_partial(self, pending_bytes: int, *, ended_one: bool) -> None:
        """Keep account of a frame that is unfinished, or was before these bytes, and of its room."""
        room = self._server.room
        super()._note_partial(pending_bytes, ended_one=ended_one)
        if self._has_asked and (ended_one or not pending_bytes):
            self._has_asked = False
            room.leave(self)
        if pending_bytes and not self._has_asked and self._decoder.need_bytes > room.free_bytes:
            self._has_asked = True
            if not room.want(self, self._decoder.need_bytes):
                self._watch()
                self._server.kept_waiting(self)
        self._note_loose(bool(pending_bytes) and (not self._has_asked or self.waits_for_room))

    def _note_loose(self, is_loose: bool) -> None:
        """Count this connection among those that hold a part of a frame without room for it, or no more."""
        self._server.room.loose_count += is_loose - self._is_loose
        self._is_loose = is_loose

    def go_on(self) -> None:
        """Read on, since there is room; the time until now does not count against the sender."""
        if not self.close_reason:
            self._note_loose(False)
            self._count_from_now()
            self._watch()

    def had_its_turns(self) -> None:
        """Read on, since all that was read has had its turn; the time until now does not count, either."""
        self.waits_for_turn = False
        self._count_from_now()

    def _count_from_now(self) -> None:
        """Count the time of the sender's silence, and of the frame that it has begun, from now on."""
        self.received_at = self._now()
        if self.partial_since is not None:
            self.partial_since = self.received_at
