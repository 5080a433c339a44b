"""Times as people read them. Nothing here knows what happens at one, or reads a clock."""

from __future__ import annotations

from datetime import UTC, datetime


def time_text(at_ms: int) -> str:
    """Return a time, in ms since 1970, as people read it; one that no calendar has as it is."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
