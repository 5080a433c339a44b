"""What is said of sends through faults: failed, in flight, longest silence, lost, stored twice, out of order."""

from __future__ import annotations

import pytest

from tests.interop.failover.judgement import (
    Round,
    Send,
    Standing,
    disorder,
    judge,
    longest_gap_s,
    without_numbers,
)
from tests.interop.failover.streams import as_send


def sent(number: int, begun_s: float, ended_s: float, error: str | None = None) -> Send:
    return Send(number, begun_s, ended_s, f"digest {number}", error)


def stands(number: int, queue_offset: int, queue_id: int = 0) -> Standing:
    return Standing("broker-a", queue_id, queue_offset, f"digest {number}")


FAULT = Round("alpha", begun_s=10.0, done_s=10.1, ended_s=20.0)


def test_a_send_that_had_begun_when_the_fault_was_done_is_counted_apart() -> None:
    sends = [
        sent(0, 8.0, 9.0, "before all rounds, and not counted"),
        sent(1, 9.9, 12.9, "on its way"),
        sent(2, 10.05, 13.0, "begun while it happened"),
        sent(3, 10.2, 13.2, "after"),
    ]
    found = judge(sends, [FAULT], [], shards=None)
    assert (found.failed, found.in_flight, found.acknowledged) == (1, 2, 0)
    assert found.caught == (True,)


def test_what_was_in_flight_and_came_through_quickly_was_not_caught() -> None:
    quick, slow = sent(0, 9.9, 10.4), sent(0, 9.9, 12.9)
    assert judge([quick], [FAULT], [], shards=None).caught == (False,)
    found = judge([slow], [FAULT], [], shards=None)
    assert (found.caught, found.gaps_of_others_s) == ((True,), [])


def test_what_was_acknowledged_must_stand_once() -> None:
    sends = [sent(0, 1, 2), sent(1, 2, 3), sent(2, 3, 4), sent(3, 4, 5, "unknown")]
    standing = [stands(1, 0), stands(2, 1), stands(2, 0, queue_id=1), stands(3, 2), stands(3, 3)]
    found = judge(sends, [FAULT], standing, shards=None)
    assert (found.acknowledged, found.lost, found.duplicated) == (3, 1, 1)


@pytest.mark.parametrize(
    ("ends_s", "gap_s"),
    [
        ((9.5, 10.5, 11.0, 19.5, 20.5), 8.5),
        ((9.5, 13.0, 14.0, 19.9, 20.0), 5.9),
        ((9.0, 25.0), 16.0),
        ((15.0,), 5.0),
        ((), 10.0),
    ],
    ids=["inside", "later in the round", "over all of it", "begun late", "never"],
)
def test_the_longest_gap_is_between_acknowledged_sends(
    ends_s: tuple[float, ...], gap_s: float
) -> None:
    sends = [sent(number, end_s - 0.1, end_s) for number, end_s in enumerate(ends_s)]
    sends.append(sent(99, 11.9, 12.0, "refused"))  # which ends no gap
    assert longest_gap_s(sends, FAULT) == pytest.approx(gap_s)


def test_a_shard_is_in_order_within_a_queue_and_its_repeats_do_not_count() -> None:
    numbers = {f"digest {number}": number for number in range(20)}
    shards = 2
    in_order = [stands(0, 0), stands(1, 1), stands(2, 2), stands(0, 3), stands(3, 4)]
    assert disorder(in_order, numbers, shards) == (0, 0)
    late = [stands(4, 0), stands(2, 1), stands(1, 2), stands(6, 3)]
    assert disorder(late, numbers, shards) == (1, 0)
    elsewhere = [stands(0, 0), stands(2, 0, queue_id=1), stands(1, 1)]
    assert disorder(elsewhere, numbers, shards) == (0, 1)
    assert disorder([stands(77, 0)], numbers, shards) == (0, 0)


def test_errors_that_differ_in_numbers_are_one() -> None:
    one = "dial tcp 127.0.0.1:10911: refused after 3.01 s, id 7F000001ABCD00112233"
    other = "dial tcp 127.0.0.3:10921: refused after 2 s, id 7F000001ABCE00112239"
    assert without_numbers(one) == without_numbers(other)


def test_lines_of_clients_become_sends() -> None:
    line = {"i": 3, "ms": 250, "body_sha1": "d", "status": "SEND_OK"}
    assert as_send(line, 10.0) == Send(3, 9.75, 10.0, "d", None)
    failed = line | {"status": "ERROR", "error": "no route"}
    assert as_send(failed, 10.0) == Send(3, 9.75, 10.0, "d", "no route")
    doubtful = line | {"status": "FLUSH_DISK_TIMEOUT"}
    assert as_send(doubtful, 10.0) == Send(3, 9.75, 10.0, "d", "FLUSH_DISK_TIMEOUT")
