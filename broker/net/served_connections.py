"""All connections of a server, in the hands of one task.

It goes in rounds: whatever is ready when a round begins is read once, decoded and handed over. A round is cut into
*turns*, each with an end that says so to the user: what was gathered in a turn is proposed together and written with
one call for each connection. After a turn the loop's other tasks have theirs, so that neither a burst nor many
connections hold up a heartbeat. Who asks again as soon as he is answered is often there when a round ends: as long as a
turn is short, and nothing came that other tasks go on with, the next round begins within it.

Frames of a read for which a turn had no time are its *rest*. Each round ends with one turn of one rest, that which has
waited for longest: so whoever asks for little waits for one turn of those who ask for much, however many they are.

It hands over frames as they came; what stands in them is the business of its user.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import trio

from broker.net.handshakes import Handshakes, first_to_shake
from broker.net.lone_reads import LoneReads, TogetherHandler
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

SHORT_S: Final = 0.00025
"""A turn that has taken no longer has one more round: some pulls of the newest, for each of which the loop's own turn
would take half as long as the pull itself."""

FRAMES_MAX: Final = 256
"""Frames handed over together: some 3 ms of sends. A turn ends between such portions, or between connections."""

RESTS_MAX: Final = 64
"""Of so many connections a rest may be as large as a read, 1 MiB; while there are as many, little is read of others."""

REST_FRAMES_MAX: Final = 65_536
"""The same for the frames of all rests together: 16 MB besides their bytes."""

_ASKED_MAX: Final = 1
"""Of the connections that have ended, one is enough to know that not all are there."""

_REST_TURN: Final = 0
"""In place of what is ready: the turn of a connection's rest has come."""

FramesHandler = Callable[[ServedConnection, list[Frame]], int | None]
"""Returns how many of the frames it took, the first ones: one at least, or all of them (None)."""

TurnEnd = Callable[[], bool]
"""Returns whether the loop's other tasks have to go on with what came."""


def _nothing_to_do() -> bool:
    """Do nothing at the end of a turn."""
    return False


def _take_none(_connections: list[ServedConnection], _frames: list[Frame]) -> Sequence[int]:
    """Take no frames together."""
    return ()


