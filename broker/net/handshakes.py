"""TLS handshakes that are not done, over all connections of a server: how many there may be, and whose turn it is.

A handshake costs a server more than its client: some 0.5 ms and 45 KB for one small packet. So few of them get on in
a round, however many want to, and of too many the oldest end: an honest one is done in two steps and is never among
them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

_log = logging.getLogger(__name__)

UNFINISHED_MAX: Final = 1_000
"""Some 45 MB."""

STEPS_MAX: Final = 8
"""In a round of all connections: some 4 ms, 10 ms with RSA keys."""


class Shaking(Protocol):
    """A connection whose handshake is not done, as far as that is concerned."""

    peer: str
    received_at: float

    def close(self, reason: str, /) -> None:
        """End it."""
        ...


_Shaking = TypeVar("_Shaking", bound=Shaking)


class Handshakes:
    """Those that have begun and are not done, in the order in which they began.

    Invariant: at most `unfinished_max` are.

    Attributes:
        unfinished_max: how many there may be.
        evicted_count: those that had to end because there were too many.
    """

    def __init__(self, unfinished_max: int | None = None) -> None:
        self._unfinished: dict[Shaking, None] = {}
        self.unfinished_max = UNFINISHED_MAX if unfinished_max is None else unfinished_max
        self.evicted_count = 0

    def __len__(self) -> int:
        """Return how many are not done."""
        return len(self._unfinished)

    def join(self, connection: Shaking) -> None:
        """Count a connection until it leaves; of too many the oldest ends."""
        self._unfinished.setdefault(connection)
        if len(self._unfinished) <= self.unfinished_max:
            return
        oldest = next(iter(self._unfinished))
        self.evicted_count += 1
        _log.warning(
            "closed the connection of %s: %d TLS handshakes are not done, and its is the oldest",
            oldest.peer,
            len(self._unfinished),
        )
        oldest.close("too many TLS handshakes are not done")
        self.leave(oldest)

    def leave(self, connection: Shaking) -> None:
        """Count a connection no more, if it was: its handshake is done, or it has ended."""
        self._unfinished.pop(connection, None)


def first_to_shake(shaking: Sequence[_Shaking]) -> Sequence[_Shaking]:
    """Return those that get on in this round: who was heard longest ago, so that who sends more keeps nobody out."""
    if len(shaking) <= STEPS_MAX:
        return shaking
    return sorted(shaking, key=lambda each: each.received_at)[:STEPS_MAX]
