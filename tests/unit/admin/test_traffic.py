"""Rates and lags from two looks at offsets."""

from __future__ import annotations

import pytest

from broker.admin.answers import QueueStats
from broker.admin.traffic import (
    GroupTraffic,
    Place,
    TopicTraffic,
    TrafficLook,
    group_traffic,
    topic_traffic,
)

A: Place = ("A", "b", 0)
A1: Place = ("A", "b", 1)
B: Place = ("B", "b", 0)


def look(
    at_s: float, ends: dict[Place, int], committed: dict[str, dict[Place, int]]
) -> TrafficLook:
    queues = {place: QueueStats(min(end, 10), end) for place, end in ends.items()}
    return TrafficLook(at_s, queues, committed)


BEFORE = look(100.0, {A: 100, A1: 50, B: 7}, {"g": {A: 60, A1: 50}, "h": {A: 100}})
NOW = look(102.0, {A: 120, A1: 50, B: 7}, {"g": {A: 120, A1: 50}, "h": {A: 110}})


def test_rates_are_what_was_stored_and_committed_between_two_looks() -> None:
    assert topic_traffic(NOW, BEFORE) == [
        TopicTraffic("A", 2, 150, in_rate=10.0, out_rate=35.0),
        TopicTraffic("B", 1, 0, in_rate=0.0, out_rate=0.0),
    ]
    assert group_traffic(NOW, BEFORE) == [
        GroupTraffic("h", 1, 10, out_rate=5.0, seconds=None),
        GroupTraffic("g", 1, 0, out_rate=30.0, seconds=0.0),
    ]


def test_one_look_has_no_rates() -> None:
    assert {(row.in_rate, row.out_rate) for row in topic_traffic(NOW, None)} == {(None, None)}
    assert {row.out_rate for row in group_traffic(NOW, None)} == {None}
    assert {row.in_rate for row in topic_traffic(NOW, NOW)} == {None}, "at the same time"


@pytest.mark.parametrize(
    ("at", "end", "seconds"), [(1000, 5000, 4.0), (400, 4400, 10.0), (0, 5000, None)]
)
def test_a_group_catches_up_if_it_consumes_more_than_comes(
    at: int, end: int, seconds: float | None
) -> None:
    """Its way, and what came meanwhile, are those of a second."""
    before = look(0.0, {A: end}, {"g": {A: end - 4000 - at}})
    (row,) = group_traffic(look(1.0, {A: end}, {"g": {A: end - 4000}}), before)
    assert (row.lag, row.seconds) == (4000, seconds)


def test_what_goes_back_has_no_rate() -> None:
    anew = look(104.0, {A: 3, A1: 50, B: 7}, {"g": {A: 20, A1: 50}, "h": {A: 3}})
    topic = next(row for row in topic_traffic(anew, NOW) if row.topic == "A")
    assert (topic.in_rate, topic.out_rate) == (None, None), "the topic was made anew"
    assert {row.out_rate for row in group_traffic(anew, NOW)} == {None}, "offsets were set back"


def test_gone_messages_and_queues_that_nobody_knows_are_no_lag() -> None:
    (row,) = group_traffic(look(1.0, {A: 100}, {"g": {A: 2, B: 3}}), None)
    assert (row.lag, row.topics) == (90, 1)
