"""Times as operators write them: at a moment, or so long ago.

now                          the moment of the call
90s, 15min, 2h, 3d           so long before it
03:12                        the last time that a local clock showed that; with seconds, too
2026-11-24T21:00:00          a local time; with +01:00 or Z one of that zone; without seconds, or the date alone
2026-11-24#21:00:00:000      the same, as mqadmin writes it
1795554000000                milliseconds since 1970
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Final

_AGO: Final = re.compile(r"([0-9]{1,9})(s|min|h|d)")
_UNITS_MS: Final = {"s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_OF_MQADMIN: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")
_MS: Final = re.compile(r"[0-9]{12,15}")
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")

FORMS: Final = (
    "now, 15min (so long ago; s, min, h, d), 03:12 (the last time that it was), 2026-11-24T21:00:00 (local, or with "
    "+01:00 or Z), or ms since 1970"
)
"""For help texts."""


class MomentError(ValueError):
    """The text is no time."""


def parse_moment(text: str, now_ms: int | None = None) -> int:
    """Read a time; return ms since 1970.

    Args:
        text: in one of the forms above.
        now_ms: what `now` is; None: the clock's.

    Raises:
        MomentError: it has none of the forms.
    """
    text = text.strip()
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if text == "now":
        return now
    if found := _AGO.fullmatch(text):
        return max(0, now - int(found[1]) * _UNITS_MS[found[2]])
    if _MS.fullmatch(text):
        return int(text)
    if _CLOCK.fullmatch(text):
        return _last_time(text, now)
    if found := _OF_MQADMIN.fullmatch(text):
        text = f"{found[1]}T{found[2]}.{found[3]}"
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise MomentError(f"{text[:60]!r} is no time: {FORMS}") from error


def _last_time(clock: str, now_ms: int) -> int:
    """Return the last moment at which a local clock showed a time of day: one set back shows some twice, or one never.

    Two nights in a row no clock is set, so the last one is not longer ago than two days.
    """
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().date()
    wanted = clock_time.fromisoformat(clock)
    moments = [
        datetime.combine(today - timedelta(days=days), wanted.replace(fold=fold)).timestamp()
        for days in range(3)
        for fold in (0, 1)
    ]
    shown = [
        each for each in moments if datetime.fromtimestamp(each, UTC).astimezone().time() == wanted
    ]
    return max(ms for each in shown if (ms := round(each * 1000)) <= now_ms)
