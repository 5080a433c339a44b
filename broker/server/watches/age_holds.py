"""What keeps a leader from deleting by age for a while, so that somebody can stop what cannot be undone.

A clock that is wrong, or was, makes old what is not (`ClockDoubt`); and a group that has kept everything so far may
follow a setting for the first time (`FirstForgetting`). Each waits, and says until when and what to do.

Pure: times come in. Nothing here knows segments or needs, and nothing here concerns what goes for its size or for a
disk that is nearly full (broker/service/retention.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.store.retention import JUMP_MS, Retention
from broker.times import time_text

DOUBT_MS: Final = 3_600_000
"""For so long each new leader that sees a jump of the time deletes nothing by age."""

BEHIND_MAX_MS: Final = 3_600_000
"""A leader whose clock is further behind the newest message deletes nothing by age: one of the two is wrong."""

GRACE_MS: Final = 24 * 3_600_000
"""From the warning to the first deletion by age of a group that has never deleted anything."""

LEAP_MIN_MS: Final = 3_600_000
"""A shorter leap makes nothing due that was not nearly so: reserved times are whole hours."""

_DAY_MS: Final = 24 * 3_600_000
_HOUR_MS: Final = 3_600_000


class Leap(NamedTuple):
    """A leap of the time by which ages are counted, from the newest record before it."""

    before_ms: int
    after_ms: int


class LogPace:
    """The pace of the log's time as one node sees it: how far it is ahead of the time that has passed meanwhile."""

    def __init__(self) -> None:
        self._last_store_ms = 0
        self._seen_ms = 0

    def look(self, steady_ms: int, *, wall_ms: int, last_store_ms: int) -> Leap | None:
        """Return the leap that no time has passed for since the newest record was seen first; None: there is none.

        Args:
            steady_ms: monotonic.
            wall_ms: this node's time.
            last_store_ms: the time of the log.
        """
        before_ms, now_ms = self._last_store_ms, max(wall_ms, last_store_ms)
        leap_ms = now_ms - before_ms - (steady_ms - self._seen_ms)
        if last_store_ms != before_ms:
            self._last_store_ms, self._seen_ms = last_store_ms, steady_ms
        return Leap(before_ms, now_ms) if before_ms and leap_ms > LEAP_MIN_MS else None


class ClockDoubt:
    """Doubt, of one leader while it leads, in the time by which ages are counted.

    Attributes:
        sure_ms: the latest time that is believed, as of the last `reason`.
    """

    def __init__(self) -> None:
        self.sure_ms = 0
        self._origin_ms = -1
        self._until_ms = 0
        self._leap: Leap | None = None

    def note(self, leap: Leap | None) -> None:
        """Note a leap that this node has seen; None: it saw none since."""
        self._leap = leap or self._leap

    def reason(
        self,
        steady_ms: int,
        *,
        wall_ms: int,
        last_store_ms: int,
        retention: Retention,
        shortest_ms: int,
    ) -> str:
        """Return why the time is not believed now; empty: it is.

        Args:
            steady_ms: monotonic.
            wall_ms: this node's time.
            last_store_ms: the time of the log, that of its newest record.
            retention: with the last jump of the log's time.
            shortest_ms: the shortest time for which anything is reserved.
        """
        self.sure_ms = max(wall_ms, last_store_ms)
        if last_store_ms - wall_ms > BEHIND_MAX_MS:
            self.sure_ms = wall_ms
            return (
                f"this node's clock is behind the newest message, of {time_text(last_store_ms)}: nothing goes by "
                "its age until it has caught up; to hold the log small meanwhile, set retentionBytes"
            )
        jump, leap = retention.jump, self._leap
        found = [] if jump is None else [Leap(jump.before_ms, jump.after_ms)]
        if last_store_ms and wall_ms - last_store_ms > JUMP_MS:
            found.append(Leap(last_store_ms, wall_ms))
        # The pause of an idle group is one that time has passed for, and shorter leaps may empty a log, too.
        if leap is not None and leap.after_ms - leap.before_ms > min(JUMP_MS, shortest_ms):
            found.append(leap)
        if not found:
            return ""
        before_ms, after_ms = max(found)
        # A record that ends a pause makes a jump of it, which began at the same time: it is waited for once.
        if before_ms != self._origin_ms:
            self._origin_ms, self._until_ms = before_ms, steady_ms + DOUBT_MS
        if steady_ms >= self._until_ms:
            return ""
        self.sure_ms = before_ms
        leap_ms = after_ms - before_ms
        size = f"{leap_ms // _DAY_MS} days" if leap_ms > JUMP_MS else f"{leap_ms // _HOUR_MS} hours"
        return (
            f"the time of the log goes from {time_text(before_ms)} to {size} later "
            f"at once: nothing goes by its age for {DOUBT_MS // 60_000} minutes; stop this node if its clock is wrong"
        )


class DueByAge(NamedTuple):
    """The part of the log that is older than the reserved time, and all that is kept, in bytes."""

    due_bytes: int
    kept_bytes: int


class FirstForgetting:
    """Grace, under one leader, before a group deletes something by its age for the first time."""

    def __init__(self) -> None:
        self._until_ms: int | None = None
        self._text = ""

    def reason(
        self, steady_ms: int, *, wall_ms: int, reserved_ms: int, look: Callable[[], DueByAge]
    ) -> str:
        """Return why nothing goes yet; empty: what is due may go.

        Args:
            steady_ms: monotonic.
            wall_ms: this node's time.
            reserved_ms: age at which messages are due.
            look: returns how much is due; called once, as the leader begins.
        """
        if self._until_ms is None:
            found = look()
            self._until_ms = steady_ms + GRACE_MS if found.due_bytes else steady_ms
            self._text = (
                f"nothing was ever deleted here, and {_mib_text(found.due_bytes)} of {_mib_text(found.kept_bytes)} of "
                f"the log are older than {reserved_ms // 3_600_000} hours (fileReservedTime): they go from "
                f"{time_text(wall_ms + GRACE_MS)} on; to keep them, set fileReservedTime to more hours now, to let "
                "them go before, use deleteExpiredCommitLog"
            )
        return self._text if steady_ms < self._until_ms else ""

    def end(self) -> None:
        """Let what is due go from now on."""
        self._until_ms = 0


def _mib_text(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
