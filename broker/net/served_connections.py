"""All connections of a server, in the hands of one task.

It goes in rounds: whatever is ready when a round begins is read once, decoded and handed over. A round is cut into
*turns*, each with an end that says so to the user: what was gathered in a turn is proposed together and written with
one call for each connection. After a turn the loop's other tasks have theirs, so that neither a burst nor many
connections hold up a heartbeat.

It hands over frames as they came; what stands in them is the business of its user.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

import trio

from broker.net.handshakes import Handshakes, first_to_shake
from broker.net.served_connection import ServedConnection
from broker.net.tls_door import TlsDoor
from broker.net.unsent_answers import CONNECTIONS_MAX, UnsentAnswers
from dledger.runtime.frame_room import FrameRoom
from dledger.runtime.ready_sockets import READ, WRITE, ReadySockets
from dledger_mq.net.frame_socket import ReadBuffer
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame

_log = logging.getLogger(__name__)

TURN_S: Final = 0.01
"""A fraction of a heartbeat's interval: after so long the other tasks have a turn."""

FRAMES_MAX: Final = 256
"""Frames handed over together: some 3 ms of sends. A turn ends between such portions, or between connections."""

FramesHandler = Callable[[ServedConnection, list[Frame]], int | None]
"""Returns how many of the frames it took, the first ones: one at least, or all of them (None)."""


def _ignore() -> None:
    """Do nothing at the end of a turn."""


class ServedConnections:
    """The connections; `run` serves them.

    Invariant: a connection is in `connections` until `closed` was called for it, once, after all that came from it was
    handed over.

    Attributes:
        connections: in the order of their arrival.
        ready: what each of them waits for.
        ends: those of them that have ended, though it was not read yet; asked by `ServedConnection.has_ended`.
        room: memory for their unfinished frames.
        handshakes: those that are not done, with a bound.
        unsent: answers that wait for their clients, with a bound over all connections.
    """

    def __init__(
        self,
        handle: FramesHandler,
        *,
        closed: Callable[[ServedConnection], None],
        turn_ended: Callable[[], None] | None = None,
        room: FrameRoom,
        frame_bytes_max: int,
        unsent_bytes_max: int,
        door: TlsDoor | None = None,
    ) -> None:
        """Set up without connections.

        Args:
            handle: called with frames of one read, without a checkpoint; those that it does not take come again
                later. A FrameError from it (a header that cannot be read) closes that connection; other exceptions
                are bugs and end `run`. If it closes the connection itself, the rest of the read is dropped.
            closed: called once for each connection that ended, however it ended.
            turn_ended: called when the frames of a turn were handed over.
            room: for unfinished frames.
            frame_bytes_max: see `FrameSocket`.
            unsent_bytes_max: see `FrameSocket`.
            door: whether they may, or must, be encrypted; None: they are plain text.
        """
        self.connections: dict[ServedConnection, None] = {}
        self.ready: ReadySockets[ServedConnection] = ReadySockets()
        self.ends = select.epoll()
        self.room = room
        self.handshakes = Handshakes()
        self.unsent = UnsentAnswers(CONNECTIONS_MAX * unsent_bytes_max)
        self.mute: dict[ServedConnection, None] = {}
        self._door = door
        self._handle = handle
        self._closed = closed
        self._turn_ended = turn_ended or _ignore
        self._frame_bytes_max = frame_bytes_max
        self._unsent_bytes_max = unsent_bytes_max
        self._buffer = ReadBuffer()
        self._round: Iterator[None] | None = None
        self._ended: list[ServedConnection] = []
        self._some_ended = trio.Event()
        self._nursery: trio.Nursery | None = None

    def add(self, sock: socket.socket) -> ServedConnection:
        """Serve a connected socket from here on.

        Raises:
            OSError: the system lacks memory for it.
        """
        connection = ServedConnection(
            sock,
            self,
            now=trio.current_time,
            buffer=self._buffer,
            frame_bytes_max=self._frame_bytes_max,
            unsent_bytes_max=self._unsent_bytes_max,
            cipher=None if self._door is None else self._door.meet(),
        )
        self.connections[connection] = self.mute[connection] = None
        return connection

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            Exception: what `handle`, `closed` or `turn_ended` raised, but for FrameError.
        """
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._watch_ends)
            while True:
                if self._round is None:
                    await self.ready.wait()
                else:
                    await trio.lowlevel.checkpoint()
                self._take_turn()

    def close(self) -> None:
        """Close all connections; nobody serves them, or adds any, by now."""
        self._round = None
        for connection in tuple(self.connections):
            connection.close("the server stops")
        self._notify_ended()
        self.ready.close()
        self.ends.close()

    # Turns.

    def _take_turn(self) -> None:
        """Go on with the round, or begin one, for as long as a turn may take."""
        end_s = perf_counter() + TURN_S
        if self._round is None:
            self._round = self._serve_ready()
        for _ in self._round:
            if perf_counter() >= end_s:
                self._turn_ended()
                return
        self._round = None
        self._turn_ended()
        self._notify_ended()

    def _serve_ready(self) -> Iterator[None]:
        """Serve each connection that is ready once, a few of those without a handshake; yields where a turn may end."""
        shaking: list[ServedConnection] = []
        for connection, mask in self.ready.take():
            if mask & ~READ:
                connection.write_queued()
            if mask & ~WRITE and not (connection.close_reason or connection.waits_for_room):
                if connection.is_shaking:
                    shaking.append(connection)
                    continue
                yield from self._read(connection)
            yield  # a write, or a read without a whole frame, takes its time, too
        for connection in first_to_shake(shaking):
            if not connection.close_reason:
                yield from self._read(connection)
            yield

    def _read(self, connection: ServedConnection) -> Iterator[None]:
        """Read once from a connection, and hand over its frames; one that misbehaves is closed, with one log line."""
        try:
            frames = connection.read_now(connection.piece_bytes())
            if frames and not connection.has_spoken:
                connection.has_spoken = True
                self.mute.pop(connection, None)
            first = 0
            while first < len(frames):
                was_open = not connection.close_reason
                taken = self._handle(connection, frames[first : first + FRAMES_MAX])
                assert taken != 0, "no frame was taken, and none would ever be"
                if was_open and connection.close_reason:
                    return  # by its user, for what was just handed over
                first += FRAMES_MAX if taken is None else taken
                yield
        except FrameError as error:
            _log.warning("closed the connection of %s: %s", connection.peer, error)
            connection.close(f"bad frame: {error}")

    # Ends, and waits for room.

    def ended(self, connection: ServedConnection) -> None:
        """See `Server`. `closed` is called at the end of a round: nobody expects it in the middle of what closed it."""
        self._ended.append(connection)
        self.mute.pop(connection, None)
        if self._round is None:
            self._some_ended.set()

    async def _watch_ends(self) -> None:
        """Call `closed` for connections that were closed between rounds."""
        while True:
            await self._some_ended.wait()
            self._some_ended = trio.Event()
            if self._round is None:
                self._notify_ended()

    def _notify_ended(self) -> None:
        ended, self._ended = self._ended, []
        for connection in ended:
            del self.connections[connection]
            self._closed(connection)

    def kept_waiting(self, connection: ServedConnection) -> None:
        """See `Server`."""
        assert self._nursery is not None, "connections are read from by `run` only"
        self._nursery.start_soon(self._wait_for_room, connection)

    async def _wait_for_room(self, connection: ServedConnection) -> None:
        await self.room.wait(connection)
        connection.go_on()
