"""Accepting connections, and the bounds for all of them; how they are served stands in served_connections.py."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from broker.net.lone_reads import TogetherHandler
from broker.net.served_connection import ServedConnection
from broker.net.served_connections import FramesHandler, ServedConnections, TurnEnd
from broker.net.tls_door import TlsDoor
from dledger.runtime import descriptors
from dledger.runtime.frame_room import ROOM_BYTES_MAX, FrameRoom, Holder
from dledger_mq.net.frame_socket import UNSENT_BYTES_MAX
from dledger_mq.remoting.frame import FRAME_BYTES_MAX

_log = logging.getLogger(__name__)

IDLE_TIMEOUT_S: Final = 120.0
"""Both ends of the protocol close a connection that was silent for this long."""

PARTIAL_TIMEOUT_S: Final = 60.0
"""A frame has to be complete this long after its first byte."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A TLS handshake has to be done this long after its first byte; Netty's time for it."""

_ACCEPT_PAUSE_S: Final = 0.1
_LOG_AGAIN_S: Final = 10.0
"""Between two lines about connections that made room."""


def _ignore(_connection: ServedConnection) -> None:
    """Do nothing about a connection that ended."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds of a listener.

    Attributes:
        connections_max: one more ends that which has been open for longest without a request; if there is none, it is
            closed as soon as it is accepted.
        frame_bytes_max: one frame.
        unfinished_bytes_max: frames of all connections that have begun and not ended; at least twice
            `frame_bytes_max`.
        unsent_bytes_max: answers that one connection lets wait.
        idle_timeout_s: silence after which a connection is closed.
        partial_timeout_s: time for one frame to arrive whole.
        handshake_timeout_s: the same for a TLS handshake.
        sweep_interval_s: how often the times are looked at.
    """

    connections_max: int = 10_000
    frame_bytes_max: int = FRAME_BYTES_MAX
    unfinished_bytes_max: int = ROOM_BYTES_MAX
    unsent_bytes_max: int = UNSENT_BYTES_MAX
    idle_timeout_s: float = IDLE_TIMEOUT_S
    partial_timeout_s: float = PARTIAL_TIMEOUT_S
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    sweep_interval_s: float = 5.0


class Listener:
    """All connections that were accepted on some sockets.

    Attributes:
        connections: those open now, in the order of their arrival.
        handshakes: those of them that are not done.
        refused_count: connections turned away because there were too many.
        displaced_count: those that were ended for others, since they had sent no request yet.
    """

    def __init__(
        self,
        handle: FramesHandler,
        *,
        closed: Callable[[ServedConnection], None] = _ignore,
        turn_ended: TurnEnd | None = None,
        handle_together: TogetherHandler | None = None,
        limits: ListenerLimits | None = None,
        door: TlsDoor | None = None,
    ) -> None:
        """Set up the listener; `run` accepts and serves.

        Args:
            handle: see `ServedConnections`; so for the next two.
            closed: called once for each connection that ended.
            turn_ended: see `ServedConnections`.
            handle_together: see `ServedConnections`.
            limits: bounds.
            door: whether connections may, or must, be encrypted; None: they are plain text.
        """
        self._limits = limits = limits or ListenerLimits()
        self._room = FrameRoom(limits.unfinished_bytes_max)
        self._served = ServedConnections(
            handle,
            closed=closed,
            turn_ended=turn_ended,
            handle_together=handle_together,
            room=self._room,
            frame_bytes_max=limits.frame_bytes_max,
            unsent_bytes_max=limits.unsent_bytes_max,
            door=door,
        )
        self.connections = self._served.connections
        self.handshakes = self._served.handshakes
        self.refused_count = self.displaced_count = 0
        self._logged_at = -_LOG_AGAIN_S

    @property
    def may_have_ended(self) -> bool:
        """See `ServedConnections`."""
        return self._served.may_have_ended

    async def run(
        self,
        sockets: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until cancelled. The listening sockets are closed at the end.

        Raises:
            Exception: see `ServedConnections.run`.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._served.run)
                nursery.start_soon(self._sweep)
                nursery.start_soon(self._room.keep_pace, self._log_slow)
                for sock in sockets:
                    nursery.start_soon(self._accept, sock)
                task_status.started()
        finally:
            self._served.close()
            for sock in sockets:
                sock.close()

    async def _accept(self, listening: socket.socket) -> None:
        """Accept forever; neither a failed accept nor too many connections may end the loop."""
        while True:
            await trio.lowlevel.wait_readable(listening)
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # Mostly: out of file descriptors. The others are to go on, so is this loop.
                _log.warning("a connection could not be accepted: %s", error)
                await trio.sleep(_ACCEPT_PAUSE_S)
                continue
            reason = self._why_turned_away(sock)
            if reason and not self._served.mute:
                self.refused_count += 1
                _log.warning("a connection was turned away: %s", reason)
                sock.close()
                continue
            try:
                if reason:
                    sock = self._in_place_of_a_mute_one(sock, reason)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._served.add(sock)
            except OSError as error:
                _log.warning("a connection could not be served: %s", error)
                sock.close()

    def _why_turned_away(self, sock: socket.socket) -> str:
        """Return why a connection is not served; empty: it is."""
        count = len(self.connections)
        if count >= self._limits.connections_max:
            return f"{count} are open"
        if descriptors.is_kept(sock.fileno()):
            return (
                f"{count} are open, and of the {descriptors.limit()} file descriptors that this process may have "
                "(ulimit -n) the last ones are kept for the store"
            )
        return ""

    def _in_place_of_a_mute_one(self, sock: socket.socket, reason: str) -> socket.socket:
        """End the connection that has said nothing whole for longest; return the new one, in the room that it leaves.

        Who only holds connections open keeps nobody out so.
        """
        mute = next(iter(self._served.mute))
        self.displaced_count += 1
        now = trio.current_time()
        if now - self._logged_at >= _LOG_AGAIN_S:
            self._logged_at = now
            _log.warning(
                "%s, and that of %s, which has sent no request yet, makes room for another: %d by now",
                *(reason, mute.peer, self.displaced_count),
            )
        mute.close("others need its room")
        with sock:
            return (
                sock.dup()
            )  # the descriptor that has become free: its own may be kept for the store

    async def _sweep(self) -> None:
        """Close connections that are silent, or whose frame stays unfinished.

        Those that wait for our room, or for their turn, are spared.
        """
        limits = self._limits
        while True:
            await trio.sleep(limits.sweep_interval_s)
            now = trio.current_time()
            for connection in tuple(self.connections):
                since = connection.partial_since
                if connection.waits_for_room or connection.waits_for_turn:
                    continue  # for us
                if now - connection.received_at > limits.idle_timeout_s:
                    connection.close("idle")
                elif since is not None and now - since > self._time_of(connection):
                    what = "TLS handshake" if connection.is_shaking else "frame"
                    _log.warning(
                        "closed the connection of %s: a %s never ended", connection.peer, what
                    )
                    connection.close(f"unfinished {what}")

    def _time_of(self, connection: ServedConnection) -> float:
        limits = self._limits
        return limits.handshake_timeout_s if connection.is_shaking else limits.partial_timeout_s

    def _log_slow(self, closed: list[Holder]) -> None:
        _log.warning(
            "closed %d connections, such as that of %s: their unfinished frames came too slowly, and "
            "%d others wait for the room of %d bytes",
            len(closed),
            closed[0].peer,
            self._room.waiting_count,
            self._room.bytes_max,
        )
