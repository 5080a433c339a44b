"""Times as operators write them, and how they are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from broker.admin.client_versions import version_text
from broker.admin.moments import MomentError, parse_moment
from broker.times import local_and_utc

NOW_MS = 1_795_554_000_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("now", NOW_MS),
        ("90s", NOW_MS - 90_000),
        ("15min", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("3d", NOW_MS - 259_200_000),
        ("999999999d", 0),
        ("1795554000123", 1_795_554_000_123),
        ("2026-11-24T21:00:00Z", 1_795_554_000_000),
        ("2026-11-24T22:00+01:00", 1_795_554_000_000),
    ],
)
def test_times_are_read(text: str, at_ms: int) -> None:
    assert parse_moment(text, NOW_MS) == at_ms


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-24T21:00:00", datetime(2026, 11, 24, 21)),  # noqa: DTZ001 - local, as it is meant
        ("2026-11-24#21:00:00:500", datetime(2026, 11, 24, 21, 0, 0, 500_000)),  # noqa: DTZ001
        ("2026-11-24", datetime(2026, 11, 24)),  # noqa: DTZ001
    ],
)
def test_times_without_a_zone_are_local(text: str, same: datetime) -> None:
    assert parse_moment(text) == same.timestamp() * 1000


@pytest.mark.parametrize("text", ["", "soon", "12", "1795554000", "1.5h", "-2h", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(MomentError, match="is no time: now, 15min"):
        parse_moment(text)


def test_a_time_is_shown_in_the_zone_and_in_utc() -> None:
    at_ms = 1_795_554_000_999
    assert local_and_utc(at_ms, UTC) == "2026-11-24 21:00:00 UTC"
    ahead = timezone(timedelta(hours=1))
    assert local_and_utc(at_ms, ahead) == "2026-11-24 22:00:00+01:00 (21:00:00 UTC)"
    far = timezone(timedelta(hours=9))
    assert local_and_utc(at_ms, far) == "2026-11-25 06:00:00+09:00 (2026-11-24 21:00:00 UTC)"
    assert local_and_utc(2**63) == f"{2**63} ms"


@pytest.mark.parametrize(
    ("ordinal", "text"),
    [(317, "4.5.2"), (401, "4.9.4"), (409, "4.9.8"), (479, "5.3.3"), (478, "5.3.3-SNAPSHOT")],
)
def test_releases_of_clients_are_named(ordinal: int, text: str) -> None:
    assert version_text(ordinal) == text
    assert version_text(121) == "version 121"


@pytest.mark.parametrize(("text", "day"), [("03:12", 24), ("23:59:59", 23), ("21:00", 24)])
def test_a_time_of_day_is_the_last_one(text: str, day: int) -> None:
    now = datetime(2026, 11, 24, 21)  # noqa: DTZ001 - local, as it is meant
    at_ms = parse_moment(text, round(now.timestamp() * 1000))
    then = datetime.fromtimestamp(at_ms / 1000)  # noqa: DTZ006 - local, too
    assert (then.day, then.isoformat()[11 : 11 + len(text)]) == (day, text)


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone whose clocks are set forward on 2026-03-29 at 02:00, and back on 2026-10-25 at 03:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_berlin")
@pytest.mark.parametrize(
    ("now", "clock", "last"),
    [
        ("2026-10-25T01:30Z", "02:15", "2026-10-25T01:15Z"),  # shown twice: the second time
        ("2026-10-25T01:30Z", "02:45", "2026-10-25T00:45Z"),  # and once by now
        ("2026-10-25T00:30Z", "02:15", "2026-10-25T00:15Z"),
        ("2026-10-25T00:30Z", "02:45", "2026-10-24T00:45Z"),
        ("2026-03-29T01:10Z", "02:30", "2026-03-28T01:30Z"),  # never shown that day
        ("2026-03-29T12:00Z", "02:30", "2026-03-28T01:30Z"),
        ("2026-03-30T12:00Z", "02:30", "2026-03-30T00:30Z"),
    ],
)
def test_a_clock_that_was_set_has_shown_a_time_when_it_did(now: str, clock: str, last: str) -> None:
    now_ms, last_ms = (parse_moment(each) for each in (now, last))
    assert parse_moment(clock, now_ms) == last_ms
