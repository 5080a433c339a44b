"""What was sent, acknowledged and read, by number: one byte a message, so that hours of traffic fit.

The model: a bag of numbered messages. One that is acknowledged with a place stands there, and nowhere else, until it is
due. A reader of every queue, from its first offset on, gets each of them once.

    lost         acknowledged, and the readers, who came to the end of every queue, never got it; more of these than
                 were deleted before a reader came to them
    wrong-place  a reader got it at another place than its acknowledgement names
    twice        a reader got it at two places
    refused      the answer said that it is surely not stored, and a reader got it
    early        the log lost its beginning up to a message that was not due

It knows numbers, places and times that it is told, and no client.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Final, NamedTuple

from jepsen.checkers.results import Anomaly, CheckResult, judged

NAME: Final = "messages"

_ACKNOWLEDGED: Final = 1
_READ: Final = 2
_REFUSED: Final = 4

ANOMALIES_KEPT: Final = 20
"""The others are counted only."""

MARK_NUMBERS: Final = 1000
"""The time of one message in so many is kept."""

EARLY_SLACK_S: Final = 60.0
"""A queue's neighbours were sent within so long of each other, also while nobody led."""


class Place(NamedTuple):
    """The place of a message: the number of its queue, and its offset there."""

    queue_id: int
    offset: int


class Ledger:
    """The account of all messages; numbers count from 0.

    Attributes:
        counts: of messages, by what became of them.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._states = bytearray()
        self._acknowledged_at: dict[int, Place] = {}  # and not read yet
        self._read_at: dict[int, Place] = {}  # and not acknowledged yet
        self._marks: list[int] = []
        self._mark_times_s: list[float] = []
        self._anomalies: list[Anomaly] = []
        self._anomaly_count = 0

    @property
    def unread(self) -> int:
        """The number of messages that were acknowledged and not read yet."""
        return len(self._acknowledged_at)

    def send(self, count: int, at_s: float) -> int:
        """Give out numbers for messages that are sent now; returns the first."""
        first = len(self._states)
        self._states += bytes(count)
        if not self._marks or first >= self._marks[-1] + MARK_NUMBERS:
            self._marks.append(first)
            self._mark_times_s.append(at_s)
        self.counts["sent"] += count
        return first

    def acknowledge(self, number: int, place: Place) -> None:
        """Note that a message is safe, and where it stands."""
        self._states[number] |= _ACKNOWLEDGED
        self.counts["acknowledged"] += 1
        read_at = self._read_at.pop(number, None)
        if read_at is None:
            self._acknowledged_at[number] = place
        else:
            self._compare(number, place, read_at)

    def refuse(self, number: int) -> None:
        """Note that a message is surely not stored."""
        self.counts["refused"] += 1
        if self._states[number] & _READ:
            self._report("refused", f"message {number} was refused, and read before")
        self._states[number] |= _REFUSED

    def doubt(self, number: int) -> None:
        """Note that nobody knows what became of a message: it may be read, or not."""
        self.counts["unknown"] += 1
        self._read_at.pop(number, None)

    def read(self, number: int, place: Place) -> None:
        """Note that a reader got a message.

        Raises:
            ValueError: nobody has sent that.
        """
        if not 0 <= number < len(self._states):
            raise ValueError(f"message {number} at {place} was never sent")
        state = self._states[number]
        if state & _READ:
            self._report("twice", f"message {number} stands a second time at {place}")
            return
        self.counts["read"] += 1
        self._states[number] |= _READ
        if state & _REFUSED:
            self._report("refused", f"message {number} was refused, and stands at {place}")
        elif state & _ACKNOWLEDGED:
            self._compare(number, self._acknowledged_at.pop(number), place)
        else:
            self._read_at[number] = place

    def skip(self, count: int) -> None:
        """Note that messages were deleted before a reader came to them."""
        self.counts["deleted_unread"] += count

    def begins_with(self, number: int, *, at_s: float, kept_s: float) -> None:
        """Note that a queue begins with a message, so that those before it were deleted.

        Args:
            number: of the message.
            at_s: now, on the clock of `send`.
            kept_s: how long messages must be kept.
        """
        sent_s = self._mark_times_s[bisect_right(self._marks, number) - 1]
        self.counts["beginnings"] += 1
        if at_s - sent_s < kept_s - EARLY_SLACK_S:
            age_s = at_s - sent_s
            self._report("early", f"a queue begins with message {number}, {age_s:.0f} s old")

    def judge(self, *, is_read_out: bool = True) -> CheckResult:
        """Judge.

        Args:
            is_read_out: the readers have come to the end of every queue; else what they lack may lie before them.
        """
        why, lost = "", self._states.count(_ACKNOWLEDGED)
        # What was due and went before a reader came is missing, too, and nobody knows its numbers.
        skipped = self.counts["deleted_unread"]
        if lost > skipped and is_read_out:
            first = self._states.index(_ACKNOWLEDGED)
            but = f", of which at most {skipped} were deleted when they were due" if skipped else ""
            self._report(
                "lost", f"{lost} acknowledged messages were never read, first {first}{but}"
            )
        if lost and not is_read_out:
            why = f"{lost} acknowledged messages were not read yet when it ended"
        elif not self.counts["read"]:
            why = "nothing was read"
        elif skipped:
            why = f"{skipped} messages were deleted before a reader came to them"
        counts: dict[str, object] = {**self.counts, "anomalies": self._anomaly_count}
        return judged(NAME, self._anomalies, counts, why)

    def _compare(self, number: int, promised: Place, found: Place) -> None:
        if promised != found:
            text = f"message {number} was promised at {promised}, and stands at {found}"
            self._report("wrong-place", text)

    def _report(self, kind: str, text: str) -> None:
        self._anomaly_count += 1
        if len(self._anomalies) < ANOMALIES_KEPT:
            self._anomalies.append(Anomaly(kind, text))
