"""Where the log stood in each second of the last minute, for sends whose keys are no longer kept as they are.

From these marks the fold knows how far back the log is needed. They are few, and every snapshot has them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

MARK_MS: Final = 1000
"""Store time from one mark to the next, at least."""


class SendMarks(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The marks: store time and place of the first record from there on, oldest first.

    Attributes:
        last_ms: store time of the newest record that was added.
    """

    marks: list[tuple[StoreTimeMs, PhysicalOffset]] = []
    last_ms: StoreTimeMs = StoreTimeMs(0)

    def add(self, first: PhysicalOffset, store_ms: StoreTimeMs) -> None:
        """Note that an entry with sends begins at a place."""
        if not self.marks or store_ms >= self.marks[-1][0] + MARK_MS:
            self.marks.append((store_ms, first))
        self.last_ms = max(self.last_ms, store_ms)

    def forget(self, oldest_ms: StoreTimeMs) -> None:
        """Forget the marks after which nothing is as new as that."""
        if self.last_ms < oldest_ms:
            self.marks = []
            return
        while len(self.marks) > 1 and self.marks[1][0] < oldest_ms:
            del self.marks[0]

    def oldest(self, oldest_ms: StoreTimeMs) -> PhysicalOffset | None:
        """Return a place such that all records not older than that stand there or later; None if there are none."""
        if self.last_ms < oldest_ms or not self.marks:
            return None
        for (_, place), (following_ms, _) in pairwise(self.marks):
            if following_ms >= oldest_ms:
                return place
        return self.marks[-1][1]
