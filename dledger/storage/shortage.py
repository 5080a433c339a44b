"""Reads that the system refuses for now, for want of descriptors or memory: they say nothing of the bytes.

Nothing is taken for damaged then, asked of other members, or written. Who wants the entries goes without them until the
next pulse. Time is told from outside; who tries again, and what a leader does about it, is not decided here.
"""

from __future__ import annotations

from typing import Final

from dledger.errors import EntryDamagedError
from dledger.storage.read_errors import is_shortage

PULSE_MS: Final = 100
"""After this what was refused is tried again: it may be some hundred reads, and each costs a call of the system."""

NOTE_PAUSE_MS: Final = 10_000
"""A shortage may last; it is noted again after this."""

_NEVER_MS: Final = 1 << 62


class Shortage:
    """The refused reads of one log.

    Attributes:
        is_met: some were refused since the last pulse.
        pulse_count: how often what was refused could be tried again.
        since_ms: since when some were refused between any two pulses; None: they are not.
    """

    def __init__(self, notes: list[tuple[str, dict[str, object]]]) -> None:
        """Start without any; `notes` gets an event and its fields, now and then."""
        self.is_met = False
        self.pulse_count = 0
        self.since_ms: int | None = None
        self._notes = notes
        self._reason = ""
        self._pulse_ms: int | None = None
        self._calm_ms = 0
        self._noted_ms: int | None = None

    def seen(self, what: str, error: OSError) -> None:
        """Note that something was not read, for a reason that says nothing of the bytes."""
        self.is_met = True
        self._reason = f"{what}: {error}"

    def judge(self, what: str, error: OSError) -> EntryDamagedError:
        """Note an error of a read that tells of a shortage, and return the one for whoever waits for the entry.

        Raises:
            OSError: it is the given one, and tells of something else.
        """
        if not is_shortage(error):
            raise error
        self.seen(what, error)
        return EntryDamagedError(f"{what} cannot be read now: {error}")

    def next_deadline_ms(self) -> int:
        """Return when `pass_time` is due; 0: at once."""
        if not self.is_met:
            return _NEVER_MS
        return 0 if self._pulse_ms is None else self._pulse_ms

    def pass_time(self, now_ms: int) -> bool:
        """Let time pass; return True at a pulse: what was refused may be tried again."""
        if not self.is_met:
            if self.since_ms is not None and now_ms >= self._calm_ms:
                self.since_ms = None
            return False
        if self._pulse_ms is None:
            self._pulse_ms = now_ms + PULSE_MS
            self.since_ms = now_ms if self.since_ms is None else self.since_ms
            self._note(now_ms)
            return False
        if now_ms < self._pulse_ms:
            return False
        self.is_met = False
        self.pulse_count += 1
        self._pulse_ms = None
        self._calm_ms = now_ms + PULSE_MS
        return True

    def lasts_ms(self, now_ms: int) -> int:
        """Return for how long reads were refused between any two pulses; 0: they are not."""
        return 0 if self.since_ms is None else now_ms - self.since_ms

    def count_anew(self) -> None:
        """Let what lasts begin now."""
        self.since_ms = None

    def _note(self, now_ms: int) -> None:
        if self._noted_ms is None or now_ms - self._noted_ms >= NOTE_PAUSE_MS:
            self._noted_ms = now_ms
            self._notes.append(("entries-not-read", {"reason": self._reason}))
