"""The policy of retention: what goes when, by RocketMQ's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.service.retention import (
    SEGMENTS_MAX,
    Decision,
    LogFacts,
    RetentionRules,
    SegmentStart,
    decide,
    parse_delete_hours,
    refuses_sends,
)
from dledger.raft.ids import Index, Position
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

HOUR_MS = 3_600_000
SEGMENT = 100
NOW_MS = 1_000 * HOUR_MS
RULES = RetentionRules()
AT_FOUR = LogFacts(
    now_ms=NOW_MS,
    hour=4,
    used_percent=20.0,
    own_used_percent=20.0,
    beginning=Position(0),
    given_back=Position(0),
    end=Position(850),
    segment_bytes=SEGMENT,
)
"""Segments 0 to 8; the first message of segment n was stored 100 - 10 n hours ago."""


def decided(
    rules: RetentionRules = RULES, *, is_known: bool = True, **changed: object
) -> tuple[int, str] | None:
    """Where the kept part is to begin and why; None if nothing is to go."""
    decision = decision_of(rules, is_known=is_known, **changed)
    return None if decision.start is None else (decision.start.position, decision.cause)


def decision_of(rules: RetentionRules, *, is_known: bool = True, **changed: object) -> Decision:
    facts = replace(AT_FOUR, **changed)  # type: ignore[arg-type] # cases name fields

    def next_start(beginning: Position) -> SegmentStart | None:
        position = beginning + SEGMENT
        if position >= facts.end:
            return None
        stored_ms = NOW_MS - 100 * HOUR_MS + position // SEGMENT * 10 * HOUR_MS
        return SegmentStart(
            Index(position), Position(position), StoreTimeMs(stored_ms) if is_known else None
        )

    return decide(rules, facts, next_start)


def test_segments_go_whose_youngest_message_is_older_than_the_reserved_time() -> None:
    # Segment 2 begins 80 h ago, segment 3 70 h ago: of segment 2 the last message may be 70 h old.
    assert decided() == (200, "time")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"hour": 5}, None),
        ({"hour": 5, "used_percent": 75.0}, None),
        ({"hour": 5, "used_percent": 75.1}, (200, "disk")),
        ({"hour": 5, "used_percent": None}, None),
        ({"hour": 5, "is_asked": True}, (200, "operator")),
        ({"beginning": Position(200)}, None),
        ({"beginning": Position(100)}, (200, "time")),
        ({"now_ms": NOW_MS - 30 * HOUR_MS}, None),
    ],
)
def test_what_is_due_goes_in_its_hours_or_when_a_disk_is_fairly_full_or_when_asked(
    changed: dict[str, object], found: tuple[int, str] | None
) -> None:
    assert decided(**changed) == found


def test_what_is_due_goes_at_any_hour_where_that_is_wanted() -> None:
    assert decided(replace(RULES, is_any_hour=True), hour=11) == (200, "time")


@pytest.mark.parametrize("end", [801, 850, 900])
def test_the_newest_segment_never_goes(end: int) -> None:
    late_ms = NOW_MS + 1_000 * HOUR_MS
    assert decided(now_ms=late_ms, end=Position(end)) == (800, "time")


def test_at_most_ten_segments_go_in_one_round() -> None:
    late_ms = NOW_MS + 10_000 * HOUR_MS
    assert decided(now_ms=late_ms, end=Position(9_999)) == (SEGMENTS_MAX * 100, "time")
    small = replace(RULES, bytes_max=1)
    assert decided(small, hour=1, end=Position(9_999)) == (SEGMENTS_MAX * 100, "size")


def test_an_age_that_is_not_known_is_not_old() -> None:
    assert decided(is_known=False) is None
    assert decided(replace(RULES, bytes_max=700), is_known=False) == (200, "size")


@pytest.mark.parametrize(
    ("bytes_max", "found"),
    [(0, None), (850, None), (849, 100), (750, 100), (749, 200), (1, 800)],
)
def test_the_kept_part_is_held_to_its_size(bytes_max: int, found: int | None) -> None:
    expected = None if found is None else (found, "size")
    assert decided(replace(RULES, bytes_max=bytes_max), hour=1) == expected


def test_the_oldest_segment_goes_whatever_its_age_when_a_disk_is_nearly_full() -> None:
    young = replace(RULES, reserved_ms=10**12)
    assert decided(young, own_used_percent=85.0) is None
    assert decided(young, own_used_percent=85.1) == (100, "disk")
    assert decided(young, used_percent=99.0) is None, "another one's disk"
    assert decided(young, own_used_percent=99.0, end=Position(100)) is None
    assert decided(replace(young, forcibly_percent=0), own_used_percent=99.0) is None


def test_forced_cleaning_waits_until_the_bytes_of_the_last_round_are_given_back() -> None:
    young = replace(RULES, reserved_ms=10**12)
    full = {"own_used_percent": 86.0, "beginning": Position(300)}
    assert decided(young, **full, given_back=Position(200)) is None
    assert decided(young, **full, given_back=Position(201)) == (400, "disk")


def test_reasons_add_up_and_the_last_one_is_named() -> None:
    assert decided(replace(RULES, bytes_max=450)) == (400, "size")
    assert decided(replace(RULES, bytes_max=700)) == (200, "time")


@pytest.mark.parametrize(
    ("needed_from", "start", "is_held_up"),
    [(None, 200, False), (200, 200, False), (199, 100, True), (99, None, True), (850, 200, False)],
)
def test_a_segment_in_which_something_is_needed_stays_with_all_behind_it(
    needed_from: int | None, start: int | None, *, is_held_up: bool
) -> None:
    needed = None if needed_from is None else PhysicalOffset(needed_from)
    decision = decision_of(RULES, needed_from=needed)
    assert (decision.start and decision.start.position) == start
    assert decision.is_held_up is is_held_up


@pytest.mark.parametrize(("used", "refuses"), [(None, False), (90.0, False), (90.1, True)])
def test_sends_are_refused_above_the_warning_level(used: float | None, *, refuses: bool) -> None:
    assert refuses_sends(RULES, used) is refuses


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("02;04", {2, 4}), (" 0 ; 23; ", {0, 23})]
)
def test_hours_are_read_as_rocketmq_writes_them(text: str, hours: set[int]) -> None:
    assert parse_delete_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "4am", "-1", "04,05", "9999999999999999", "00099", "0024"])
def test_what_is_no_hour_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an hour"):
        parse_delete_hours(text)


@pytest.mark.parametrize("text", ["", ";", " ; ;"])
def test_no_hour_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no hour, so that nothing would ever go"):
        parse_delete_hours(text)
