"""Times as people read them. Nothing here knows what happens at one, or reads a clock."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo


def time_text(at_ms: int) -> str:
    """Return a time, in ms since 1970, as people read it; one that no calendar has as it is."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def local_and_utc(at_ms: int, zone: tzinfo | None = None) -> str:
    """Return a time, in ms since 1970, in a zone and in UTC; where they are the same once.

    Args:
        at_ms: one that no calendar has is returned as it is.
        zone: None: that of this machine.
    """
    try:
        utc = datetime.fromtimestamp(at_ms // 1000, UTC)
        local = utc.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    if not local.utcoffset():
        return f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    in_utc = f"{utc:%H:%M:%S}" if utc.date() == local.date() else f"{utc:%Y-%m-%d %H:%M:%S}"
    return f"{local.isoformat(sep=' ', timespec='seconds')} ({in_utc} UTC)"
