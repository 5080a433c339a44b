"""What members tell one another of their wall clocks, and what a dialer learns from it.

A member's wall clock travels as an attribute of its handshake, so members of before are not disturbed. The dialer
knows that it was read after it had dialled and before the answer came; nothing is assumed of either way's delay.
What is made of such readings is for the service on top to decide: the log itself needs no wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dledger.raft.ids import NodeId

CLOCK_ATTRIBUTE: Final = "wall_clock_ms"
"""Milliseconds since 1970, when the member spoke."""

_DIGITS_MAX: Final = 18
"""What a hostile member may make us parse; 18 digits are 30 million years."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A member's wall clock was read at some moment between two of this node's steady clock.

    Attributes:
        wall_ms: what it showed.
        asked_ms, answered_ms: the two moments, of `dledger.runtime.clock.now_ms`.
    """

    wall_ms: int
    asked_ms: int
    answered_ms: int


class ClockWatch(Protocol):
    """The service's clock: it is told to the other members, and told of theirs."""

    def wall_ms(self) -> int:
        """The wall clock as it is, right or wrong."""
        ...

    def heard(self, node_id: NodeId, reading: ClockReading) -> None:
        """Another member's clock was read."""
        ...

    @property
    def ahead_ms(self) -> int:
        """By how much the wall clock is ahead of what most members show."""
        ...


def wall_clock_of(attributes: Mapping[str, str]) -> int | None:
    """What a member told; None when it told nothing that is a time."""
    text = attributes.get(CLOCK_ATTRIBUTE, "")
    is_time = 0 < len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if is_time else None