class ServedConnections:
    """The connections; `run` serves them.

    Invariants: a connection is in `connections` until `closed` was called for it, once, after all that came from it was
    handed over. It is not read from while it has a rest.

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
        turn_ended: TurnEnd | None = None,
        handle_together: TogetherHandler | None = None,
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
            turn_ended: called when the frames of a turn, or of a round in it, were handed over.
            handle_together: called with frames of several connections before they are handed over one by one, as those
                are that it does not take. None: it takes none.
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
        self._turn_ended = turn_ended or _nothing_to_do
        self._handle_together = handle_together or _take_none
        self._lone_reads = LoneReads(frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._unsent_bytes_max = unsent_bytes_max
        self._buffer = ReadBuffer()
        self._row: deque[tuple[ServedConnection, int]] = deque()
        self._rests: dict[ServedConnection, list[Frame]] = {}
        self._rest_frames = 0
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
                if self._row or self._rests:
                    await trio.lowlevel.checkpoint()
                else:
                    await self.ready.wait()
                self._take_turn()

    def close(self) -> None:
        """Close all connections; nobody serves them, or adds any, by now."""
        self._row.clear()
        self._lone_reads.forget()
        self._rests.clear()
        for connection in tuple(self.connections):
            connection.close("the server stops")
        self._notify_ended()
        self.ready.close()
        self.ends.close()

    @property
    def may_have_ended(self) -> bool:
        """True if a connection has ended though it was not read yet; one call of the system tells it of all."""
        return bool(self.ends.poll(0, _ASKED_MAX))

    # Turns.

    @property
    def is_crowded(self) -> bool:
        """True while so many rests wait that no more than a small piece may be read at once."""
        return len(self._rests) >= RESTS_MAX or self._rest_frames >= REST_FRAMES_MAX

    def _take_turn(self) -> None:
        """Go on with the round, or begin one, for as long as a turn may take; another one follows if it was short."""
        began_s = perf_counter()
        if not self._row:
            self._begin_round()
        while self._go_on(began_s + TURN_S) and perf_counter() < began_s + SHORT_S:
            if not self._begin_round():
                return

    def _go_on(self, end_s: float) -> bool:
        """Go on with the round until a time; return whether it ended, and nothing that came waits for others."""
        row = self._row
        while row:
            connection, ready = row.popleft()
            self._serve(connection, ready, end_s)
            # A write, or a read without a whole frame, takes its time, too.
            if perf_counter() >= end_s:
                break
        is_waited_for = self._turn_ended()
        if row:
            return False
        self._lone_reads.forget()
        self._notify_ended()
        return not (is_waited_for or self._rests)

    def _begin_round(self) -> bool:
        """Put in the row who is ready, a few of those without a handshake, and the rest that has waited longest.

        Frames that are handed over together are so at once; their connections are not in the row any more.

        Returns:
            Whether anybody was ready.
        """
        row, rests = self._row, self._rests
        shaking: list[ServedConnection] = []
        for connection, ready in self.ready.take():
            if connection in rests:
                ready &= WRITE
            elif connection.is_shaking and ready & ~WRITE:
                shaking.append(connection)
                ready &= WRITE
            if ready:
                row.append((connection, ready))
        row.extend((connection, READ) for connection in first_to_shake(shaking))
        if rests:
            row.append((next(iter(rests)), _REST_TURN))
        is_any_ready = bool(row)
        if not (self.is_crowded or self.room.is_short):
            self._lone_reads.read(row)
            taken = self._lone_reads.hand_over(self._handle_together, trio.current_time())
            if taken:
                others = [each for each in row if each[0] not in taken]
                row.clear()
                row.extend(others)
        return is_any_ready

    def _serve(self, connection: ServedConnection, ready: int, end_s: float) -> None:
        """Do for a connection what can be done; one that misbehaves is closed, with one log line."""
        if ready & ~READ:
            connection.write_queued()
        try:
            if ready == _REST_TURN:
                self._hand_over(connection, self._take_rest(connection), end_s)
            elif ready & ~WRITE and not (connection.close_reason or connection.waits_for_room):
                self._hand_over(connection, self._read(connection), end_s)
        except FrameError as error:
            _log.warning("closed the connection of %s: %s", connection.peer, error)
            connection.close(f"bad frame: {error}")

    def _read(self, connection: ServedConnection) -> list[Frame]:
        """Read once from a connection.

        Raises:
            FrameError: the bytes are no frames.
        """
        found = self._lone_reads.take(connection)
        if found is not None:
            return connection.take_read(found)
        frames = connection.read_now(connection.piece_bytes())
        connection.note_read(frames)
        if frames and not connection.has_spoken:
            connection.has_spoken = True
            self.mute.pop(connection, None)
        return frames

    def _hand_over(self, connection: ServedConnection, frames: list[Frame], end_s: float) -> None:
        """Hand over frames of one read, one portion at least; those for which a turn has no time are its rest.

        Raises:
            FrameError: a header cannot be read.
        """
        first = 0
        while first < len(frames):
            if first and perf_counter() >= end_s:
                self._leave_rest(connection, frames[first:])
                return
            was_open = not connection.close_reason
            taken = self._handle(connection, frames[first : first + FRAMES_MAX])
            assert taken != 0, "no frame was taken, and none would ever be"
            if was_open and connection.close_reason:
                return  # by its user, for what was just handed over
            first += FRAMES_MAX if taken is None else taken
        if connection.waits_for_turn:
            connection.had_its_turns()

    def _leave_rest(self, connection: ServedConnection, frames: list[Frame]) -> None:
        self._rests[connection] = frames
        self._rest_frames += len(frames)
        connection.waits_for_turn = True

    def _take_rest(self, connection: ServedConnection) -> list[Frame]:
        frames = self._rests.pop(connection)
        self._rest_frames -= len(frames)
        assert self._rest_frames >= 0, f"{self._rest_frames} frames wait for their turn"
        return frames

    # Ends, and waits for room.

    def ended(self, connection: ServedConnection) -> None:
        """See `Server`. `closed` is called at the end of a round: nobody expects it in the middle of what closed it."""
        self._ended.append(connection)
        self.mute.pop(connection, None)
        if not self._row:
            self._some_ended.set()

    async def _watch_ends(self) -> None:
        """Call `closed` for connections that were closed between rounds."""
        while True:
            await self._some_ended.wait()
            self._some_ended = trio.Event()
            if not self._row:
                self._notify_ended()

    def _notify_ended(self) -> None:
        """Call `closed` for those that have ended, but not before their rest was handed over."""
        ended, self._ended = self._ended, []
        for connection in ended:
            if connection in self._rests:
                self._ended.append(connection)
                continue
            del self.connections[connection]
            self._closed(connection)

    def kept_waiting(self, connection: ServedConnection) -> None:
        """See `Server`."""
        assert self._nursery is not None, "connections are read from by `run` only"
        self._nursery.start_soon(self._wait_for_room, connection)

    async def _wait_for_room(self, connection: ServedConnection) -> None:
        await self.room.wait(connection)
        connection.go_on()
