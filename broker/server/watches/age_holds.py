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

_DAY_MS: Final = 24 * 3_600_000


class ClockDoubt:
    """Doubt, of one leader while it leads, in the time by which ages are counted."""

    def __init__(self) -> None:
        self._origin_ms = -1
        self._until_ms = 0

    def reason(
        self, steady_ms: int, *, wall_ms: int, last_store_ms: int, retention: Retention
    ) -> str:
        """Return why the time is not believed now; empty: it is.

        Args:
            steady_ms: monotonic.
            wall_ms: this node's time.
            last_store_ms: the time of the log, that of its newest record.
            retention: with the last jump of the log's time.
        """
        if last_store_ms - wall_ms > BEHIND_MAX_MS:
            return (
                f"this node's clock is behind the newest message, of {time_text(last_store_ms)}: nothing goes by "
                "its age until it has caught up; to hold the log small meanwhile, set retentionBytes"
            )
        jump = retention.jump
        if last_store_ms and wall_ms - last_store_ms > JUMP_MS:
            before_ms, after_ms = last_store_ms, wall_ms
        elif jump is not None:
            before_ms, after_ms = jump.before_ms, jump.after_ms
        else:
            return ""
        # A record that ends a pause makes a jump of it, which began at the same time: it is waited for once.
        if before_ms != self._origin_ms:
            self._origin_ms, self._until_ms = before_ms, steady_ms + DOUBT_MS
        if steady_ms >= self._until_ms:
            return ""
        return (
            f"the time of the log goes from {time_text(before_ms)} to {(after_ms - before_ms) // _DAY_MS} days later "
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
