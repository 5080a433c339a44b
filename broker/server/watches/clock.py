"""The time that this node writes into the log: the wall clock, but without its jumps, and unless most others differ.

Due times, store times and lock times all come from the leader's clock. When an operator or a time service
sets that clock, nothing may be delivered early, nor everything at once. So the wall clock is read when the
process starts, and from then on time passes as the machine's steady clock says; what the wall clock
differs is made up for slowly, by at most `SLEW_PER_MILLE` of the time that passed.

A wall clock that most other members contradict is not followed (`group_time`). A node that has just started moves to
the time of most members at once when it hears them, which is before it leads: it leads only by votes of members whose
clocks it has read. From there on its time is *settled*, and only slews. Until then it never is ahead of most members.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from broker.server.watches.group_time import PeerClock, agreed_ms, starting_ms
from dledger import ClockReading, NodeId
from dledger.runtime.events_log import log_event

SLEW_PER_MILLE: Final = 1
"""Time services slew by half of this; so an ordinary correction is followed completely."""

LOOKS: Final = 5
"""At both clocks, as a process starts."""

COMPLAINT_MS: Final = 1_000
"""A clock that is off by more is reported: a time service would have kept it nearer."""

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Read the wall clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Read a clock that nobody can set; it runs on while the machine sleeps, where the system has such a one."""
    return time.clock_gettime_ns(_STEADY) // 1_000_000


def _distance_ms(wall: Callable[[], int], steady: Callable[[], int]) -> int:
    """Return how far the wall clock is ahead, by the look in which the least time passed.

    On a busy machine that may be much; it would be the error of this node's time, which is made up for slowly only.
    """
    looks = []
    for _ in range(LOOKS):
        before, wall_now = steady(), wall()
        after = steady()
        looks.append((after - before, wall_now - after))
    return min(looks)[1]


class SteadyWallClock:
    """Milliseconds since 1970 that jump no more once they are settled, and not back once this node has led. Call it."""

    def __init__(
        self,
        node_id: NodeId,
        member_count: int,
        *,
        wall: Callable[[], int] = wall_ms,
        steady: Callable[[], int] = steady_ms,
    ) -> None:
        """Begin at the wall clock.

        Args:
            node_id: of this node, for the log.
            member_count: of the group.
            wall: may jump.
            steady: does not; the clock of `ClockReading`.
        """
        self.wall_ms = wall
        self._node_id = node_id
        self._member_count = member_count
        self._steady = steady
        self._peers: dict[NodeId, PeerClock] = {}
        self._learners: frozenset[NodeId] = frozenset()
        self._has_led = False
        self._led_ms = 0  # the time of now, when it was last asked for after this node had led
        self._is_settled = member_count == 1
        self._offset_ms = _distance_ms(wall, steady)
        self._slewed_at_ms = steady()

    def __call__(self) -> int:
        """Return the time of now."""
        steady = self._steady()
        step = (steady - self._slewed_at_ms) * SLEW_PER_MILLE // 1000
        if step > 0:
            self._slewed_at_ms = steady
            behind = self._agreed_ms(self.wall_ms() - steady) - self._offset_ms
            self._offset_ms += max(-step, min(step, behind))
        now_ms = steady + self._offset_ms
        if self._has_led:
            assert now_ms >= self._led_ms, f"the log's clock goes back {self._led_ms - now_ms} ms"
            self._led_ms = now_ms
        return now_ms

    def members_changed(
        self, others: Collection[NodeId], *, learners: Collection[NodeId] = ()
    ) -> None:
        """Go by the other voters' clocks from now on, and this node's.

        What is settled stays so, but for a node that only believed to be alone.

        Args:
            others: the other members.
            learners: those that are counted for nothing, here neither: their clocks are only kept for when they vote.
        """
        was_alone = self._member_count == 1
        self._learners = frozenset(learners)
        voter_count = len(set(others) - self._learners)
        self._member_count = voter_count + 1
        if was_alone and voter_count and not self._has_led:
            self._is_settled = False
        for gone in self._peers.keys() - set(others):
            del self._peers[gone]

    def _counted(self) -> list[PeerClock]:
        """Return the clocks of the other voters, as far as they are known."""
        return [clock for name, clock in self._peers.items() if name not in self._learners]

    def _agreed_ms(self, own_ms: int) -> int:
        return agreed_ms(
            own_ms,
            self._counted(),
            member_count=self._member_count,
            now_ms=self._steady(),
        )

    def learn(self, node_id: NodeId, reading: ClockReading) -> None:
        """See `ClockWatch`."""
        before = self._peers.get(node_id)
        clock = PeerClock.of(reading)
        self._peers[node_id] = clock if before is None else before.or_newer(clock)
        if not self._is_settled:
            self._set()

    def settled_ms(self) -> int | None:
        """See `ClockWatch`."""
        return self() if self._is_settled else None

    def _set(self) -> None:
        """Set the time anew from the others' clocks; back as well, until this node has led and its time was written."""
        steady = self._steady()
        ahead_ms, self._is_settled = starting_ms(
            self.wall_ms() - steady,
            self._counted(),
            member_count=self._member_count,
            now_ms=steady,
        )
        moved_ms = ahead_ms - self._offset_ms
        if self._has_led:
            moved_ms = max(0, moved_ms)
        self._offset_ms += moved_ms
        if abs(moved_ms) > COMPLAINT_MS:
            log_event(logging.WARNING, "clock-corrected", node=self._node_id, by_ms=moved_ms)

    def lead(self) -> None:
        """Let the time no longer go back: this node begins to lead, and its time stands in the log from here on."""
        self._has_led = True
        if not self._is_settled:
            log_event(
                logging.WARNING,
                "clock-not-settled",
                node=self._node_id,
                by_ms=-self.error_ms,
                note="clocks of members differ and not enough others were read: it goes by the one that is behind",
            )
        if abs(self.ahead_ms) > COMPLAINT_MS:
            log_event(
                logging.WARNING,
                "clock-differs",
                node=self._node_id,
                ahead_ms=self.ahead_ms,
                note="the leader's wall clock is not that of most members, and is not followed: set it",
            )

    @property
    def ahead_ms(self) -> int:
        """The distance of the wall clock ahead of what most members show; 0 unless they contradict it."""
        own_ms = self.wall_ms() - self._steady()
        return own_ms - self._agreed_ms(own_ms)

    @property
    def error_ms(self) -> int:
        """The distance of the wall clock ahead of this one."""
        return self.wall_ms() - self._steady() - self._offset_ms
