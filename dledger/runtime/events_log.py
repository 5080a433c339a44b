"""Log lines: one event each, with its fields, through the standard library's logging.

A line reads `event node=n0 term=3 index=17 ...`; its record has `event` and `fields`, for whoever writes it otherwise.
What an outsider can provoke (garbage on the port, failed handshakes) is limited, so that nobody fills the disk from
the network.
"""

from __future__ import annotations

import logging

from dledger.runtime.clock import now_s

LOGGER = logging.getLogger("dledger")
LOGGER.addHandler(logging.NullHandler())

OUTSIDER_LINES_PER_S = 5.0
"""Lines a second that outsiders may cause, with as many at once."""


def log_event(level: int, event: str, **fields: object) -> None:
    """Write one event."""
    if LOGGER.isEnabledFor(level):
        text = format_event(event, fields)
        LOGGER.log(level, "%s", text, extra={"event": event, "fields": fields})


def format_event(event: str, fields: dict[str, object]) -> str:
    """Format `event key=value ...`; values with spaces or control characters are quoted."""
    parts = [event]
    for name, value in fields.items():
        text = str(value)
        quoted = repr(text) if " " in text or not text.isprintable() or not text else text
        parts.append(f"{name}={quoted}")
    return " ".join(parts)


class LimitedLog:
    """A log of at most `per_s` lines a second; the next line that passes says how many did not."""

    def __init__(self, per_s: float = OUTSIDER_LINES_PER_S) -> None:
        self._per_s = per_s
        self._allowance = per_s
        self._at_s = now_s()
        self._dropped_count = 0

    def log_event(self, level: int, event: str, **fields: object) -> None:
        """Write one event, or count it."""
        present_s = now_s()
        self._allowance = min(self._per_s, self._allowance + (present_s - self._at_s) * self._per_s)
        self._at_s = present_s
        if self._allowance < 1:
            self._dropped_count += 1
            return
        self._allowance -= 1
        if self._dropped_count:
            fields["lines_dropped"] = self._dropped_count
            self._dropped_count = 0
        log_event(level, event, **fields)
