"""How much of the loop's time backlogs get while new messages come: what is new goes first, what is old goes on.

Readers of a backlog ask again as soon as they are answered, and so take all the time that there is. A message that is
sent takes several turns of the loop at each of its nodes, and waits for theirs in each. So, while messages come, each
piece of such work is followed by a pause that is as many times as long; without messages there is none. The pause is
bounded by the piece before it, so a backlog is never left alone: it gets its share whatever else goes on. It must not
know what the work is.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.125
"""Of the time, for backlogs, while messages come."""

COMING_S: Final = 0.1
"""After so long without an entry no messages come."""

PIECE_S_MAX: Final = 0.01
"""A piece of work counts for no more: this process may have had no processor meanwhile."""


class BacklogShare:
    """The time from which the next piece of work is due."""

    def __init__(self, share: float = SHARE) -> None:
        assert 0 < share <= 1, f"a share of {share}"
        self._pauses = 1 / share - 1
        self._coming_until_s = self._due_s = float("-inf")

    def note_new(self, now_s: float) -> None:
        """Take note that an entry was applied."""
        self._coming_until_s = now_s + COMING_S

    def spend(self, now_s: float, spent_s: float) -> None:
        """Take note that a piece of work, which took so long, has ended."""
        pause_s = min(spent_s, PIECE_S_MAX) * self._pauses
        self._due_s = max(self._due_s, now_s) + pause_s

    def wait_s(self, now_s: float) -> float:
        """Return how long the next piece has to wait; 0: it is due."""
        if now_s >= self._coming_until_s:
            self._due_s = min(self._due_s, now_s)
            return 0.0
        return max(0.0, min(self._due_s, self._coming_until_s) - now_s)
