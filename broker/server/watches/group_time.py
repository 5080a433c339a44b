"""Which time a node goes by when clocks of its group differ: its own, unless most others contradict it.

Two questions. Where does a node begin that has just started (`starting_ms`)? It may jump, and it must not begin ahead
of most members: one entry from the future holds up the time of the whole log. And which clock does it follow from there
on, slowly (`agreed_ms`)?

Pure. All times are distances: by how many milliseconds a wall clock is ahead of this node's steady clock. Of another
member's only bounds are known, since nobody knows how a round trip divides into there and back; and they widen with
time, since two clocks that nobody touches part slowly. So nothing here expires: what is old contradicts less.

The time that is agreed is the median. One wrong clock of three is outvoted; of two that differ nobody can tell which
one is wrong, unless one of the two members knows already what most clocks show; and of clocks that are wrong together
nobody can know at all (docs/adr/0105, 0166).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from dledger import ClockReading

DRIFT_PER_MILLE: Final = 1
"""Two clocks part by no more while nobody sets them: each may be slewed by half of this."""

NEAR_MS: Final = 1_000
"""Clocks that a time service keeps are nearer to each other than this."""


@dataclass(frozen=True, slots=True)
class PeerClock:
    """The knowledge of a member's wall clock: at `at_ms` it was ahead by `low_ms` to `high_ms`.

    Attributes:
        settled_ms: by how much the time was ahead that the member went by, at least; None: it knew none.
    """

    low_ms: int
    high_ms: int
    at_ms: int
    settled_ms: int | None = None

    @classmethod
    def of(cls, reading: ClockReading) -> Self:
        """Build one from a reading, taken between request and answer; a millisecond is lost to rounding."""
        assert reading.asked_ms <= reading.answered_ms, (
            f"{reading} was answered before it was asked"
        )
        lost_ms = reading.answered_ms + 1
        settled_ms = None if reading.settled_ms is None else reading.settled_ms - lost_ms
        high_ms = reading.wall_ms - reading.asked_ms + 1
        return cls(reading.wall_ms - lost_ms, high_ms, reading.answered_ms, settled_ms)

    def bounds(self, now_ms: int) -> tuple[int, int]:
        """Return the lowest and the highest value that it can have now."""
        drift_ms = max(0, now_ms - self.at_ms) * DRIFT_PER_MILLE // 1000
        return self.low_ms - drift_ms, self.high_ms + drift_ms

    def or_newer(self, newer: PeerClock) -> PeerClock:
        """Return the narrower one, or the newer one if they contradict each other: then that clock was set.

        What the member goes by is always the newer one's.
        """
        low_ms, high_ms = self.bounds(newer.at_ms)
        are_consistent = low_ms <= newer.high_ms and newer.low_ms <= high_ms
        if are_consistent and high_ms - low_ms < newer.high_ms - newer.low_ms:
            return replace(self, settled_ms=newer.settled_ms)
        return newer


def starting_ms(
    own_ms: int, peers: Iterable[PeerClock], *, member_count: int, now_ms: int
) -> tuple[int, bool]:
    """Return the clock to begin with, and True if no more readings could change it.

    The clocks of a majority that are near each other, if there is one; else what a member goes by that knew one; else
    the lowest that the median of all members can be, as if every clock that was not read were behind.

    Args:
        own_ms: this node's clock.
        peers: what is known of other members' clocks.
        member_count: of the group, this node included.
        now_ms: of the steady clock.

    Returns:
        The clock, and True when it is settled. `own_ms` and False while no majority was heard.
    """
    known = list(peers)
    own = PeerClock(own_ms, own_ms, now_ms)
    near = max((_near(one, [own, *known], now_ms) for one in (own, *known)), key=len)
    if 2 * len(near) > member_count:
        if own not in near:
            return sorted(one.low_ms for one in near)[(len(near) - 1) // 2], True
        others = [one for one in near if one is not own]
        return agreed_ms(own_ms, others, member_count=len(near), now_ms=now_ms), True
    settled = [peer.settled_ms for peer in known if peer.settled_ms is not None]
    if settled:
        return min(settled), True
    unknown_count = member_count - len(known) - 1
    place = (member_count - 1) // 2 - unknown_count
    if place < 0:
        return own_ms, False
    return sorted([own_ms, *(peer.low_ms for peer in known)])[place], unknown_count == 0


def _near(one: PeerClock, clocks: Iterable[PeerClock], now_ms: int) -> list[PeerClock]:
    """Return the clocks that may differ from `one` by no more than `NEAR_MS`, itself included."""
    low_ms, high_ms = one.bounds(now_ms)
    return [
        other
        for other in clocks
        if other.bounds(now_ms)[0] - NEAR_MS <= high_ms
        and low_ms <= other.bounds(now_ms)[1] + NEAR_MS
    ]


def agreed_ms(own_ms: int, peers: Iterable[PeerClock], *, member_count: int, now_ms: int) -> int:
    """Return the clock to go by: `own_ms` unless a majority of those heard contradicts it.

    Args:
        own_ms: this node's clock.
        peers: what is known of other members' clocks.
        member_count: of the group, this node included; without a majority of it nothing is decided.
        now_ms: of the steady clock.
    """
    known = list(peers)
    known_count = len(known) + 1
    if 2 * known_count <= member_count:
        return own_ms
    bounds = [(own_ms, own_ms), *(peer.bounds(now_ms) for peer in known)]
    # More than half of all clocks surely show more than anything below the first, less than anything above the second.
    lower = (known_count - 1) // 2
    at_least_ms = sorted(low_ms for low_ms, _ in bounds)[lower]
    at_most_ms = sorted(high_ms for _, high_ms in bounds)[known_count // 2]
    assert at_least_ms <= at_most_ms, f"no clock is from {at_least_ms} to {at_most_ms}: {bounds}"
    if at_least_ms <= own_ms <= at_most_ms:
        return own_ms
    # The lower end of the median: late by a round trip at most, and never early. As it was read: it does not drift.
    return sorted([own_ms, *(peer.low_ms for peer in known)])[lower]
