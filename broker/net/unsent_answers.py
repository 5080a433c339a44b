"""Answers that sockets have not taken yet, over all connections of a server: together they have a bound, too.

One connection may let many wait, since a client of old messages reads as fast as it can; all of them at once would
leave a server no memory, and whoever connects can let answers wait. So of too many the connection ends whose client
has taken nothing for the longest time: one that reads goes behind all others with each byte.

Only connections that have something unsent are known here; an answer that its socket takes at once costs nothing.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4
"""So many connections may let as much wait as one may."""


class Slow(Protocol):
    """A connection, as far as its unsent answers are concerned."""

    peer: str
    unsent_bytes: int

    def close(self, reason: str, /) -> None:
        """End it; it leaves."""
        ...


class UnsentAnswers:
    """The bytes that wait, by connection, in the order in which their clients have taken something.

    Invariants: `count_bytes` is the sum of what is known of the connections, and between two calls at most `bytes_max`.

    Attributes:
        count_bytes: the bytes of all answers that wait.
        bytes_max: the most that may wait.
        cut_count: the connections that had to end.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.count_bytes = 0
        self.cut_count = 0
        self._waiting: dict[Slow, int] = {}

    def grew(self, connection: Slow) -> None:
        """Note that more waits for a connection, whose client has taken nothing; end some if it is too much."""
        self.count_bytes += connection.unsent_bytes - self._waiting.get(connection, 0)
        self._waiting[connection] = connection.unsent_bytes
        while self.count_bytes > self.bytes_max:
            slowest = next(iter(self._waiting))
            self.cut_count += 1
            _log.warning(
                "closed the connection of %s: %d bytes of answers wait for all clients, and it has taken none of its "
                "%d for the longest time",
                slowest.peer,
                self.count_bytes,
                slowest.unsent_bytes,
            )
            slowest.close("too many answers wait, and its client reads none")
            self.leave(slowest)

    def shrank(self, connection: Slow) -> None:
        """Note that a client has taken some of what waits for it, or all."""
        self.leave(connection)
        if connection.unsent_bytes:
            self._waiting[connection] = connection.unsent_bytes
            self.count_bytes += connection.unsent_bytes

    def leave(self, connection: Slow) -> None:
        """Forget a connection, if it is known."""
        self.count_bytes -= self._waiting.pop(connection, 0)
        assert self.count_bytes >= 0, f"{self.count_bytes} bytes of answers wait"
