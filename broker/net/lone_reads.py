"""Reads of the connections that send one small frame at a time, as clients do that wait for each answer.

Many of them are ready together, and each has one frame: what it costs to read that one by one is more than what is done
with it. So the sockets are read one after the other by compiled code at the begin of a round, and frames that were all
that a socket had are handed over together. What is not taken so waits for its connection's place in the row. Where
there is no such code, and for all other connections, each is read when its turn comes.

All that lies here is gone when the round ends. It is at most what fits the buffer of one read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from broker.net.served_connection import LONE_BYTES_MAX, ServedConnection
from dledger.runtime.ready_sockets import READ
from dledger_mq.message import compiled
from dledger_mq.net.frame_socket import READ_BYTES
from dledger_mq.remoting.frame import HEADER_BYTES_MAX, Frame

TOGETHER_MIN: Final = 4
"""Connections from which on it is worth its time."""

TogetherHandler = Callable[[list[ServedConnection], list[Frame]], Sequence[int]]
"""Takes frames of as many connections, of each the only one that was read; returns the places of those it took."""

Row = Iterable[tuple[ServedConnection, int]]
"""Connections in their order, each with the bits of epoll."""


class LoneReads:
    """Reads that were not handed over yet, by connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._found: dict[ServedConnection, Frame | bytes | int] = {}

    def read(self, row: Row) -> None:
        """Read of those connections that are likely to have one frame, if they are some."""
        lone = [
            connection
            for connection, ready in row
            if ready == READ and connection.is_lone and not connection.close_reason
        ]
        if len(lone) < TOGETHER_MIN:
            return
        found = compiled.receive_frames(
            [connection.descriptor for connection in lone],
            LONE_BYTES_MAX,
            READ_BYTES,
            self._frame_bytes_max,
            HEADER_BYTES_MAX,
            Frame,
        )
        if found is not None:
            # Those for which there was no room are read when their turn comes.
            self._found = dict(zip(lone, found, strict=False))

    def take(self, connection: ServedConnection) -> Frame | bytes | int | None:
        """Take what was read of a connection; None: it was not."""
        return self._found.pop(connection, None)

    def hand_over(self, handle: TogetherHandler, now: float) -> Set[ServedConnection]:
        """Hand over the frames that each were a read, if they are some; return the connections whose one was taken."""
        frames = {each: found for each, found in self._found.items() if isinstance(found, Frame)}
        if len(frames) < TOGETHER_MIN:
            return frozenset()
        connections = list(frames)
        taken = [connections[place] for place in handle(connections, list(frames.values()))]
        for connection in taken:
            del self._found[connection]
            connection.frame_came(frames[connection], now)
        return frozenset(taken)

    def forget(self) -> None:
        """Forget what is left at the end of a round: reads of connections that were closed meanwhile."""
        self._found.clear()
