"""The values of a counter at the beginning of today and of yesterday (of UTC), as tools read them (28). Pure."""

from __future__ import annotations

from typing import Final

DAY_MS: Final = 86_400_000


class DayCounts:
    """Two values of one counter; a process that starts within a day counts from its start.

    The counter falls only when what it counts is replayed from the beginning: then it counts from there.

    Attributes:
        morning, yesterday_morning: its values then.
    """

    def __init__(self, wall_ms: int, count: int) -> None:
        self.morning = self.yesterday_morning = count
        self._day = wall_ms // DAY_MS

    def restart(self, count: int) -> None:
        """Count from here on: all before it is older than the process."""
        self.morning = self.yesterday_morning = count

    def sample(self, wall_ms: int, count: int) -> None:
        """Note the counter; called every few seconds, and a clock that goes back changes nothing."""
        if count < self.morning:  # the state was cleared, since a snapshot was refused
            self.restart(count)
        day = wall_ms // DAY_MS
        if day > self._day:
            self._day = day
            self.yesterday_morning, self.morning = self.morning, count
