"""The checker against hand-written histories, good and bad: a checker that cannot fail proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen.checker import check
from jepsen.history import Event, Recorder, read_history

Q0, Q1 = "broker-a/0", "broker-a/1"


def send(number: int, queue: str = Q0, producer: str = "p") -> Event:
    return Event("send", 0, queue, producer, number)


def ack(number: int, offset: int, queue: str = Q0, producer: str = "p") -> Event:
    return Event("ack", 0, queue, producer, number, offset)


def got(number: int, offset: int, queue: str = Q0, producer: str = "p", group: str = "g") -> Event:
    return Event("receive", 0, queue, producer, number, offset, group)


def outcome(kind: str, number: int) -> Event:
    return Event(kind, 0, Q0, "p", number)  # type: ignore[arg-type]  # the two kinds used are kinds


def committed(offset: int) -> Event:
    return Event("committed", 0, Q0, offset=offset, consumer="g")


GOOD = {
    "two messages": [send(0), ack(0, 0), send(1), ack(1, 1), got(0, 0), got(1, 1)],
    "an unknown one that was not stored": [
        send(0),
        outcome("unknown", 0),
        send(1),
        ack(1, 0),
        got(1, 0),
    ],
    "an unknown one that surfaces late": [
        *(send(0), outcome("unknown", 0), send(1), ack(1, 0)),
        *(got(1, 0), got(0, 1)),
    ],
    "two queues, mixed": [
        *(send(0), ack(0, 0), send(0, Q1), ack(0, 0, Q1), send(1), ack(1, 1)),
        *(got(0, 0, Q1), got(0, 0), got(1, 1)),
    ],
    "delivered again after a crash": [
        *(send(0), ack(0, 0), send(1), ack(1, 1)),
        *(got(0, 0), got(1, 1), got(0, 0), got(1, 1)),
    ],
    "stored twice by a repeated send": [send(0), ack(0, 1), got(0, 0), got(0, 1)],
    "offsets move on": [send(0), ack(0, 0), got(0, 0), committed(0), committed(1), committed(1)],
}

BAD = {
    "lost": [send(0), ack(0, 0), send(1), ack(1, 1), got(1, 1)],
    "unexpected": [send(0), ack(0, 0), got(0, 0), got(7, 1)],
    "order": [send(0), ack(0, 1), send(1), ack(1, 0), got(1, 0), got(0, 1)],
    "offsets": [send(0), ack(0, 0), send(1), ack(1, 1), got(1, 1), got(0, 0)],
    "rewind": [send(0), ack(0, 0), got(0, 0), committed(5), committed(4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_are_valid(name: str) -> None:
    verdict = check(GOOD[name], drained=["g"])
    assert verdict.anomalies == ()
    assert verdict.valid is True


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_invalid_for_their_reason(name: str) -> None:
    verdict = check(BAD[name], drained=["g"])
    assert verdict.valid is False
    assert name in {anomaly.check for anomaly in verdict.anomalies}


def test_a_refused_message_must_not_appear() -> None:
    verdict = check([send(0), outcome("refused", 0), got(0, 0)], drained=["g"])
    assert [a.check for a in verdict.anomalies] == ["unexpected"]


def test_two_messages_at_one_offset_are_found_in_answers_alone() -> None:
    verdict = check([send(0), ack(0, 4), send(1), ack(1, 4), got(0, 4), got(1, 5)], drained=["g"])
    assert "offsets" in {anomaly.check for anomaly in verdict.anomalies}


def test_a_delivery_at_another_messages_offset_is_found() -> None:
    verdict = check([send(0), ack(0, 0), send(1), ack(1, 1), got(1, 0), got(0, 1)], drained=["g"])
    assert "offsets" in {anomaly.check for anomaly in verdict.anomalies}


def test_a_run_without_successes_is_unknown() -> None:
    assert check([send(0), outcome("unknown", 0)], drained=["g"]).valid is None
    assert check([], drained=[]).valid is None


def test_a_group_that_did_not_drain_is_not_asked_for_what_it_misses() -> None:
    events = [send(0), ack(0, 0), got(0, 0, group="g")]
    assert check(events, drained=["g"]).valid is True
    assert check(events, drained=["g", "slow"]).valid is False


def test_every_group_counts_for_itself() -> None:
    """Two groups receive the same messages: that is no duplicate."""
    events = [send(0), ack(0, 0), got(0, 0, group="g"), got(0, 0, group="h")]
    verdict = check(events, drained=["g", "h"])
    assert verdict.valid is True
    assert verdict.total("duplicated") == 0


def test_duplicates_are_counted_by_cause() -> None:
    events = [send(0), ack(0, 0), got(0, 0), got(0, 3), got(0, 3), got(0, 0)]
    tally = check(events, drained=["g"]).tallies["p"]
    assert (tally.stored_twice, tally.delivered_twice, tally.duplicated) == (1, 2, 3)


def test_stored_twice_under_another_key_is_the_clients_doing_under_one_key_it_breaks_a_promise() -> (
    None
):
    def keyed(offset: int, key: str) -> Event:
        return Event("receive", 0, Q0, "p", 0, offset, "g", key)

    events = [send(0), ack(0, 0), keyed(0, "a"), keyed(1, "b")]
    verdict = check(events, drained=["g"])
    assert verdict.valid is True
    assert (verdict.total("stored_twice"), verdict.total("rekeyed")) == (1, 1)
    verdict = check([*events, keyed(2, "b")], drained=["g"])
    assert [anomaly.check for anomaly in verdict.anomalies] == ["twice"]
    assert (verdict.total("stored_twice"), verdict.total("rekeyed")) == (2, 1)
    assert verdict.anomalies[0].text == "p broker-a/0 #0 stands at 1 and 2: b"


def test_counts() -> None:
    events = [
        *(send(0), ack(0, 0), send(1), outcome("refused", 1), send(2), outcome("unknown", 2)),
        *(send(3), ack(3, 1), got(0, 0)),
    ]
    tally = check(events, drained=["g"]).tallies["p"]
    counts = (
        tally.sent,
        tally.acknowledged,
        tally.refused,
        tally.unknown,
        tally.received,
        tally.lost,
    )
    assert counts == (4, 2, 1, 1, 1, 1)


def test_a_history_file_reads_back_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    times = iter([0.0, 1.0, 2.5])
    with Recorder(path, clock=lambda: next(times)) as history:
        history.add("send", queue=Q0, producer="p", number=0)
        history.add("ack", queue=Q0, producer="p", number=0, offset=0, key="K")
    written = history.events
    assert [event.t_ms for event in written] == [1000.0, 2500.0]
    with path.open() as lines:
        assert list(read_history(lines)) == written
    assert list(read_history([*path.read_text().splitlines(True), '{"kind":"ac'])) == written
