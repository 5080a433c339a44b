"""The wall clocks that members report to each other, and their comparison with the own one.

A member's wall clock travels as an attribute of its handshake, so older versions are not disturbed, and beside it
the time that the member goes by, once that is settled. The dialer knows that both were read after it had dialled and
before the answer came; nothing is assumed of either way's delay.
What is made of such readings is for the service on top to decide: the log itself needs no wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dledger.raft.ids import NodeId

CLOCK_ATTRIBUTE: Final = "wall_clock_ms"
"""Milliseconds since 1970, when the member spoke."""

SETTLED_ATTRIBUTE: Final = "settled_clock_ms"
"""The time that the member goes by at that moment; absent while it does not know that of most members."""

_DIGITS_MAX: Final = 18
"""The longest number that a hostile member may make us parse; 18 digits are 30 million years."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One reading of a member's wall clock, at some moment between two of this node's steady clock.

    Attributes:
        wall_ms: what it showed.
        asked_ms, answered_ms: the two moments, of `dledger.runtime.clock.now_ms`.
        settled_ms: the time that the member went by; None: it reported none.
    """

    wall_ms: int
    asked_ms: int
    answered_ms: int
    settled_ms: int | None = None


class ClockWatch(Protocol):
    """The service's clock, which is reported to the other members and compared with theirs."""

    def wall_ms(self) -> int:
        """Return the wall clock as it is, right or wrong."""
        ...

    def settled_ms(self) -> int | None:
        """Return the time that this node goes by; None while it is not known to be that of most members."""
        ...

    def learn(self, node_id: NodeId, reading: ClockReading) -> None:
        """Take a reading of another member's clock."""
        ...

    @property
    def ahead_ms(self) -> int:
        """The time by which the wall clock is ahead of what most members show."""
        ...


def clock_attributes(clock: ClockWatch) -> dict[str, str]:
    """Return what this member reports of its clock now."""
    attributes = {CLOCK_ATTRIBUTE: str(clock.wall_ms())}
    settled_ms = clock.settled_ms()
    if settled_ms is not None:
        attributes[SETTLED_ATTRIBUTE] = str(settled_ms)
    return attributes


def reading_of(
    attributes: Mapping[str, str], *, asked_ms: int, answered_ms: int
) -> ClockReading | None:
    """Decode a member's clock report, received between two moments; None when it contains no wall clock."""
    wall_ms = _time_in(attributes, CLOCK_ATTRIBUTE)
    if wall_ms is None:
        return None
    return ClockReading(wall_ms, asked_ms, answered_ms, _time_in(attributes, SETTLED_ATTRIBUTE))


def _time_in(attributes: Mapping[str, str], name: str) -> int | None:
    """Decode one time; None when it is missing or malformed."""
    text = attributes.get(name, "")
    is_time = 0 < len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if is_time else None
